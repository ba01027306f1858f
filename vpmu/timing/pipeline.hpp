#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "timing/microarchitecture.hpp"
#include "timing/pipeline_tallies.hpp"
#include "timing/timed_block.hpp"

namespace vpmu::timing {

/// Which caches had not what a load is for.
enum class Missed : std::uint8_t { none, l1d, l2, l3 };

/// A load or a store that an instruction made.
struct TimedAccess {
  std::uint64_t physical{};
  std::uint16_t bytes{};
  /// Cycles by which a load's data come later than from the L1, and a store's go there later: for misses of caches and
  /// TLBs. Accesses that wait at the same time overlap; how many lines can be on their way is for who says this to
  /// bound.
  std::uint16_t late{};
  Missed missed{};  ///< Of a load that is late.
};

/// How one run of a block differs from any other.
struct BlockRun {
  /// The branch with which the block before ended was mispredicted: the front end begins this one when it has executed.
  bool mispredicted{};
  bool taken{};  ///< The branch with which the block before ended was taken. False: this one follows it in memory.
  /// All its code is in the micro-op cache; never of blocks without TimedBlock::fits_cache. False: it is decoded anew.
  bool decoded{};
  std::uint16_t fetch_wait{};  ///< Cycles for which the front end waits for its code: misses of the L1I and the ITLB.
};

/// When the instructions of one thread retire, given what each block takes and which accesses it made. Deterministic:
/// integers alone.
///
/// The front end, the issue of micro-ops, data flow, ports and retirement each have a clock of their own, and wait for
/// each other only as far as buffers go: a stall of one is hidden while another is behind. Ports are not chosen: a set
/// of ports is busy for as long as the micro-ops that must go to it take. 248966, chapter 2.
class Pipeline {
 public:
  explicit Pipeline(const Microarchitecture& on) : on_{on} {}

  /// The block's instructions retire; `accesses` are those of TimedBlock::accesses.
  void retire(const TimedBlock& block, std::span<const TimedAccess> accesses, const BlockRun& how = {});
  /// When retire() would let the block's last instruction retire. Changes nothing. For the first instructions of a
  /// block, made into a block of their own, that is never later than for more of them, run in the same way.
  [[nodiscard]] Time peek(const TimedBlock& block, std::span<const TimedAccess> accesses, const BlockRun& how = {});
  /// All that is in flight retires, then so many cycles pass for what is outside of the model, as the delivery of an
  /// interrupt, and then the front end begins anew.
  void pause(unsigned cycles);
  /// When the last instruction retired.
  [[nodiscard]] Time now() const { return clocks_.origin + clocks_.retired; }
  /// Whether it counts, as it does at first. That takes a fifth of its time, and never changes when anything happens.
  void count(bool on) { counting_ = on; }
  /// What it has counted by now.
  [[nodiscard]] PipelineCounts counts() const {
    return tallies_.counts(static_cast<std::uint64_t>(now() / cycle), on_);
  }

  /// Calls `visit` with the bytes of each part of the state, always the same parts in the same order: it reads them to
  /// save the model, or overwrites them to restore it. Any bytes are a state.
  template <class Visitor>
  void visit_state(const Visitor& visit) {
    visit(std::as_writable_bytes(std::span{&clocks_, 1}));
    visit(std::as_writable_bytes(std::span{window_}));
    visit(std::as_writable_bytes(std::span{stores_}));
    visit(std::as_writable_bytes(std::span{&tallies_, 1}));
    accept_state();
  }

 private:
  /// Blocks: a reorder buffer holds no more micro-ops.
  static constexpr std::size_t window = 256;
  static constexpr std::size_t max_stores = 512;  ///< Of eight bytes each: as bits 3 to 11 of addresses tell apart.
  static constexpr std::size_t max_store_buffer = 64;
  /// Of the time from when micro-ops leave the scheduler to now, in pieces.
  static constexpr std::size_t leaving_pieces = 128;

  /// All but the large tables. Ticks are since `origin`.
  struct Clocks {
    Time origin{};
    std::array<Tick, max_port_sets> ports{};
    std::array<Tick, node_count> ready{};
    std::array<Tick, max_store_buffer> drains{};  ///< When the last stores left the store buffer, by their number.
    std::array<std::uint8_t, leaving_pieces> leaving{};  ///< Micro-ops in the scheduler, by when they leave it.
    Tick left{};                                         ///< The first of these pieces.
    Tick drained{};                                      ///< When the last store left.
    Tick predecoded{}, decoded{};
    Tick cached{};  ///< When the micro-op cache has given what it had.
    Tick issued{}, retired{}, divider{};
    Tick executed{};                ///< When the last instruction of the block before, if it is a branch, has executed.
    Tick locked_until{};            ///< Loads after an atomic access wait for it.
    std::array<Tick, 4> pending{};  ///< When the last late load by Missed has its data.
    Tick oldest{};                  ///< When what has left the reorder buffer had retired.
    std::uint32_t micro_ops{}, loads{}, stores{};  ///< All of them.
    std::uint32_t oldest_end{}, oldest_loads{};  ///< Those up to the end of what has left; those before its last block.
    std::uint16_t waiting{};                     ///< In the scheduler: the sum of `leaving`.
    std::uint8_t first_leaving{};
    std::uint8_t in_block{}, decoders_used{}, line_places{};  ///< TimedBlock::FrontEnd::leaves.
    std::uint8_t was_cached{};                                ///< 1: the last block came out of the micro-op cache.
    std::uint8_t first_in_window{}, after_window{};
    std::array<std::uint8_t, 7> reserved{};
  };
  struct Retired {
    std::uint32_t micro_ops{}, loads{};  ///< All before it; fused micro-ops.
    Tick at{};
  };
  struct Store {
    std::uint64_t physical{};
    Tick data{};            ///< When it has its data and its address.
    Tick retired{};         ///< When its block has retired.
    std::uint32_t bytes{};  ///< 0: there was none.
    std::uint32_t reserved{};
  };
  struct Overwritten {
    std::size_t at{};
    Store store;
  };
  // Their bytes are the saved state.
  static_assert(std::has_unique_object_representations_v<Clocks> &&
                std::has_unique_object_representations_v<PipelineTallies> &&
                std::has_unique_object_representations_v<Retired> && std::has_unique_object_representations_v<Store>);

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
  Delivered decode(const TimedBlock& block);
  Delivered read_lines(const TimedBlock& block);
  Delivered deliver(const TimedBlock& block, const BlockRun& how);
  Span issue(const TimedBlock& block, const BlockRun& how, const Delivered& delivered);
  struct Issued;
  void count_issue(const Issued& i);
  void count_late(const TimedAccess& at, Tick from, Tick until);
  void count_retirement(const TimedBlock& block, const BlockRun& how, Tick before);
  Tick room_for(std::uint32_t micro_ops, std::uint32_t loads);
  Tick drained(unsigned stores) const;
  Tick leave_scheduler(Tick when, unsigned micro_ops);
  void enter_scheduler(unsigned micro_ops, Tick until);
  class Latest;
  void wait(const TimedBlock& block, Tick dispatched, const Latest& latest);
  Tick flow(const TimedBlock& block, std::span<const TimedAccess> accesses, Tick dispatched, Tick decoded);
  Tick access(const TimedBlock::Access& access, const TimedAccess& at, Tick when, Tick in_order);
  [[nodiscard]] Tick after_stores(const TimedBlock::Access& access, const TimedAccess& at, Tick when);
  void remember(const TimedAccess& store, Tick data, Tick retired);
  void drain(const TimedBlock& block);
  Tick take_ports(const TimedBlock& block, Tick dispatched);
  template <class Change>
  void each_tick(const Change& change);
  void begin_anew();
  void accept_state();

  const Microarchitecture& on_;
  Clocks clocks_;
  std::array<Retired, window> window_{};
  std::array<Store, max_stores> stores_{};  ///< The last one to each eight bytes, by their number.
  PipelineTallies tallies_;
  Tick delivered_{};    ///< For which the front end gave the block that is run.
  Tick starved_{};      ///< For which the block that is run had no micro-op to issue.
  Tick wrong_path_{};   ///< And for which those of a wrong path were issued before it.
  Tick late_stores_{};  ///< The most of its stores.
  bool is_peeking_{}, counting_{true};
  std::vector<Overwritten> overwritten_;  ///< By peek(), so that it can put them back.
};

}  // namespace vpmu::timing
