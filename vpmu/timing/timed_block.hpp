#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "timing/timed_instruction.hpp"

namespace vpmu::timing {

/// Four at once: as many as each x86-64 CPU has in a register.
using Ticks4 [[gnu::vector_size(16)]] = Tick;
/// Nothing of the column reaches the row.
inline constexpr Tick never = -(1 << 29);

/// What a straight piece of code takes of a pipeline, made once and used each time that it runs.
///
/// Data flow is linear in max-plus arithmetic: a result is ready at the maximum, over all that it waits for, of when
/// that is ready plus a constant. So the block is a matrix with a row for each result and a column for each input.
/// Columns: when the first instruction is issued; the same if it goes no faster than the decoders; the nodes that the
/// block reads; its loads, for data that come later than from the L1.
///
/// Programs have more of them than fit the host's caches, so what differs in length stands behind the struct, and what
/// is small is so in memory. make_block() makes them.
struct TimedBlock {
  /// The most instructions, and so rows.
  static constexpr std::size_t max_instructions = 64, max_rows = node_count + 8 * max_instructions + 2;
  static constexpr std::size_t lanes = 4, max_vectors = (max_rows + lanes - 1) / lanes;

  /// A load or a store.
  struct Access {
    bool is_store{}, is_vector{}, is_locked{};
    std::uint16_t load{};    ///< Which of the loads' columns is its.
    std::int16_t latency{};  ///< Ticks, of a load that hits the L1; of an atomic access, up to its instruction's own.
  };
  /// What a run of the block adds to counts: micro-ops by the port set that is theirs, and then these.
  enum class Amount : std::uint8_t {
    slots = max_port_sets,  ///< Fused micro-ops.
    executed,               ///< Micro-ops that go through the scheduler.
    decoded,                ///< That decoders or the micro-op cache give.
    microcode,              ///< That the microcode sequencer gives.
    length_prefixes,
    divider,  ///< Ticks.
    divisions,
    unfused,  ///< Micro-ops that retire, each part of a fused one by itself.
  };
  static constexpr std::size_t amounts = 32;
  using Amounts = std::array<std::uint32_t, amounts>;
  static constexpr Tick length_prefix_cost = 3 * cycle;  ///< 248966, legacy decode pipeline.

  /// The micro-ops that wait for a column.
  struct Waiting {
    Tick half{};  ///< Half of the time until the last of them has its operands: they leave one after the other.
    std::uint16_t micro_ops{};
  };
  /// Ticks, of up to a thousand cycles: no code of one line takes as many. FNSTENV, the most of two bytes, takes 27.
  using ShortTicks = std::uint16_t;
  /// What a part of the front end does with the block, by the state in which the block before left it.
  struct FrontEnd {
    ShortTicks takes{};
    ShortTicks first{};     ///< As much of it as the first instruction takes.
    std::uint8_t leaves{};  ///< The state behind the block.
  };
  static constexpr std::size_t front_end_states = 8;
  static constexpr std::size_t first_input = 2;  ///< Column.
  /// Of a line of the micro-op cache: six micro-ops of the same 32 bytes of code. 248966, decoded ICache.
  static constexpr std::uint8_t line_places = 6;

  bool ends_in_branch{};
  Barrier barrier{};  ///< Of its last instruction. Others have none.
  bool fits_cache{};  ///< No 32 bytes of its code need more than three lines of the micro-op cache.
  std::uint16_t instructions{};
  std::uint16_t micro_ops{};  ///< Fused ones.
  std::uint16_t executed{};   ///< Those that go through the scheduler.
  std::uint16_t loads{}, stores{};
  std::uint16_t vectors{};  ///< Of four rows each: those of a column.
  std::uint16_t input_count{}, result_count{}, access_count{};
  Tick slots{};    ///< To issue them.
  Tick divider{};  ///< For which the divider is busy.
  std::array<ShortTicks, max_port_sets> ports{};
  std::array<FrontEnd, front_end_states> cached{};     ///< State: places that are taken of a line, or line_places.
  std::array<FrontEnd, front_end_states> decode{};     ///< State: decoders that are taken.
  std::array<FrontEnd, front_end_states> predecode{};  ///< State: instructions that were found in the first 16 bytes.
  alignas(Ticks4) Amounts all{};

  /// Column by column. Rows: of results; of accesses (a load's address, a store's address and data); of when everything
  /// can have retired; of when all has left the scheduler; and, if the block ends in a branch, of when that has
  /// executed.
  [[nodiscard]] std::span<const Ticks4> matrix() const {
    return {reinterpret_cast<const Ticks4*>(this + 1), (first_input + waiting_count()) * vectors};
  }
  /// For each column from first_input on.
  [[nodiscard]] std::span<const Waiting> waiting() const { return behind<Waiting>(matrix(), waiting_count()); }
  [[nodiscard]] std::span<const Access> accesses() const { return behind<Access>(waiting(), access_count); }
  [[nodiscard]] std::span<const Node> inputs() const { return behind<Node>(accesses(), input_count); }  ///< Of columns.
  [[nodiscard]] std::span<const Node> results() const { return behind<Node>(inputs(), result_count); }  ///< Of rows.

  /// Of the host's memory, what stands behind it included.
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(std::as_bytes(results()).data() + result_count -
                                    reinterpret_cast<const std::byte*>(this));
  }

  // NOLINTNEXTLINE(misc-new-delete-overloads): make_block() allocates it, with what stands behind it
  static void operator delete(void* block) { ::operator delete(block); }

 private:
  [[nodiscard]] std::size_t waiting_count() const { return std::size_t{input_count} + loads; }
  template <class T, class Before>
  [[nodiscard]] static std::span<const T> behind(std::span<const Before> before, std::size_t count) {
    static_assert(alignof(T) <= alignof(Before));
    return {reinterpret_cast<const T*>(before.data() + before.size()), count};
  }
};
using TimedBlockPtr = std::shared_ptr<const TimedBlock>;

/// The block of these instructions, at most TimedBlock::max_instructions, which begins at `rip`.
TimedBlockPtr make_block(std::span<const TimedInstruction> code, std::uint64_t rip, const Microarchitecture& on);
/// The blocks of any number of instructions.
std::vector<TimedBlockPtr> make_blocks(std::span<const TimedInstruction> code, std::uint64_t rip,
                                       const Microarchitecture& on);

}  // namespace vpmu::timing
