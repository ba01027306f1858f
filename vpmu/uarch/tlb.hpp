#pragma once
#include <array>
#include <cstdint>

#include "uarch/profiles.hpp"
#include "vpmu/retirement.hpp"

namespace vpmu::uarch {

/// Where a translation came from.
enum class TlbResult : std::uint8_t { hit, stlb_hit, walk };

/// The class of a page of 4 KiB, 2 MiB, 4 MiB or 1 GiB. A page of 4 MiB is two entries of 2 MiB here.
constexpr PageSize page_size_of(std::uint64_t bytes) {
  if (bytes <= 4096) return PageSize::small;
  return bytes <= (4U << 20) ? PageSize::large : PageSize::huge;
}

/// The second level TLB, for code and data.
class SecondLevel {
 public:
  explicit SecondLevel(const SecondTlb& shapes) : shapes_{shapes}, shared_{shapes.shared}, huge_{shapes.huge} {}
  /// Whether it holds the page; if not, it does now, when it can hold pages of that size.
  bool look_up(std::uint64_t page, PageSize size);
  void clear();
  /// Removes the page of that size.
  void forget(std::uint64_t page, PageSize size);
  void visit_state(const StateVisitor& visit) {
    shared_.visit_state(visit);
    huge_.visit_state(visit);
  }

 private:
  static std::uint64_t key_of(std::uint64_t page, PageSize size);
  RecencySets& table(PageSize size) { return size == PageSize::huge ? huge_ : shared_; }

  SecondTlb shapes_;
  RecencySets shared_, huge_;
};

/// A first level TLB, backed by the second level. It knows pages, not translations: its caller has the translation.
class Tlb {
 public:
  /// Bits in the number of a 4 KiB page. The upper 16 bits of a canonical address repeat the highest of them.
  static constexpr unsigned page_bits = 48 - 12;

  /// `second` must outlive it.
  Tlb(const TlbShapes& shapes, SecondLevel& second);

  /// Looks up the page of that size that holds `linear`.
  TlbResult look_up(std::uint64_t linear, PageSize size, bool global = false) {
    return is_latest(linear, size, global) ? TlbResult::hit : look_up_older(linear, size, global);
  }
  /// The same where is_latest() is false.
  TlbResult look_up_older(std::uint64_t linear, PageSize size, bool global);
  /// Whether look_up() would hit and change nothing.
  [[nodiscard]] bool is_latest(std::uint64_t linear, PageSize size, bool global = false) const {
    return table(size).is_latest(page_of(linear, size, global));
  }
  /// Forgets all pages; the second level keeps its own.
  void clear();
  /// Forgets what has `linear`, of any size, global or not; so does the second level.
  void forget(std::uint64_t linear);
  /// From here on its pages are told apart from those under other tags, also in the second level: global ones by the
  /// second.
  void tag_pages(std::uint64_t of_space, std::uint64_t of_global) { tags_ = {of_space, of_global}; }
  /// The bits that a tag may have: no number of a set has them.
  static constexpr std::uint64_t tag_bits = ((1ULL << page_bits) - 1) & ~0xFFFFULL;
  /// Its own state; not the second level's.
  void visit_state(const StateVisitor& visit) {
    for (RecencySets* const pages : {&small_, &large_, &huge_}) pages->visit_state(visit);
  }

 private:
  static constexpr unsigned shift(PageSize size) {
    return size == PageSize::small ? 12U : size == PageSize::large ? 21U : 30U;
  }
  [[nodiscard]] std::uint64_t page_of(std::uint64_t linear, PageSize size, bool global) const {
    return (linear & ((1ULL << 48) - 1)) >> shift(size) ^ tags_[global ? 1 : 0];
  }
  RecencySets& table(PageSize size) {
    return size == PageSize::small ? small_ : size == PageSize::large ? large_ : huge_;
  }
  [[nodiscard]] const RecencySets& table(PageSize size) const {
    return size == PageSize::small ? small_ : size == PageSize::large ? large_ : huge_;
  }

  RecencySets small_, large_, huge_;
  SecondLevel* second_;
  std::array<std::uint64_t, 2> tags_{};
};

}  // namespace vpmu::uarch
