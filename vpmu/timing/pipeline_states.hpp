#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "timing/pipeline_tallies.hpp"
#include "timing/recent_stores.hpp"
#include "timing/timed_block.hpp"

namespace vpmu::timing {

/// The states that a pipeline was in, and which run of a block led from one to another. Loops come back to theirs, and
/// then nothing needs to be computed. What a step needs to be repeated is small, and apart from the rest, for the
/// host's caches.
class PipelineStates {
 public:
  static constexpr std::size_t max_bytes = 32U << 20;
  using Index = std::uint32_t;
  static constexpr Index none = std::numeric_limits<Index>::max();

  /// An access of a step. Ticks are since the last retirement before it.
  struct Access {
    bool is_store : 1 {}, is_vector : 1 {}, is_locked : 1 {};  ///< As of a TimedBlock::Access.
    bool is_blocked : 1 {}, is_aliased : 1 {};                 ///< Forwarding of a load.
    bool is_fill : 1 {};                                       ///< Of a load.
    bool is_delayed : 1 {};                                    ///< A load that began after `when`.
    Missed missed{};                                           ///< Of a load.
    std::uint16_t late{};
    std::int16_t latency{};
    Tick when{};  ///< A load has its address, or a store its data.
    Tick then{};  ///< A load that is forwarded to has its data, or a store retires.
  };
  /// What a run of a block did in a state, and does whenever it runs in that state in the same way. Its accesses stand
  /// behind it.
  struct Step {
    const TimedBlock* block{};
    std::uint32_t how{};  ///< All of a BlockRun.
    Tick takes{};
    Index to{}, next{none};  ///< A state; the next step from the same one.
    std::uint32_t access_count : 8 {}, number : 24 {};
    std::uint32_t times{};  ///< Not yet in the tallies.

    [[nodiscard]] std::span<const Access> accesses() const {
      return {reinterpret_cast<const Access*>(this + 1), access_count};
    }
  };
  static constexpr std::size_t max_accesses = 255;  ///< Of a step.
  static constexpr std::uint32_t decoded = 4;       ///< Of Step::how: BlockRun::decoded.

  struct Found {
    Index state{};
    bool is_new{};
  };
  /// The state that these words are.
  Found find(std::span<const std::uint32_t> words);
  [[nodiscard]] std::span<const std::uint32_t> words(Index state) const {
    return std::span{words_}.subspan(states_[state].first_word, states_[state].word_count);
  }
  /// Adds a step from the state, with its accesses and what it counts.
  void add(Index from, Step step, const TimedBlockPtr& block, std::span<const Access> accesses,
           std::span<const PipelineTallies::Growth> growth);

  [[nodiscard]] Index first(Index state) const { return first_steps_[state]; }
  /// Until add().
  [[nodiscard]] const Step& step(Index at) const { return *reinterpret_cast<const Step*>(&steps_[at]); }
  /// The step, which follows that one, is looked at first from now on.
  void put_first(Index state, Index before, Index step) {
    step_at(before).next = std::exchange(step_at(step).next, std::exchange(first_steps_[state], step));
  }
  /// What leads on from there will soon be asked for.
  void expect(Index state) const {
    const Index first = first_steps_[state];
    if (first != none) __builtin_prefetch(&steps_[first]);
  }
  /// The step was taken once more, while something counts. tally() before 2^32 times.
  void count(Index step) {
    if (step_at(step).times++ == 0) counted_.push_back(step);
  }
  /// Adds what the steps that were counted have tallied since.
  void tally(PipelineTallies& tallies);

  [[nodiscard]] bool is_full() const;
  /// All must have been tallied.
  void clear();
  /// Of the host's memory.
  [[nodiscard]] std::size_t bytes() const;

 private:
  static constexpr std::size_t places = 1U << 16;
  /// Steps and their accesses are of some of these. An Index is that of a step's first.
  struct alignas(alignof(Step)) Unit {
    std::array<std::byte, 16> bytes;
  };
  static_assert(sizeof(Step) % sizeof(Unit) == 0 && sizeof(Access) == sizeof(Unit));
  struct State {
    std::uint32_t first_word{}, word_count{};
    std::uint64_t hash{};
    Index next{none};  ///< At the same place of the table.
  };
  struct Counts {
    TimedBlockPtr block;
    std::uint32_t first_growth{}, growth_count{};
  };

  [[nodiscard]] Step& step_at(Index at) { return *reinterpret_cast<Step*>(&steps_[at]); }

  std::vector<Unit> steps_;
  std::vector<Index> first_steps_;  ///< By state.
  std::vector<State> states_;
  std::vector<std::uint32_t> words_;
  std::vector<Index> table_;
  std::vector<Counts> counts_;  ///< By Step::number.
  std::vector<PipelineTallies::Growth> growth_;
  std::vector<Index> counted_;
};

}  // namespace vpmu::timing
