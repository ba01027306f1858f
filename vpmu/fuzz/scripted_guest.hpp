#pragma once
#include <array>
#include <bitset>
#include <cstring>

#include "fuzz_input.hpp"
#include "vpmu/pmu.hpp"
#include "vpmu/registers.hpp"

namespace vpmu::fuzz {

/// Four pages of RAM, of which some are missing or read only, and the judge of what the PMU writes there: a whole PEBS
/// or BTS record between base and absolute maximum of its buffer, then that buffer's index. Nothing else, and nothing
/// that the area did not allow when it was read.
class ScriptedGuest final : public GuestEnv {
 public:
  static constexpr unsigned page_count = 4;
  static constexpr std::uint64_t first_page = 0xFFFF'8000'0000'0000;
  static constexpr std::uint64_t ram_bytes = page_count * page_size;

  std::bitset<page_count> missing, read_only;
  bool fail_writes{};  ///< As if another CPU had taken the page away after the probe.
  std::uint64_t pmis{}, page_faults{};
  std::uint64_t pebs_records{}, bts_records{};  ///< Complete, with their index.

  explicit ScriptedGuest(const Pmu& pmu)
      : pmu_{&pmu}, record_bytes_{record_size(static_cast<PebsFormat>(pmu.generation().pebs_format))} {}

  /// The guest's own store, if there is RAM.
  void poke(std::uint64_t at, std::uint64_t word) {
    if (at - first_page <= ram_bytes - 8) std::memcpy(memory_.data() + (at - first_page), &word, 8);
  }
  /// Before each call of the PMU.
  void begin_call() {
    half_ = Half::none;
    writes_ = 0;
  }

  AccessResult read_linear(GuestLinear at, std::span<std::byte> out) override {
    if (auto fault = check(at, out.size(), AccessKind::read)) return fault;
    std::memcpy(out.data(), memory_.data() + (at.value() - first_page), out.size());
    return {};
  }
  AccessResult write_linear(GuestLinear at, std::span<const std::byte> in) override {
    if (fail_writes) return AccessFault{.address = at};
    if (auto fault = check(at, in.size(), AccessKind::write)) return fault;
    judge(at.value(), in);
    std::memcpy(memory_.data() + (at.value() - first_page), in.data(), in.size());
    require(++writes_ <= 4, "two records and two indices are all that one instruction writes");
    return {};
  }
  AccessResult probe_linear(GuestLinear at, std::uint64_t size, AccessKind kind) override {
    return check(at, size, kind);
  }
  std::uint64_t tsc() override { return 0x1122'3344; }
  void request_pmi() override { ++pmis; }
  void inject_page_fault(const AccessFault&) override { ++page_faults; }

 private:
  enum class Half : std::uint8_t { none, pebs, bts };

  [[nodiscard]] std::uint64_t word(std::uint64_t at) const {
    std::uint64_t value = 0;
    require(at - first_page <= ram_bytes - 8, "an area that was read is in RAM");
    std::memcpy(&value, memory_.data() + (at - first_page), 8);
    return value;
  }
  [[nodiscard]] AccessResult check(GuestLinear at, std::uint64_t size, AccessKind kind) const {
    require(size != 0 && size <= max_record_size, "no access is larger than a record");
    require(is_canonical(at.value(), 48) && is_canonical(at.value() + size - 1, 48), "every access is canonical");
    for (std::uint64_t done = 0; done < size; ++done) {
      const std::uint64_t page = (at.value() + done - first_page) / page_size;
      if (page >= page_count || missing[page]) return AccessFault{.address = at + done};
      if (kind == AccessKind::write && read_only[page]) return AccessFault{.address = at + done, .error_code = 3};
    }
    return {};
  }

  void judge(std::uint64_t at, std::span<const std::byte> in) {
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

  std::array<std::byte, ram_bytes> memory_{};
  const Pmu* pmu_;
  std::uint64_t record_bytes_;
  Half half_{};
  std::uint64_t base_{}, end_{};
  unsigned writes_{};
};

}  // namespace vpmu::fuzz
