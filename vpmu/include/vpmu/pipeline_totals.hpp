#pragma once
#include <array>
#include <cstdint>

#include "vpmu/set_of.hpp"

// What a model of a core's pipeline tells a source, and how a counter counts it.
namespace vpmu {

/// What a pipeline has some of in each cycle: micro-ops at a place, misses that are under way, or 1 in a cycle of that
/// kind and 0 in any other. Intel's events are such quantities, most with CMASK, INV or EDGE. 248966, appendix B.
enum class PipelineQuantity : std::uint8_t {
  issued,           ///< Fused micro-ops that the back end took; those of a wrong path, too.
  executed,         ///< Micro-ops that began to execute, unfused; those of a wrong path, too.
  port_0,           ///< Those of them on this port, here and in the next seven.
  port_1,           ///< The same.
  port_2,           ///< The same.
  port_3,           ///< The same.
  port_4,           ///< The same.
  port_5,           ///< The same.
  port_6,           ///< The same.
  port_7,           ///< The same.
  not_delivered,    ///< Micro-ops that the back end would have taken and the front end did not have.
  retired,          ///< Fused micro-ops that retired: retirement slots that were used.
  retired_unfused,  ///< The same, each part of a micro-fused one by itself.
  // In a cycle the queue in front of the back end is filled from one of these alone.
  from_dsb,             ///< Micro-ops from the micro-op cache.
  from_mite,            ///< From the legacy decoders.
  microcode_from_dsb,   ///< From the microcode sequencer, for an instruction that came from the micro-op cache,
  microcode_from_mite,  ///< and for one that came from the decoders.
  from_lsd,             ///< From the loop buffer.
  dsb_to_mite,          ///< Cycles lost by switches from the micro-op cache to the decoders.
  prefix_stall,         ///< Cycles in which a length-changing prefix held up the predecoder.
  recovery,             ///< Cycles in which no micro-op could be issued after a misprediction or a machine clear.
  resteer,              ///< Cycles in which the back end waited for the first micro-op of the right path after it.
  // Cycles in which there were micro-ops to issue, and the back end had no room.
  resource_stall,    ///< For whatever reason.
  scheduler_full,    ///< The scheduler (RS) had none.
  reorder_full,      ///< The reorder buffer (ROB) had none.
  store_queue_full,  ///< The store buffer (SB) had none.
  // Cycles of the scheduler and of execution.
  scheduler_empty,     ///< The scheduler had no micro-op.
  scheduler_waits,     ///< It had some, and none of them began to execute.
  stores_hold_up,      ///< The store buffer was full, and no load was under way.
  loads_pending,       ///< Loads under way.
  l1d_misses_pending,  ///< Those of them that missed the L1D,
  l2_misses_pending,   ///< the L2,
  l3_misses_pending,   ///< and the L3.
  // Cycles in which no micro-op began to execute while there was one of these.
  load_stall,           ///< A load under way.
  l1d_miss_stall,       ///< One that missed the L1D,
  l2_miss_stall,        ///< the L2,
  l3_miss_stall,        ///< or the L3.
  dividing,             ///< Cycles in which the divider was busy; it begins with each division.
  divider_uops,         ///< Micro-ops that the divider began.
  blocked_forwards,     ///< Loads that an earlier store overlapped and could not forward to.
  aliased_loads,        ///< Loads that were held up by an earlier store whose address is equal in the low 12 bits.
  machine_clear,        ///< Cycles of machine clears; it begins with each clear.
  self_modifying_code,  ///< Machine clears because of a store to code.
  // Lines and page walks under way.
  l1d_lines_pending,         ///< Lines on their way to the L1D because loads missed it.
  fill_buffers_full,         ///< Cycles in which a load waited for a fill buffer.
  demand_reads_outstanding,  ///< Reads of data that are under way beyond the L2, but those of its prefetchers,
  memory_reads_outstanding,  ///< those of them that missed the L3, too;
  reads_outstanding,         ///< and with those of its prefetchers.
  rfos_outstanding,          ///< Reads for ownership beyond the L2.
  code_reads_outstanding,    ///< Reads of code beyond the L2.
  load_walks,                ///< Page walks for loads,
  store_walks,               ///< for stores,
  code_walks,                ///< and for code.
};
/// Number of quantities.
inline constexpr unsigned pipeline_quantity_count = static_cast<unsigned>(PipelineQuantity::code_walks) + 1;

/// A set of quantities.
using PipelineQuantities = SetOf<PipelineQuantity>;
static_assert(pipeline_quantity_count < 64);
/// All that there are.
inline constexpr PipelineQuantities all_pipeline_quantities = PipelineQuantities::first(pipeline_quantity_count);

/// What a pipeline has had of a quantity since it began.
struct PipelineTotal {
  /// A quantity is compared with CMASK up to here: more micro-ops are nowhere in one cycle. More misses may be under
  /// way, and then a CMASK above it is not met.
  static constexpr unsigned max_threshold = 8;
  std::uint64_t sum{};                                  ///< Over all cycles.
  std::array<std::uint64_t, max_threshold> at_least{};  ///< [n - 1]: cycles in which there were n or more.
  std::uint64_t beginnings{};                           ///< Cycles in which there was some, and none in the one before.

  /// `cycles` cycles with `amount` in each, which begin a run of such cycles if `begins`.
  constexpr void add(std::uint64_t amount, std::uint64_t cycles, bool begins) {
    sum += amount * cycles;
    for (unsigned n = 0; n < max_threshold && n < amount; ++n) at_least[n] += cycles;
    beginnings += std::uint64_t{begins && amount != 0 && cycles != 0};
  }
  friend bool operator==(const PipelineTotal&, const PipelineTotal&) = default;
};

/// All that a pipeline tells: its cycles, and each quantity. Each number only grows.
struct PipelineTotals {
  std::uint64_t cycles{};  ///< Unhalted core cycles.
  std::array<PipelineTotal, pipeline_quantity_count> quantities{};
  /// One quantity, to be changed.
  constexpr PipelineTotal& operator[](PipelineQuantity q) { return quantities[static_cast<unsigned>(q)]; }
  /// One quantity.
  constexpr const PipelineTotal& operator[](PipelineQuantity q) const { return quantities[static_cast<unsigned>(q)]; }
  friend bool operator==(const PipelineTotals&, const PipelineTotals&) = default;
};

/// What an event has in each cycle, made of quantities of which at most one is not 0 in any cycle.
struct PipelinePattern {
  /// How it is made.
  enum class Form : std::uint8_t {
    amount,   ///< Their sum.
    some,     ///< 1 in a cycle with some of it.
    exactly,  ///< 1 in a cycle with `number` of it.
  };
  PipelineQuantities of{};  ///< Empty for an event that no pipeline tells.
  Form form{};
  std::uint8_t number{};
  bool by_umask{};  ///< Not 1 but the umask: CYCLE_ACTIVITY, whose CMASK is its umask. SDM 3B table 19-9.
};

struct EventSpec;

/// What a counter with this select has counted of the event when the totals are these: rule C4. It only grows, so that
/// a source counts by differences. How often a condition begins is known for CMASK of 1 and of 0; for others it is
/// estimated as if each cycle met it by chance.
[[nodiscard]] std::uint64_t pipeline_count(const PipelinePattern& event, const EventSpec& select,
                                           const PipelineTotals& totals);

}  // namespace vpmu
