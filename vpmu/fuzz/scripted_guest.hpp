#pragma once
#include <cstring>
#include <span>

#include "paged_guest.hpp"
#include "vpmu/pmu.hpp"
#include "vpmu/registers.hpp"

namespace vpmu::fuzz {

/// Judges what the PMU writes: a whole PEBS or BTS record between base and absolute maximum of its buffer, then that
/// buffer's index. Nothing else, and nothing that the area did not allow when it was read.
class ScriptedGuest final : public PagedGuest {
 public:
  std::uint64_t pebs_records{}, bts_records{};  ///< Complete, with their index.

  explicit ScriptedGuest(const Pmu& pmu)
      : pmu_{&pmu}, record_bytes_{record_size(static_cast<PebsFormat>(pmu.generation().pebs_format))} {}

  /// The guest's own store, if there is RAM.
  void poke(std::uint64_t at, std::uint64_t word) {
    if (at - first_page <= ram_bytes - 8) std::memcpy(memory.data() + (at - first_page), &word, 8);
  }
  /// Before each call of the PMU.
  void begin_call() {
    half_ = Half::none;
    writes_ = 0;
  }

 private:
  enum class Half : std::uint8_t { none, pebs, bts };

  void judge(std::uint64_t at, std::span<const std::byte> in) override {
    require(++writes_ <= 4, "two records and two indices are all that one instruction writes");
    const std::uint64_t ds = pmu_->state().ds_area;
    if (half_ == Half::none) return begin_record(in.size() == BtsRecord::size ? Half::bts : Half::pebs, at, in.size());
    const std::uint64_t index_at = ds + (half_ == Half::bts ? BtsArea::index_offset : DsArea::index_offset);
    if (in.size() == BtsRecord::size && half_ == Half::pebs)
      return begin_record(Half::bts, at, in.size());  // the index could not be written
    require(in.size() == 8 && at == index_at, "behind a record its index is written");
    std::uint64_t index{};
    std::memcpy(&index, in.data(), sizeof index);
    const bool circular = half_ == Half::bts && !reg::debugctl::BTINT::test(pmu_->state().debugctl);
    require(index == end_ || (circular && index == base_), "the index moves behind the record or wraps to the base");
    ++(half_ == Half::bts ? bts_records : pebs_records);
    half_ = Half::none;
  }
  void begin_record(Half half, std::uint64_t at, std::uint64_t size) {
    const std::uint64_t area = pmu_->state().ds_area + (half == Half::pebs ? DsArea::pebs_offset : 0);
    require(half == Half::bts || size == record_bytes_, "a record is whole");
    base_ = word(area);
    end_ = at + size;
    const std::uint64_t index = word(area + 8), maximum = word(area + 16);
    const bool wrapped = half == Half::bts && !reg::debugctl::BTINT::test(pmu_->state().debugctl) && at == base_ &&
                         index + size > maximum;
    require(at == index || wrapped, "a record is at the index");
    require(at >= base_ && end_ > at && end_ <= maximum, "a record is inside its buffer");
    half_ = half;
  }

  const Pmu* pmu_;
  std::uint64_t record_bytes_;
  Half half_{};
  std::uint64_t base_{}, end_{};
  unsigned writes_{};
};

}  // namespace vpmu::fuzz
