#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "timing/timed_block.hpp"
#include "vpmu/pipeline_totals.hpp"

namespace vpmu::timing {

/// What a pipeline has counted since it began.
struct PipelineCounts {
  PipelineTotals totals;
  std::uint64_t retired_slots{};     ///< Fused micro-ops.
  std::uint64_t wrong_path_slots{};  ///< Issued after a mispredicted branch, before it had executed: an estimate.
  std::uint64_t nothing_retired{};   ///< Cycles.
};

/// Of all issue slots, whose each was: level 1 of top-down analysis. 248966, appendix B.
struct TopDown {
  std::uint64_t retiring{}, bad_speculation{}, front_end{};
  std::uint64_t back_end{};  ///< All others, so that the sum is exact.
};
TopDown top_down(const PipelineCounts& counts, const Microarchitecture& on);

/// In how many ticks there was how much of a quantity.
struct Spread {
  std::array<std::uint64_t, PipelineTotal::max_threshold> at_least{};

  /// During `over` there was `amount` in all, evenly: of an amount between two whole ones each has its share.
  void add(Tick over, std::int64_t amount) {
    for (std::uint64_t& ticks : at_least) {
      if (amount <= 0) return;
      ticks += static_cast<std::uint64_t>(std::min<std::int64_t>(over, amount));
      amount -= over;
    }
  }
  /// At least `most` during all of it.
  void add_full(Tick over, unsigned most) {
    for (unsigned n = 0; n < most; ++n) at_least[n] += static_cast<std::uint64_t>(over);
  }
};

/// Ticks of one kind, and how often they began.
struct Stall {
  std::uint64_t ticks{}, beginnings{};

  void add(Tick more) {
    if (more <= 0) return;
    ticks += static_cast<std::uint64_t>(more);
    ++beginnings;
  }
};

/// How much of something is under way in each tick. It is told in the program's order: what is told later is taken to
/// begin when all that was told before has begun.
struct UnderWay {
  static constexpr std::size_t told_apart = PipelineTotal::max_threshold;
  std::uint64_t sum{}, beginnings{};
  std::array<std::uint64_t, told_apart> at_least{};
  std::array<Tick, told_apart> ends{};  ///< Of those that end last, the latest first.
  /// The last ticks, without a gap, in which there were at least so many.
  std::array<Tick, told_apart> first{}, last{};

  void add(Tick from, Tick until) {
    if (until <= from) return;
    sum += static_cast<std::uint64_t>(until - from);
    beginnings += from > ends[0] ? 1 : 0;
    // There are so many others from when the last of these has ended until the one before it ends.
    Tick to = until;
    for (std::size_t others = 0; others < told_apart && to > from; ++others) {
      const Tick since = std::max(from, ends[others]);
      if (to > since) {
        at_least[others] += static_cast<std::uint64_t>(to - since);
        if (since > last[others]) first[others] = since;
        last[others] = to;
      }
      to = std::min(to, ends[others]);
    }
    for (Tick& end : ends)
      if (until > end) std::swap(until, end);
  }
  /// What there was until `now`, without what has been told of later.
  [[nodiscard]] UnderWay until(Tick now) const {
    UnderWay passed = *this;
    for (std::size_t n = 0; n < told_apart; ++n) {
      const auto left = static_cast<std::uint64_t>(std::max(0, last[n] - std::max(now, first[n])));
      passed.at_least[n] -= std::min(left, at_least[n]);
      passed.sum -= std::min(left, passed.sum);
    }
    return passed;
  }
  template <class Change>
  void each_tick(const Change& change) {
    for (auto* const ticks : {&ends, &first, &last}) std::ranges::for_each(*ticks, change);
  }
};

/// What a pipeline tallies of lines and page walks as they begin, which happens at no time that states know: so it is
/// no part of PipelineTallies, and grows by itself.
struct LineTallies {
  UnderWay to_l1d, waiting, demand_reads, memory_reads, reads, rfos, load_walks, store_walks;
  Stall code_reads, code_walks;

  template <class Change>
  void each_tick(const Change& change) {
    for (UnderWay* const one :
         {&to_l1d, &waiting, &demand_reads, &memory_reads, &reads, &rfos, &load_walks, &store_walks})
      one->each_tick(change);
  }
  /// Until `now`.
  void tell(PipelineTotals& to, Tick now) const;
};
static_assert(std::has_unique_object_representations_v<LineTallies>, "its bytes are saved");

/// What a pipeline tallies as blocks retire. All times are in ticks. Nothing in it changes when anything happens.
struct PipelineTallies {
  /// By whether their code came out of the micro-op cache. The first numbers are 32 bits wide, so that they are quick
  /// to add, and are moved to the second ones before they could overflow.
  struct Blocks {
    TimedBlock::Amounts now{};
    std::array<std::uint64_t, TimedBlock::amounts> before{};
    [[nodiscard]] std::uint64_t operator[](std::size_t amount) const { return before[amount] + now[amount]; }
  };
  std::array<Blocks, 2> blocks{};
  std::array<Spread, 2> delivered{};  ///< Micro-ops that decoders and the micro-op cache gave.
  Spread issued, not_delivered, executed;
  std::uint64_t issued_full{};  ///< Ticks in which all slots were taken.
  std::uint64_t wrong_path{};   ///< Ticks in which all slots were taken by micro-ops of a wrong path.
  Stall recovery, dsb_to_mite, resource_stall, scheduler_full, reorder_full, store_queue_full;
  Stall scheduler_empty, scheduler_waits, stores_hold_up, nothing_retired;
  Stall machine_clear;
  std::uint64_t blocked_forwards{}, aliased_loads{}, code_changes{};
  /// By MissLevel: loads that were late, for how long in all, for how long one at least, and while nothing executed.
  std::array<std::uint64_t, 4> pending_sum{}, pending_any{};
  std::array<Stall, 4> load_stall{};

  /// One of its 64-bit words, and by how much it grows.
  struct Growth {
    std::uint32_t word{};
    std::uint32_t by{};
  };

  void fold();
  /// What was counted since it was empty, but for `blocks`. Each number is below 2^32: that of few blocks.
  void growth(std::vector<Growth>& to) const;
  /// Grows so many times.
  void grow(std::span<const Growth> by, std::uint64_t times);
  void add(const TimedBlock& block, bool cached, std::uint64_t times);
  void add(const TimedBlock& block, bool cached);
  [[nodiscard]] PipelineCounts counts(std::uint64_t cycles, const Microarchitecture& on) const;
};

// Its bytes are a part of the saved state, and its words grow by themselves.
static_assert(std::has_unique_object_representations_v<PipelineTallies> && sizeof(PipelineTallies) % 8 == 0);

inline void PipelineTallies::add(const TimedBlock& block, bool cached) {
  TimedBlock::Amounts& to = blocks[cached].now;
  for (std::size_t at = 0; at < to.size(); at += TimedBlock::lanes) {
    Ticks4 sum, more;
    std::memcpy(&sum, &to[at], sizeof sum);
    std::memcpy(&more, &block.all[at], sizeof more);
    sum += more;
    std::memcpy(&to[at], &sum, sizeof sum);
  }
}

}  // namespace vpmu::timing
