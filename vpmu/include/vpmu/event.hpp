#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "vpmu/bits.hpp"

namespace vpmu {

struct GenerationDesc;

/// What one occurrence of an event is: the closed vocabulary that counting sources and Retirement understand.
/// Many events of the tables map to `unmodelled`: they can be programmed and read 0.
enum class Counts : std::uint8_t {
  unmodelled,               ///< No source delivers it.
  cycles,                   ///< Unhalted core clock cycles.
  ref_cycles,               ///< Unhalted cycles at the TSC's rate (fixed counter 2).
  bus_cycles,               ///< Unhalted cycles of the bus clock (GenerationDesc::bus_clock_khz).
  instructions,             ///< Retired instructions.
  uops_retired,             ///< Retired micro-operations (or retirement slots).
  uops_issued,              ///< Issued or executed micro-operations.
  branches,                 ///< All retired branch instructions.
  branches_taken,           ///< Retired near taken branches.
  branches_not_taken,       ///< Retired not taken conditional branches.
  branches_conditional,     ///< Retired conditional branches.
  branches_call,            ///< Retired near calls.
  branches_return,          ///< Retired near returns.
  branches_far,             ///< Retired far branches.
  branches_near,            ///< Retired branches that are not far.
  mispredicts,              ///< All retired mispredicted branches.
  mispredicts_conditional,  ///< Retired mispredicted conditional branches.
  mispredicts_taken,        ///< Retired mispredicted near taken branches.
  mispredicts_not_taken,    ///< Retired mispredicted not taken conditional branches.
  mispredicts_call,         ///< Retired mispredicted near calls.
  mispredicts_return,       ///< Retired mispredicted near returns.
  loads,                    ///< Retired instructions with at least one load.
  stores,                   ///< Retired instructions with at least one store.
  memory_instructions,      ///< Retired instructions with at least one load or store.
  locked_loads,             ///< Retired locked loads.
  uncached_loads,           ///< Retired loads from uncacheable memory.
  split_loads,              ///< Retired loads across a cache line.
  split_stores,             ///< Retired stores across a cache line.
  dtlb_miss_loads,          ///< Retired loads that missed the first level TLB.
  dtlb_miss_stores,         ///< Retired stores that missed the first level TLB.
  stlb_miss_loads,          ///< Retired loads that missed the second level TLB.
  stlb_miss_stores,         ///< Retired stores that missed the second level TLB.
  l1_hit,                   ///< Retired loads served by the L1D.
  l1_miss,                  ///< Retired loads that missed the L1D.
  lfb_hit,                  ///< Retired loads that hit a fill buffer.
  l2_hit,                   ///< Retired loads served by the L2.
  l2_miss,                  ///< Retired loads that missed the L2.
  l3_hit,                   ///< Retired loads served by the L3.
  l3_hit_unshared,          ///< Of l3_hit those for which no other core had to be asked,
  l3_hit_shared,            ///< those of lines that another core had unchanged,
  l3_hit_modified,          ///< those of lines that another core had changed,
  l3_hit_other_core,        ///< and both of these.
  l3_miss,                  ///< Retired loads that missed the L3.
  llc_references,           ///< Last level cache accesses (2EH/4FH).
  llc_misses,               ///< Last level cache misses (2EH/41H).
  l1d_fills,                ///< Lines that were brought into the L1D (51H/01H).
  l1i_misses,               ///< Lines of code that the L1I lacked.
  itlb_stlb_hits,           ///< Pages of code that the first level TLB lacked, and the second had.
  itlb_walks,               ///< Pages of code that both levels lacked.
  itlb_misses,              ///< Retired instructions whose fetch missed the first level TLB.
  nops,                     ///< Retired no-operations. Here and below: instructions of one InstructionClass.
  x87_operations,           ///< Retired x87 computations.
  mmx,                      ///< Retired MMX instructions.
  sse_packed_single,        ///< Retired SSE instructions on packed single precision,
  sse_scalar_single,        ///< on one number of single precision,
  sse_packed_double,        ///< on packed double precision,
  sse_scalar_double,        ///< on one number of double precision,
  sse_integer,              ///< on integers.
  macro_fused,  ///< Retired pairs of a compare and the conditional branch after it that were one micro-operation.
  never,        ///< Nothing here can cause it: transactions without TSX, another package's caches and memory. Always 0.
  load_latency,  ///< Tagged loads over MSR_PEBS_LD_LAT_THRESHOLD (rules L1 to L12).
  frontend,      ///< FRONTEND_RETIRED, selected by MSR_PEBS_FRONTEND.
  offcore,       ///< Off-core responses that MSR_OFFCORE_RSP_0 selects.
  offcore_1,     ///< Those that MSR_OFFCORE_RSP_1 selects.
};

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
  PebsAbility pebs{PebsAbility::no};
  bool data_la{};
  bool l1_hit_indication{};
};

/// Looks up what a programmed event counts and whether it can be precise. The code and umask select the row; CMASK, INV
/// and EDGE change how it is counted (rule C4), not what: `counts` is the plain event's, the other members hold when
/// any row of the code and umask says so (rule P18: a form with INV and CMASK is as precise as its plain event). An
/// unknown code, and code 0, is `unmodelled` and not precise. Never fails, no allocation; a binary search, then the
/// rows of that code and umask.
EventClass classify(const GenerationDesc& generation, const EventSpec& spec);

/// Finds an event by its public name, or null. Linear in the table.
const EventDesc* find_event(const GenerationDesc& generation, std::string_view name);

}  // namespace vpmu
