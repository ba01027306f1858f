#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "vpmu/bits.hpp"

namespace vpmu {

struct GenerationDesc;

/// What one occurrence of an event is: the closed vocabulary that counting sources and Retirement understand.
/// Many events of the tables map to `unmodelled`: they can be programmed and read 0.
enum class Counts : std::uint8_t {
  unmodelled,                     ///< No source delivers it.
  cycles,                         ///< Unhalted core clock cycles.
  ref_cycles,                     ///< Unhalted cycles at the TSC's rate (fixed counter 2).
  bus_cycles,                     ///< Unhalted cycles of the bus clock (GenerationDesc::bus_clock).
  bus_cycles_alone,               ///< The same while the core's other thread is halted.
  instructions,                   ///< Retired instructions.
  uops_retired,                   ///< Retired micro-operations.
  slots_retired,                  ///< Retirement slots: a fused micro-operation takes one.
  uops_issued,                    ///< Issued micro-operations.
  uops_executed,                  ///< Executed micro-operations.
  branches,                       ///< All retired branch instructions.
  branches_taken,                 ///< Retired near taken branches.
  branches_not_taken,             ///< Retired not taken conditional branches.
  branches_conditional,           ///< Retired conditional branches.
  branches_conditional_taken,     ///< Those of them that were taken.
  branches_jump_direct,           ///< Retired near jumps whose target is in the instruction.
  branches_jump_indirect,         ///< Retired near jumps whose target is not.
  branches_not_call,              ///< Retired conditional branches and near jumps.
  branches_call,                  ///< Retired near calls.
  branches_call_direct,           ///< Retired near calls whose target is in the instruction.
  branches_call_indirect,         ///< Retired near calls whose target is not.
  branches_return,                ///< Retired near returns.
  branches_far,                   ///< Retired far branches.
  branches_near,                  ///< Retired branches that are not far.
  mispredicts,                    ///< All retired mispredicted branches.
  mispredicts_conditional,        ///< Retired mispredicted conditional branches.
  mispredicts_taken,              ///< Retired mispredicted near taken branches.
  mispredicts_not_taken,          ///< Retired mispredicted not taken conditional branches.
  mispredicts_conditional_taken,  ///< The same of the kinds above.
  mispredicts_jump_direct,
  mispredicts_jump_indirect,
  mispredicts_not_call,
  mispredicts_call,  ///< Retired mispredicted near calls.
  mispredicts_call_direct,
  mispredicts_call_indirect,
  mispredicts_indirect,    ///< Retired mispredicted indirect near jumps and calls.
  mispredicts_return,      ///< Retired mispredicted near returns.
  baclears,                ///< Branches of which nobody knew before they were decoded: the front end began anew.
  loads,                   ///< Retired instructions with at least one load.
  stores,                  ///< Retired instructions with at least one store.
  load_uops,               ///< Retired loads: each one of an instruction that makes several.
  store_uops,              ///< Retired stores: each one of an instruction that makes several.
  memory_instructions,     ///< Retired instructions with at least one load or store.
  locked_loads,            ///< Retired locked loads.
  locked_stores,           ///< Retired locked stores.
  uncached_loads,          ///< Retired loads from uncacheable memory.
  split_loads,             ///< Retired loads across a cache line.
  split_stores,            ///< Retired stores across a cache line.
  dtlb_miss_loads,         ///< Retired loads that missed the first level TLB.
  dtlb_miss_stores,        ///< Retired stores that missed the first level TLB.
  dtlb_misses,             ///< Retired loads and stores that missed the first level TLB.
  dtlb_stlb_hits,          ///< Retired loads and stores that missed the first level TLB and hit the second.
  dtlb_walks,              ///< Retired loads and stores that missed both levels.
  dtlb_stlb_hit_loads,     ///< Retired loads that missed the first level TLB and hit the second.
  dtlb_stlb_hit_stores,    ///< Retired stores that did.
  stlb_miss_loads,         ///< Retired loads that missed the second level TLB.
  stlb_miss_stores,        ///< Retired stores that missed the second level TLB.
  stlb_miss_loads_small,   ///< stlb_miss_loads of pages of 4 KiB.
  stlb_miss_loads_large,   ///< stlb_miss_loads of pages of 2 or 4 MiB.
  stlb_miss_loads_huge,    ///< stlb_miss_loads of pages of 1 GiB.
  stlb_miss_stores_small,  ///< stlb_miss_stores of pages of 4 KiB; the next ones of the larger.
  stlb_miss_stores_large,
  stlb_miss_stores_huge,
  dtlb_walks_large,           ///< dtlb_walks of pages of 2 or 4 MiB.
  dtlb_stlb_hit_loads_small,  ///< dtlb_stlb_hit_loads of pages of 4 KiB; the next one of the larger.
  dtlb_stlb_hit_loads_large,
  dtlb_stlb_hit_stores_small,  ///< dtlb_stlb_hit_stores of pages of 4 KiB; the next one of the larger.
  dtlb_stlb_hit_stores_large,
  l1_hit,                ///< Retired loads served by the L1D.
  l1_miss,               ///< Retired loads that missed the L1D.
  lfb_hit,               ///< Retired loads that hit a fill buffer.
  l2_hit,                ///< Retired loads served by the L2.
  l2_miss,               ///< Retired loads that missed the L2.
  l3_hit,                ///< Retired loads served by the L3.
  l3_hit_unshared,       ///< l3_hit for which no other core had to be asked.
  l3_hit_shared,         ///< l3_hit of lines that another core had unchanged.
  l3_hit_modified,       ///< l3_hit of lines that another core had changed.
  l3_hit_other_core,     ///< l3_hit_shared and l3_hit_modified.
  l3_miss,               ///< Retired loads that missed the L3.
  llc_references,        ///< Last level cache accesses (2EH/4FH).
  llc_misses,            ///< Last level cache misses (2EH/41H).
  l1d_fills,             ///< Lines that were brought into the L1D (51H/01H).
  l1i_misses,            ///< Lines of code that the L1I lacked.
  l1i_hits,              ///< Lines of code that were read from the L1I, and not from decoded micro-ops.
  l1i_reads,             ///< Both of these.
  itlb_stlb_hits,        ///< Pages of code that the first level TLB lacked, and the second had.
  itlb_walks,            ///< Pages of code that both levels lacked.
  itlb_walks_small,      ///< itlb_walks of pages of 4 KiB.
  itlb_walks_large,      ///< itlb_walks of pages of 2 or 4 MiB.
  itlb_walks_huge,       ///< itlb_walks of pages of 1 GiB.
  itlb_stlb_hits_small,  ///< itlb_stlb_hits of pages of 4 KiB; the next one of the larger.
  itlb_stlb_hits_large,
  itlb_any_misses,      ///< Pages of code that the first level TLB lacked.
  itlb_misses,          ///< Retired instructions whose fetch missed the first level TLB.
  l2_data_reads,        ///< Down to l2_misses: requests to the L2, by CacheEvent. Reads of data,
  l2_data_read_hits,    ///< those of them that hit it,
  l2_data_read_misses,  ///< and those that missed it. These are requests that leave the core, too.
  l2_rfos,              ///< The same of reads for ownership,
  l2_rfo_hits,
  l2_rfo_misses,
  l2_code_reads,  ///< and of reads of code.
  l2_code_read_hits,
  l2_code_read_misses,
  l2_demands,        ///< All of these,
  l2_demand_misses,  ///< those of them that missed the L2.
  l2_prefetches,     ///< Lines that its prefetchers asked for; the next ones as above.
  l2_prefetch_hits,
  l2_prefetch_misses,
  l2_data_requests,     ///< Reads of data, and prefetches.
  l2_references,        ///< All requests: l2_demands and l2_prefetches.
  l2_misses,            ///< Those of them that missed the L2.
  l2_fills,             ///< Lines that were brought into the L2, those of page walks among them.
  reads_off_core,       ///< Reads of data that left the core, those of prefetchers among them.
  any_reads_off_core,   ///< The same, and reads of code.
  l1d_prefetches,       ///< Lines that the L1D's prefetchers asked for,
  l1d_prefetch_misses,  ///< those of them that the L1D lacked.
  data_walk_l1d,        ///< Entries that page walks for data read from the L1D; the next ones from beyond.
  data_walk_l2,
  data_walk_l3,
  data_walk_memory,
  code_walk_l1d,  ///< The same of page walks for code.
  code_walk_l2,
  code_walk_l3,
  code_walk_memory,
  nops,                    ///< Retired no-operations. Here and below: instructions of some InstructionClass.
  x87_operations,          ///< Retired x87 computations.
  x87_uops,                ///< Retired x87 instructions.
  mmx,                     ///< Retired MMX instructions.
  sse_packed_single,       ///< Retired SSE instructions on packed single precision.
  sse_scalar_single,       ///< Retired SSE instructions on one number of single precision.
  sse_packed_double,       ///< Retired SSE instructions on packed double precision.
  sse_scalar_double,       ///< Retired SSE instructions on one number of double precision.
  sse_integer,             ///< Retired SSE instructions on integers.
  avx_256,                 ///< Retired AVX instructions of 256 bits.
  fp_x87,                  ///< Arithmetic of x87, and products and quotients of integers.
  fp_scalar_single,        ///< SSE and AVX arithmetic on one number of single precision. Here and below: fused and dot
                           ///< products count twice.
  fp_scalar_double,        ///< SSE and AVX arithmetic on one number of double precision.
  fp_128_single,           ///< SSE and AVX arithmetic on 128 bits of single precision.
  fp_128_double,           ///< SSE and AVX arithmetic on 128 bits of double precision.
  fp_256_single,           ///< AVX arithmetic on 256 bits of single precision.
  fp_256_double,           ///< AVX arithmetic on 256 bits of double precision.
  fp_scalar,               ///< SSE and AVX arithmetic on one number.
  fp_packed,               ///< SSE and AVX arithmetic on several numbers.
  fp_4_flops,              ///< SSE and AVX arithmetic on four numbers: 128 bits of single or 256 of double precision.
  fp_single,               ///< SSE and AVX arithmetic of single precision.
  fp_double,               ///< SSE and AVX arithmetic of double precision.
  fp_any,                  ///< All SSE and AVX arithmetic.
  mmx_operations,          ///< MMX computations, shuffles and moves between registers: the sum of the next seven.
  mmx_multiply,            ///< MMX products.
  mmx_shift,               ///< MMX shifts.
  mmx_pack,                ///< MMX packing.
  mmx_unpack,              ///< MMX unpacking.
  mmx_logical,             ///< MMX logic.
  mmx_arithmetic,          ///< MMX arithmetic and comparisons.
  mmx_shuffle,             ///< MMX shuffles and moves.
  sse_integer_operations,  ///< SSE on integers, as the MMX events above.
  sse_integer_multiply,
  sse_integer_shift,
  sse_integer_pack,
  sse_integer_unpack,
  sse_integer_logical,
  sse_integer_arithmetic,
  sse_integer_shuffle,
  prefetches_nta,               ///< Retired PREFETCHNTA.
  prefetches_t0,                ///< Retired PREFETCHT0.
  prefetches_t1_t2,             ///< Retired PREFETCHT1 and PREFETCHT2.
  prefetches_w,                 ///< Retired PREFETCHW.
  prefetches,                   ///< All retired software prefetches.
  loads_met_prefetch,           ///< Retired loads of a line that was in flight because of a software prefetch,
  loads_met_hardware_prefetch,  ///< or because of one of the L1D's prefetchers.
  macro_fused,  ///< Retired pairs of a compare and the conditional branch after it that were one micro-operation.
  // Down to l3_miss_stall_cycles: what only a model of the pipeline tells, most by the PipelineQuantity of like name.
  uops_on_port_0,  ///< Micro-operations that began to execute on port 0; the next seven of the others.
  uops_on_port_1,
  uops_on_port_2,
  uops_on_port_3,
  uops_on_port_4,
  uops_on_port_5,
  uops_on_port_6,
  uops_on_port_7,
  slots_not_delivered,  ///< Slots that the front end left empty.
  uops_from_dsb,        ///< Micro-operations from the micro-op cache; the next ones from decoders and loop buffer.
  uops_from_mite,
  uops_from_lsd,
  microcode_from_dsb,  ///< Of the microcode sequencer, for an instruction from the micro-op cache; from the decoders.
  microcode_from_mite,
  microcode,          ///< Both of these.
  all_uops_from_dsb,  ///< uops_from_dsb and microcode_from_dsb; the next one of the decoders.
  all_uops_from_mite,
  uops_delivered,  ///< All of these but uops_from_lsd.
  dsb_to_mite_cycles,
  prefix_stall_cycles,
  recovery_cycles,
  resteer_cycles,
  resource_stall_cycles,
  scheduler_full_cycles,
  reorder_full_cycles,
  store_queue_full_cycles,
  scheduler_empty_cycles,
  scheduler_waits_cycles,
  stores_hold_up_cycles,
  dividing_cycles,
  divider_uops,
  blocked_forwards,
  aliased_loads,
  machine_clear_cycles,
  self_modifying_code,
  l1d_lines_pending,  ///< Lines on their way to the L1D because loads missed it, added over all cycles.
  fill_buffers_full_cycles,
  demand_reads_outstanding,  ///< Reads of data that left the core and are under way, added over all cycles,
  memory_reads_outstanding,  ///< those of them that missed the L3;
  reads_outstanding,         ///< demand_reads_outstanding and those of the L2's prefetchers.
  rfos_outstanding,          ///< The same of reads for ownership,
  code_reads_outstanding,    ///< and of reads of code.
  load_walk_cycles,          ///< Page walks for loads under way, added over all cycles; the next ones for others.
  store_walk_cycles,
  data_walk_cycles,  ///< Both of these.
  code_walk_cycles,
  one_uop_cycles,  ///< Cycles in which one micro-operation began to execute; the next ones of more.
  two_uop_cycles,
  three_uop_cycles,
  four_uop_cycles,
  stall_cycles,  ///< Cycles in which none did. Of CYCLE_ACTIVITY, as all below: a cycle counts the umask.
  load_cycles,   ///< Cycles with a load under way; the next ones with one that missed a cache.
  l1d_miss_cycles,
  l2_miss_cycles,
  l3_miss_cycles,
  load_stall_cycles,  ///< Those of them in which no micro-operation began to execute; the next ones likewise.
  l1d_miss_stall_cycles,
  l2_miss_stall_cycles,
  l3_miss_stall_cycles,
  never,  ///< Nothing here can cause it: transactions without TSX, another package's caches and memory. Always 0.
  load_latency,  ///< Tagged loads over MSR_PEBS_LD_LAT_THRESHOLD (rules L1 to L12).
  frontend,      ///< FRONTEND_RETIRED, selected by MSR_PEBS_FRONTEND.
  offcore,       ///< Off-core responses that MSR_OFFCORE_RSP_0 selects.
  offcore_1,     ///< Those that MSR_OFFCORE_RSP_1 selects.
  several,       ///< The union of the kinds in EventClass::kinds.
};

/// A few kinds of events.
class CountsList {
 public:
  static constexpr unsigned max = 8;
  /// Adds one; false: it is full.
  constexpr bool add(Counts counts) {
    if (size_ == max) return false;
    kinds_[size_++] = counts;
    return true;
  }
  /// All of them.
  [[nodiscard]] constexpr std::span<const Counts> all() const { return std::span{kinds_}.first(size_); }
  friend bool operator==(const CountsList&, const CountsList&) = default;

 private:
  std::array<Counts, max> kinds_{};
  std::uint8_t size_{};
};

/// Whether the kind counts the bus clock, or a part of it.
[[nodiscard]] constexpr bool is_bus_clock(Counts counts) {
  return counts == Counts::bus_cycles || counts == Counts::bus_cycles_alone;
}

/// Whether one of the off-core response MSRs selects what the kind counts.
[[nodiscard]] constexpr bool is_offcore(Counts counts) {
  return counts == Counts::offcore || counts == Counts::offcore_1;
}

/// Whether an event can trigger a PEBS record.
enum class PebsAbility : std::uint8_t {
  no,        ///< Arms and never triggers (rule P19).
  yes,       ///< May be precise.
  only,      ///< Has a meaning only with PEBS.
  disputed,  ///< Documents disagree: Intel's event list says no, libpfm4 or Linux yes. Here it may be precise.
};

/// The bits of EventDesc::counters that stand for the general-purpose counters PMC0..7.
inline constexpr std::uint16_t pmc_mask = 0x0FF;
/// Those that stand for the fixed counters 0..2.
inline constexpr std::uint16_t fixed_mask = 0x700;

/// One event of a generation's table: the plain event of a code and umask, or a form of it that has a name of its own.
/// A table is sorted by (code, umask, cmask, inv, edge, any, msr_value, name), so the plain form comes first. Rows with
/// code 0 list what the fixed counters count; PERFEVTSEL cannot select them.
struct EventDesc {
  std::string_view name;   ///< The public name, for example "INST_RETIRED.PREC_DIST".
  std::uint8_t code;       ///< PERFEVTSEL[7:0].
  std::uint8_t umask;      ///< PERFEVTSEL[15:8].
  std::uint8_t cmask;      ///< PERFEVTSEL[31:24] that the name implies.
  bool inv, edge, any;     ///< PERFEVTSEL bits that the name implies.
  std::uint16_t counters;  ///< Bit i: may run on PMCi, where it exists; bit 8+n: fixed counter n. PEBS: PMC0..3 (O5).
  PebsAbility pebs;
  bool data_la;                ///< The record carries the data address (rule S3).
  bool l1_hit_indication;      ///< The record's data source bit 0 says whether a store hit the L1D (rule S3).
  std::uint32_t msr_index;     ///< Extra MSR that selects the event, 0 = none. Off-core: 1A6H; code BBH takes 1A7H.
  std::uint64_t msr_value;     ///< Its value.
  std::uint64_t sample_after;  ///< Suggested sampling period.
  Counts counts;               ///< The plain event's; the same in all rows of a code and umask.
};

/// A decoded IA32_PERFEVTSELx. SDM 3B figure 18-6, 18-40.
struct EventSpec {
  std::uint8_t code{};
  std::uint8_t umask{};
  std::uint8_t cmask{};
  bool usr{}, os{}, edge{}, any{}, inv{};
  bool in_tx{}, in_txcp{};
  friend bool operator==(const EventSpec&, const EventSpec&) = default;
};

/// What the core knows of a programmed event select.
struct EventClass {
  Counts counts{Counts::unmodelled};
  CountsList kinds{};  ///< Of Counts::several; else empty.
  PebsAbility pebs{PebsAbility::no};
  bool data_la{};
  bool l1_hit_indication{};
};

/// Looks up what a programmed event counts and whether it can be precise. The code and umask select the row. An umask
/// that has none is the union of the rows whose bits make it up, if all that make it up count: what several of them
/// have in common counts once. CMASK, INV and EDGE change how it is counted (rule C4), not what: `counts` is the plain
/// event's, the other members hold when any row of the code and umask says so (rule P18: a form with INV and CMASK is
/// as precise as its plain event). An unknown code, and code 0, is `unmodelled` and not precise. Never fails, no
/// allocation; a binary search, then the rows of that code and umask.
EventClass classify(const GenerationDesc& generation, const EventSpec& spec);

/// Finds an event by its public name, or null. Linear in the table.
const EventDesc* find_event(const GenerationDesc& generation, std::string_view name);

}  // namespace vpmu
