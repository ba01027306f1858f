#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "timing/microarchitecture.hpp"
#include "timing/timed_block.hpp"
#include "uarch/core_clock.hpp"

namespace vpmu::timing {

/// A load or a store that an instruction made. `late` are cycles by which a load's data come later than from the L1,
/// and a store's go there later: for misses of caches and TLBs. Accesses that wait at the same time overlap; how many
/// lines can be on their way is for who says this to bound.
using TimedAccess = uarch::ClockedAccess;

/// Which of the caches had not what a load is for.
enum class Missed : std::uint8_t { none, l1d, l2, l3 };

/// By a load that is late; others missed nothing that matters.
constexpr Missed missed_by(const TimedAccess& load) {
  if (load.level == HitLevel::dram) return Missed::l3;
  if (is_l3_hit(load.level)) return Missed::l2;
  // What is in a fill buffer has missed the L1; where its line comes from is not known any more.
  return load.level == HitLevel::l2 || load.level == HitLevel::lfb ? Missed::l1d : Missed::none;
}

/// Whether a load takes a fill buffer: its line is neither in the L1 nor in one already.
constexpr bool is_fill(const TimedAccess& load) {
  return load.late != 0 && (load.level == HitLevel::l2 || is_below_l2(load.level));
}

/// What the stores before a load do to it.
struct Forwarding {
  Tick data{never};  ///< When it has its data, if that is later than from the L1.
  bool is_blocked{}, is_aliased{};
  bool operator==(const Forwarding&) const = default;
};

/// The last store to each eight bytes, as far as bits 3 to 11 of addresses tell these apart.
class RecentStores {
 public:
  explicit RecentStores(const Microarchitecture& on) : on_{on} {}

  /// What those that are not yet in the L1 do to a load whose address is there at `when`.
  [[nodiscard]] Forwarding before(const TimedBlock::Access& access, const TimedAccess& at, Tick when) const {
    if (are_written(at, when)) return {};
    const Tick in_time = when + access.latency;
    Forwarding made{.data = in_time};
    for (std::uint64_t place = at.physical / place_bytes, left = places(at); left != 0; ++place, --left) {
      const Store& store = stores_[place % stores_.size()];
      if (store.retired + until_written < when) continue;
      const bool overlaps = store.physical < at.physical + at.bytes && at.physical < store.physical + store.bytes;
      if (!overlaps) {
        if (store.bytes == 0 || !is_alias(store, at)) continue;
        made.data = std::max(made.data, in_time + on_.aliased_load * cycle);
        made.is_aliased = true;
        continue;
      }
      const bool contains = store.physical <= at.physical && at.physical + at.bytes <= store.physical + store.bytes;
      const Tick forwarding = access.is_vector ? on_.vector_store_forwarding : on_.store_forwarding;
      made.is_blocked |= !contains;
      made.data =
          std::max(made.data, contains ? store.data + forwarding * cycle : store.retired + on_.blocked_load * cycle);
    }
    if (made.data == in_time) made.data = never;
    return made;
  }
  /// A store that has its data, and retires, then.
  void add(const TimedAccess& store, Tick data, Tick retired) {
    for (std::uint64_t line = first_line(store), last = last_line(store); line <= last; ++line) {
      Tick& latest = latest_[line % latest_.size()];
      latest = std::max(latest, retired);
    }
    for (std::uint64_t place = store.physical / place_bytes, left = places(store); left != 0; ++place, --left) {
      Store& at = stores_[place % stores_.size()];
      if (keeps_) overwritten_.push_back({.at = place % stores_.size(), .store = at});
      at = {.physical = store.physical, .data = data, .retired = retired, .bytes = store.bytes};
    }
  }
  /// Whether those that add() overwrites are kept, for put_back().
  void keep_overwritten(bool on) { keeps_ = on; }
  void put_back() {
    for (; !overwritten_.empty(); overwritten_.pop_back()) stores_[overwritten_.back().at] = overwritten_.back().store;
  }
  void forget_overwritten() { overwritten_.clear(); }

  template <class Change>
  void each_tick(const Change& change) {
    for (Store& store : stores_) {
      change(store.data);
      change(store.retired);
    }
    latest_.fill(0);
    for (std::size_t place = 0; place < stores_.size(); ++place) {
      Tick& latest = latest_[place / (stores_.size() / latest_.size())];
      latest = std::max(latest, stores_[place].retired);
    }
  }
  [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span{stores_}); }

 private:
  struct Store {
    std::uint64_t physical{};
    Tick data{};            ///< When it has its data and its address.
    Tick retired{};         ///< When it has retired.
    std::uint32_t bytes{};  ///< 0: there was none.
    std::uint32_t reserved{};
  };
  // Its bytes are saved.
  static_assert(std::has_unique_object_representations_v<Store>);
  struct Overwritten {
    std::size_t at{};
    Store store;
  };
  static constexpr std::uint64_t place_bytes = 8, line_bytes = 64;
  static constexpr Tick until_written = 2 * cycle;  ///< From a store's retirement until its data are in the L1.

  /// The places that an access touches.
  static std::uint64_t places(const TimedAccess& at) {
    return (at.physical % place_bytes + at.bytes + place_bytes - 1) / place_bytes;
  }
  static std::uint64_t first_line(const TimedAccess& at) { return at.physical / line_bytes; }
  static std::uint64_t last_line(const TimedAccess& at) { return (at.physical + at.bytes - 1) / line_bytes; }
  /// Whether all stores near that load have been, when it has its address. Most have.
  [[nodiscard]] bool are_written(const TimedAccess& load, Tick when) const {
    for (std::uint64_t line = first_line(load), last = last_line(load); line <= last; ++line)
      if (latest_[line % latest_.size()] + until_written >= when) return false;
    return true;
  }
  /// Whether the store's address and the load's are one as far as 4 KiB tell addresses apart.
  static bool is_alias(const Store& store, const TimedAccess& load) {
    constexpr std::uint64_t low = 4095;
    return ((load.physical - store.physical) & low) < store.bytes ||
           ((store.physical - load.physical) & low) < load.bytes;
  }

  const Microarchitecture& on_;
  std::array<Store, 512> stores_{};
  std::array<Tick, 64> latest_{};  ///< Retirement of each line's stores, or later: of those that were put back, too.
  bool keeps_{};
  std::vector<Overwritten> overwritten_;
};

}  // namespace vpmu::timing
