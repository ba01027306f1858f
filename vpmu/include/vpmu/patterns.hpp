#pragma once
#include <array>
#include <bit>
#include <cstdint>

#include "vpmu/retirement.hpp"
#include "vpmu/set_of.hpp"

// What an event asks of a retired instruction: of its branch, its accesses and its class.
namespace vpmu {

/// A set of branch kinds.
using BranchKinds = SetOf<BranchKind>;

/// The branches that an event counts; `kinds` is empty for an event that counts no branches.
struct BranchPattern {
  BranchKinds kinds{};
  bool taken{true}, not_taken{true};  ///< Which way they went.
  bool only_mispredicted{};
  /// Whether the event counts this branch.
  [[nodiscard]] constexpr bool matches(const BranchOutcome& b) const {
    return kinds.has(b.kind) && (b.taken ? taken : not_taken) && (b.mispredicted || !only_mispredicted);
  }
};

/// A set of hit levels, a bit each: bit 0 is HitLevel::unknown.
using HitLevels = std::uint16_t;
/// The set of these levels.
template <class... Levels>
constexpr HitLevels hit_levels(Levels... levels) {
  return static_cast<HitLevels>(((1U << static_cast<unsigned>(levels)) | ...));
}

/// Which TLBs an access must have missed to count.
enum class TlbMiss : std::uint8_t {
  any,         ///< No condition.
  first,       ///< The first level TLB.
  both,        ///< The second level too.
  first_only,  ///< The first level, and not the second.
};
/// Whether an access with these misses counts.
constexpr bool is_counted(TlbMiss miss, bool first, bool second) {
  switch (miss) {
    case TlbMiss::any: return true;
    case TlbMiss::first: return first;
    case TlbMiss::both: return second;
    case TlbMiss::first_only: return first && !second;
  }
  return false;
}

/// A set of page sizes, a bit each.
using PageSizes = std::uint8_t;
/// The set of these sizes.
template <class... Sizes>
constexpr PageSizes page_sizes(Sizes... sizes) {
  return static_cast<PageSizes>(((1U << static_cast<unsigned>(sizes)) | ...));
}
/// All of them.
inline constexpr PageSizes all_page_sizes = page_sizes(PageSize::small, PageSize::large, PageSize::huge);

/// The loads and stores that an event counts; both flags are false for an event that counts no accesses.
struct AccessPattern {
  bool loads{}, stores{};
  HitLevels levels{static_cast<HitLevels>(~0U)};
  TlbMiss tlb{};
  PageSizes pages{all_page_sizes};
  bool only_locked{}, only_split{};
  bool once{};  ///< An instruction with a load and a store counts once.
  bool each{};  ///< Each load or store counts, of an instruction that makes several.
  /// Whether the event counts this access.
  [[nodiscard]] constexpr bool matches(const MemAccess& a) const {
    return is_counted(tlb, a.dtlb_miss, a.stlb_miss) && (pages >> static_cast<unsigned>(a.page) & 1) != 0 &&
           (levels >> static_cast<unsigned>(a.level) & 1) != 0 && (a.locked || !only_locked) &&
           (a.split || !only_split);
  }
  /// Whether the event counts the instruction's load,
  [[nodiscard]] constexpr bool has_load(const Retirement& r) const { return loads && r.has_load && matches(r.load); }
  /// and its store.
  [[nodiscard]] constexpr bool has_store(const Retirement& r) const {
    return stores && r.has_store && matches(r.store);
  }
  /// How often one instruction counts: 0 to 2, unless `each` counts more.
  [[nodiscard]] constexpr std::uint64_t of(const Retirement& r) const {
    const bool load = has_load(r), store = has_store(r);
    if (once) return std::uint64_t{load || store};
    return counted(load, each ? r.more_loads : 0) + counted(store, each ? r.more_stores : 0);
  }
  /// How often an access counts that stands for so many more.
  static constexpr std::uint64_t counted(bool access, std::int32_t more) {
    return access ? static_cast<std::uint64_t>(1 + std::int64_t{more}) : 0;
  }
};

/// The instructions that an event counts, by InstructionClass: a bit each. At most one of the two has it.
struct InstructionPattern {
  std::uint64_t once{}, twice{};
  /// These classes, once each.
  template <class... Classes>
  static constexpr InstructionPattern of(Classes... classes) {
    return {.once = ((1ULL << static_cast<unsigned>(classes)) | ...), .twice = 0};
  }
  /// And these, twice.
  template <class... Classes>
  [[nodiscard]] constexpr InstructionPattern and_twice(Classes... classes) const {
    return {.once = once, .twice = ((1ULL << static_cast<unsigned>(classes)) | ...)};
  }
  /// How often an instruction of this class counts.
  [[nodiscard]] constexpr unsigned of_class(unsigned number) const {
    return static_cast<unsigned>(once >> number & 1) + 2 * static_cast<unsigned>(twice >> number & 1);
  }
  /// The number of events of so many instructions of each class.
  [[nodiscard]] constexpr std::uint64_t sum(const std::array<std::uint64_t, instruction_class_count>& classes) const {
    std::uint64_t n = 0;
    for (std::uint64_t left = once | twice; left != 0; left &= left - 1) {
      const auto number = static_cast<unsigned>(std::countr_zero(left));
      n += of_class(number) * classes[number];
    }
    return n;
  }
  /// Whether no instruction counts.
  [[nodiscard]] constexpr bool empty() const { return (once | twice) == 0; }
  /// What either counts.
  constexpr InstructionPattern operator|(const InstructionPattern& other) const {
    const std::uint64_t two = twice | other.twice;
    return {.once = (once | other.once) & ~two, .twice = two};
  }
  bool operator==(const InstructionPattern&) const = default;
};
static_assert(instruction_class_count <= 64);

}  // namespace vpmu
