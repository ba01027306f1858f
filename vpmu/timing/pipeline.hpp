#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "timing/buffers.hpp"
#include "timing/microarchitecture.hpp"
#include "timing/pipeline_states.hpp"
#include "timing/pipeline_tallies.hpp"
#include "timing/recent_stores.hpp"
#include "timing/scheduler.hpp"
#include "timing/timed_block.hpp"

namespace vpmu::timing {

/// How one run of a block differs from any other.
struct BlockRun {
  /// The branch with which the block before ended was mispredicted: the front end begins this one when it has executed.
  bool mispredicted{};
  bool taken{};  ///< The branch with which the block before ended was taken. False: this one follows it in memory.
  /// All its code is in the micro-op cache; never of blocks without TimedBlock::fits_cache. False: it is decoded anew.
  bool decoded{};
  std::uint16_t fetch_wait{};  ///< Cycles for which the front end waits for its code: misses of the L1I and the ITLB.
  std::uint16_t code_walk{};   ///< Those of them for a page walk,
  std::uint16_t code_read{};   ///< and for a line from beyond the L2. These two are only counted.
};

/// For how much of its time, of 256, a thread has used what the threads of a core share.
struct CoreUse {
  enum Of : std::uint8_t { issue, divider, first_port_set };
  static constexpr std::size_t count = first_port_set + max_port_sets;
  std::array<std::uint8_t, count> of{};
};

/// When the instructions of one thread retire, given what each block takes and which accesses it made. Deterministic:
/// integers alone.
///
/// The front end, the issue of micro-ops, data flow, ports and retirement each have a clock of their own, and wait for
/// each other only as far as buffers go: a stall of one is hidden while another is behind. Ports are not chosen: a set
/// of ports is busy for as long as the micro-ops that must go to it take. 248966, chapter 2.
class Pipeline {
 public:
  explicit Pipeline(const Microarchitecture& on) : on_{on} { limit(); }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// How long lines are on their way, of accesses that say where these come from. At first: no time.
  void transfers_take(const uarch::TransferTimes& times) { transfer_times_ = times; }
  /// The block's instructions retire; `accesses` are those of TimedBlock::accesses.
  void retire(const TimedBlockPtr& block, std::span<const TimedAccess> accesses, const BlockRun& how = {});
  /// When retire() would let the block's last instruction retire. Changes nothing. For the first instructions of a
  /// block, made into a block of their own, that is never later than for more of them, run in the same way.
  [[nodiscard]] Time peek(const TimedBlock& block, std::span<const TimedAccess> accesses, const BlockRun& how = {});
  /// All that is in flight retires, then so many cycles pass for what is outside of the model, as the delivery of an
  /// interrupt, and then the front end begins anew.
  void pause(unsigned cycles);
  /// What has retired has changed code: all behind it that is under way is thrown away, and fetched anew.
  void clear();
  /// From now on the core's other thread runs, too, and uses that much; null: it does not run. Returns what this one
  /// has used since the last call, as far as the other one ran; all of it before that is known.
  ///
  /// With two threads the reorder buffer and those of loads and stores are halved, as is here the scheduler, for which
  /// they compete; the front end and the issue of micro-ops take turns, where both want them, and so do ports and the
  /// divider here. 248966, chapter 2, Intel Hyper-Threading Technology. They run one after the other, so that each
  /// meets what the other one used on average, and at least half of everything is its own.
  CoreUse share_with(const CoreUse* other);
  [[nodiscard]] bool is_sharing() const { return shared_.is_on != 0; }
  /// When the last instruction retired.
  [[nodiscard]] Time now() const { return clocks_.origin + clocks_.retired; }
  /// Whether it counts, as it does at first. That takes a fifth of its time, and never changes when anything happens.
  void count(bool on) { counting_ = counting_lines_ = on; }
  /// What it has counted by now.
  [[nodiscard]] PipelineCounts counts() {
    states_.tally(tallies_);
    PipelineCounts counts = tallies_.counts(static_cast<std::uint64_t>(now() / cycle), on_);
    line_tallies_.tell(counts.totals, clocks_.retired);
    return counts;
  }
  /// Whether states that come again are recognized, as at first. That saves time, and changes nothing else.
  void remember_states(bool on);
  /// Of the host's memory, that the states take which may come again: bounded.
  [[nodiscard]] std::size_t kept_bytes() const { return states_.bytes(); }
  /// Blocks that retired as they had before in the same state.
  [[nodiscard]] std::uint64_t repeated() const { return repeated_; }

  /// Calls `visit` with the bytes of each part of the state, always the same parts in the same order: it reads them to
  /// save the model, or overwrites them to restore it. Any bytes are a state.
  template <class Visitor>
  void visit_state(const Visitor& visit) {
    begin_visit();
    visit(std::as_writable_bytes(std::span{&clocks_, 1}));
    visit(std::as_writable_bytes(std::span{&transfers_, 1}));
    visit(std::as_writable_bytes(std::span{window_}));
    visit(stores_.bytes());
    visit(scheduler_.bytes());
    visit(std::as_writable_bytes(std::span{&tallies_, 1}));
    visit(std::as_writable_bytes(std::span{&line_tallies_, 1}));
    visit(std::as_writable_bytes(std::span{&shared_, 1}));
    accept_state();
  }

 private:
  /// Blocks: a reorder buffer holds no more micro-ops.
  static constexpr std::size_t window = 256;
  static constexpr std::size_t max_store_buffer = 64;

  /// All but the large tables. Ticks are since `origin`.
  struct Clocks {
    Time origin{};
    std::array<TimedBlock::ShortTicks, max_port_sets> ports{};  ///< For how long each is busy after `dispatched`.
    std::array<Tick, node_count> ready{};
    std::array<Tick, max_store_buffer> drains{};  ///< When the last stores left the store buffer, by their number.
    Tick drained{};                               ///< When the last store left.
    Tick predecoded{}, decoded{};
    Tick cached{};  ///< When the micro-op cache has given what it had.
    Tick issued{}, dispatched{}, retired{}, divider{};
    Tick executed{};                ///< When the last instruction of the block before, if it is a branch, has executed.
    Tick locked_until{};            ///< Loads after an atomic access wait for it.
    std::array<Tick, 4> pending{};  ///< When the last late load by Missed has its data.
    Buffers fills;                  ///< Lines that come through a fill buffer.
    Tick oldest{};                  ///< When what has left the reorder buffer had retired.
    std::uint32_t micro_ops{}, loads{}, stores{};  ///< All of them.
    std::uint32_t oldest_end{}, oldest_loads{};  ///< Those up to the end of what has left; those before its last block.
    std::uint8_t in_block{}, decoders_used{}, line_places{};  ///< TimedBlock::FrontEnd::leaves.
    std::uint8_t was_cached{};                                ///< 1: the last block came out of the micro-op cache.
    std::uint8_t first_in_window{}, after_window{};
    std::array<std::uint8_t, 6> reserved{};
  };
  /// Lines that are on their way because accesses began them, and page walks. No state that may come again knows of
  /// them.
  struct LineTransfers {
    static constexpr std::size_t place(std::uint32_t name) { return (name - 1) % uarch::Transfers::kept; }
    std::array<Tick, uarch::Transfers::kept> arrive{};  ///< By place().
    Tick channel{};                                     ///< Until when memory's channels are busy.
    Buffers super_queue;                                ///< Lines that come from beyond the L2.
    Buffers walkers;                                    ///< Page walks.
  };
  struct Retired {
    std::uint32_t micro_ops{}, end{};  ///< Fused micro-ops: all before it, and its own, too.
    std::uint32_t loads{};             ///< All before it.
    Tick at{};
  };
  /// While the core's other thread runs.
  struct Shared {
    std::array<std::uint64_t, CoreUse::count> used{};  ///< Ticks, since then,
    Time since{};
    std::array<std::uint16_t, CoreUse::count> more{};  ///< By how much each takes longer, of 2^16.
    std::uint32_t is_on{};
  };
  /// What the thread has of the core's buffers.
  struct Limits {
    unsigned reorder_buffer{}, load_buffer{}, store_buffer{}, scheduler{};
  };
  // Their bytes are the saved state.
  static_assert(std::has_unique_object_representations_v<Shared> && std::has_unique_object_representations_v<Clocks> &&
                std::has_unique_object_representations_v<Retired> &&
                std::has_unique_object_representations_v<LineTransfers>);

  /// Nanoseconds of the host, roughly, by the engine's benchmark: what repeating a step saves, and what finding a state
  /// and recording a step cost. They are done as long as more is saved; and where nothing is repeated, in some
  /// hundredths of the time that blocks take, of which `anew_gain` is the share of one. Only the speed depends on them.
  static constexpr std::int64_t anew_gain = 1, repeating_gain = 20, finding_cost = 200, recording_cost = 600;
  static constexpr std::int64_t first_credit = 4096 * recording_cost, max_credit = 16384 * recording_cost;
  /// With less than that, steps are recorded only from states that came again.
  static constexpr std::int64_t sparing_credit = 1024 * recording_cost;
  static constexpr std::uint64_t productive = 32;  ///< Steps that are repeated between a state that was found and the
                                                   ///< first one that leads nowhere, if it was worth looking for it.
  static constexpr unsigned max_wait = 1024;

  void run(const TimedBlock& block, std::span<const TimedAccess> accesses, const BlockRun& how);
  /// When a part of the pipeline has a block's first instruction, and when it has all.
  struct Span {
    Tick first{}, last{};
  };
  struct Delivered {
    Span span;
    Tick takes{};
    Tick refilled{};  ///< When the refill after a misprediction has the first one.
  };
  void retire_anew(const TimedBlock& block, std::span<const TimedAccess> accesses, const BlockRun& how);
  bool repeat(const TimedBlock& block, std::span<const TimedAccess> accesses, const BlockRun& how);
  bool repeats(const PipelineStates::Step& step, std::span<const TimedAccess> accesses);
  [[nodiscard]] bool has_room(Tick begin, Tick takes, unsigned others) const;
  [[nodiscard]] bool waits_for_nothing(const TimedAccess& access, const PipelineStates::Access& before,
                                       bool begins) const;
  void begin_transfers(const PipelineStates::Step& step, std::span<const TimedAccess> accesses);
  void record(const TimedBlockPtr& block, std::span<const TimedAccess> accesses, const BlockRun& how);
  void look_for_state();
  void lose_state();
  bool make_room();
  class Words;
  void write(Words& to);
  void put_fills(Words& to, Tick dispatched) const;
  void read(std::span<const std::uint32_t> words, Tick now);
  void settle();
  void spread();
  void leave_states();
  void begin_visit();
  Delivered decode(const TimedBlock& block);
  Delivered read_lines(const TimedBlock& block);
  Delivered deliver(const TimedBlock& block, const BlockRun& how);
  Span issue(const TimedBlock& block, const BlockRun& how, const Delivered& delivered);
  struct Issued;
  void count_issue(const Issued& i);
  void count_late(Missed missed, Tick from, Tick until);
  void count_retirement(const TimedBlock& block, const BlockRun& how, Tick before);
  Tick room_for(std::uint32_t micro_ops, std::uint32_t loads);
  Tick drained(unsigned stores) const;
  class Latest;
  void wait(const TimedBlock& block, Tick dispatched, const Latest& latest);
  Tick flow(const TimedBlock& block, std::span<const TimedAccess> accesses, Tick dispatched, Tick decoded);
  /// Until when memory's channels are busy for a line that begins then, if they were until `busy`. Lines begin in any
  /// order: one that comes first in the program may begin later, by a line's time.
  [[nodiscard]] Tick channel_for(Tick busy, Tick begin) const {
    return std::max(busy, begin - transfer_times_.from[uarch::Transfers::memory] * cycle);
  }
  /// Of the line that the access waits for.
  [[nodiscard]] Tick arrival(const TimedAccess& at) const {
    return transfers_.arrive[LineTransfers::place(at.transfers.waits_for())];
  }
  [[nodiscard]] Tick with_wait(const TimedAccess& at, Tick begin, Tick loading) const;
  Tick transfer(const TimedAccess& at, Tick begin, Tick loading, bool is_store);
  void count_transfer(const TimedAccess& at, unsigned n, Tick begin, Tick starts, Tick arrives, bool is_store);
  /// When a page walk for the access can begin, which is ready at `when`.
  [[nodiscard]] Tick walk_from(const TimedAccess& at, Tick when) const {
    return transfers_.walkers.free_from(when, on_.page_walkers, [&at](Tick from) { return from + at.walk * cycle; });
  }
  Tick walk(const TimedAccess& at, Tick when, bool is_store);
  void count_code(const BlockRun& how);
  Tick access(const TimedBlock::Access& access, const TimedAccess& at, Tick when, Tick in_order);
  void drain(const TimedBlock& block);
  Tick take_ports(const TimedBlock& block, Tick dispatched);
  void limit();
  /// What takes so long alone.
  [[nodiscard]] Tick in_turns(Tick ticks, CoreUse::Of of = CoreUse::issue) const {
    if (shared_.is_on == 0) [[likely]]
      return ticks;
    return ticks + static_cast<Tick>(std::int64_t{ticks} * shared_.more[of] >> 16U);
  }
  void count_use(const TimedBlock& block);
  template <class Change>
  void each_tick(const Change& change);
  void begin_anew();
  void accept_state();

  const Microarchitecture& on_;
  Limits limits_;
  Clocks clocks_;
  Shared shared_;
  LineTransfers transfers_;
  uarch::TransferTimes transfer_times_;
  std::array<Retired, window> window_{};
  RecentStores stores_{on_};
  Scheduler scheduler_;
  PipelineTallies tallies_;
  LineTallies line_tallies_;
  Tick delivered_{};    ///< For which the front end gave the block that is run.
  Tick starved_{};      ///< For which the block that is run had no micro-op to issue.
  Tick wrong_path_{};   ///< And for which those of a wrong path were issued before it.
  Tick late_stores_{};  ///< The most of its stores.
  bool is_peeking_{}, counting_{true};
  bool counting_lines_{true};  ///< The same, also while a step is recorded.

  PipelineStates states_;
  PipelineStates::Index state_{PipelineStates::none};  ///< That it is in, if known.
  bool is_spread_{true};  ///< All members are as `state_` says, not only now() and the stores.
  bool remembers_{true};
  std::int64_t credit_{first_credit};             ///< What was saved and not yet spent.
  unsigned wait_{1}, until_look_{1};              ///< Blocks after a branch until it is tried again to find a state.
  std::uint64_t repeated_{}, repeated_before_{};  ///< Steps; and when a state was found last.
  bool is_recording_{};
  bool is_repeatable_{};  ///< What is recorded may come again: no line that came from elsewhere was waited for.
  std::vector<PipelineStates::Access> recorded_;  ///< Of the run that is recorded.
  std::vector<PipelineTallies::Growth> growth_;
};

}  // namespace vpmu::timing
