#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "vpmu/address.hpp"
#include "vpmu/cache_events.hpp"
#include "vpmu/offcore.hpp"
#include "vpmu/pebs.hpp"

namespace vpmu {

/// The guest registers as a PEBS record holds them, indexed by Slot: RFLAGS, RIP, RAX ... R15.
struct PebsRegisters {
  std::array<std::uint64_t, register_slot_count> value{};
  /// The register of a slot, Slot::rflags to Slot::r15.
  [[nodiscard]] constexpr std::uint64_t& operator[](Slot s) { return value[static_cast<unsigned>(s)]; }
  /// Its value.
  [[nodiscard]] constexpr std::uint64_t operator[](Slot s) const { return value[static_cast<unsigned>(s)]; }
};

/// Where a load found its data. Encoded per generation into the record (data source table, SDM 3B table 18-24).
/// l3_shared and l3_modified: another core was asked, and had the line unmodified or modified.
enum class HitLevel : std::uint8_t { unknown, l1, lfb, l2, l3, dram, uncached, io, l3_shared, l3_modified };
/// Number of hit levels.
inline constexpr unsigned hit_level_count = 10;
/// The L3 was hit, whoever else had the line.
constexpr bool is_l3_hit(HitLevel l) {
  return l == HitLevel::l3 || l == HitLevel::l3_shared || l == HitLevel::l3_modified;
}
/// The L2 was missed.
constexpr bool is_below_l2(HitLevel l) { return is_l3_hit(l) || l == HitLevel::dram; }

/// The size of the page that an address is in.
enum class PageSize : std::uint8_t {
  small,  ///< 4 KiB.
  large,  ///< 2 or 4 MiB.
  huge,   ///< 1 GiB.
};

/// Whether a line was in flight to the L1D because of a prefetch, and of whose.
enum class Prefetched : std::uint8_t { no, by_software, by_hardware };

/// One memory access of a retired instruction. For string and gather instructions: the last element (rule S4).
struct MemAccess {
  GuestLinear address;
  HitLevel level{HitLevel::unknown};
  std::uint16_t
      latency{};     ///< Core cycles from dispatch to data return, at least 4 (rule L7); 0 = the source cannot know.
  bool dtlb_miss{};  ///< Missed the first level TLB.
  bool stlb_miss{};  ///< And the second level.
  PageSize page{};   ///< Where it missed a TLB.
  bool locked{};
  bool split{};               ///< Crosses a cache line.
  Prefetched met_prefetch{};  ///< The line was in flight because of a prefetch.
};

/// Kinds of branches as LBR_SELECT tells them apart. SDM 3B table 17-13.
enum class BranchKind : std::uint8_t {
  none,
  conditional,
  near_rel_call,
  near_ind_call,
  near_ret,
  near_ind_jmp,
  near_rel_jmp,
  far
};
/// A near CALL, of either kind.
[[nodiscard]] constexpr bool is_near_call(BranchKind k) {
  return k == BranchKind::near_rel_call || k == BranchKind::near_ind_call;
}

/// What a branch did.
struct BranchOutcome {
  BranchKind kind{BranchKind::none};
  bool taken{};
  bool mispredicted{};
  std::uint8_t target_cpl{};
  bool to_next{};  ///< Its target is the next instruction: such a call only reads its own address and never returns.
};

/// What an instruction is, where an event asks for it (CountsDesc::instructions). SDM 1 5.1 to 5.14. `arithmetic` of
/// floating point are ADD, SUB, MUL, DIV, MIN, MAX, SQRT, RCP, RSQRT, HADD, HSUB and ADDSUB; `twice` are those that do
/// two operations in each element: DPP and the fused multiply-add.
enum class InstructionClass : std::uint8_t {
  other,
  nop,
  integer_product,     ///< MUL, IMUL, DIV, IDIV.
  x87_arithmetic,      ///< FADD, FSUB, FCOM, FMUL, FDIV, FPREM, FSQRT and their forms.
  x87_transcendental,  ///< FSIN, FYL2X and their like.
  x87_operation,       ///< The other computations: FABS, FCHS, FRNDINT, FSCALE, FXTRACT.
  x87_other,           ///< Loads, stores, exchanges and control.
  mmx,                 ///< MMX: what is none of these:
  mmx_multiply,
  mmx_shift,
  mmx_pack,
  mmx_unpack,
  mmx_logical,
  mmx_arithmetic,
  mmx_shuffle,
  sse_integer,  ///< SSE on integers: what is none of these:
  sse_integer_multiply,
  sse_integer_shift,
  sse_integer_pack,
  sse_integer_unpack,
  sse_integer_logical,
  sse_integer_arithmetic,
  sse_integer_shuffle,
  sse_packed_single,  ///< SSE moves, conversions, comparisons, logic and shuffles, here and in the next three.
  sse_scalar_single,
  sse_packed_double,
  sse_scalar_double,
  sse_packed_single_arithmetic,  ///< SSE arithmetic, here and in the next three.
  sse_scalar_single_arithmetic,
  sse_packed_double_arithmetic,
  sse_scalar_double_arithmetic,
  sse_packed_single_twice,
  sse_packed_double_twice,
  avx_packed_single_arithmetic,  ///< AVX arithmetic of 128 bits, here and in the next ones.
  avx_scalar_single_arithmetic,
  avx_packed_double_arithmetic,
  avx_scalar_double_arithmetic,
  avx_packed_single_twice,
  avx_scalar_single_twice,
  avx_packed_double_twice,
  avx_scalar_double_twice,
  avx_256,  ///< AVX of 256 bits that is no arithmetic; the arithmetic is in the next ones.
  avx_256_single_arithmetic,
  avx_256_double_arithmetic,
  avx_256_single_twice,
  avx_256_double_twice,
  prefetch_nta,  ///< PREFETCHNTA. These four retire as loads.
  prefetch_t0,
  prefetch_t1_t2,
  prefetch_w,
};
/// An MMX instruction, EMMS included.
[[nodiscard]] constexpr bool is_mmx(InstructionClass k) {
  return k >= InstructionClass::mmx && k <= InstructionClass::mmx_shuffle;
}
/// A software prefetch.
[[nodiscard]] constexpr bool is_prefetch(InstructionClass k) { return k >= InstructionClass::prefetch_nta; }
/// Number of classes.
inline constexpr unsigned instruction_class_count = static_cast<unsigned>(InstructionClass::prefetch_w) + 1;

/// A taken branch, or the delivery of an interrupt or exception: what the LBR and BTS record.
struct TakenBranch {
  GuestLinear from;    ///< The branch; of an interrupt or exception, the instruction that it came before.
  GuestLinear to;      ///< The next instruction to run.
  std::uint8_t cpl{};  ///< Privilege level that it was taken at.
  BranchOutcome what;  ///< Interrupts and exceptions are `far`.
};

/// A taken branch among instructions that passed in bulk.
struct PassedBranch {
  TakenBranch branch;
  std::uint64_t cycles{};  ///< Unhalted core cycles since the one before it, or since the first of these instructions.
};

/// The taken branches of instructions that passed in bulk, in their order. Two kinds may be left out: branches that the
/// LBR does not record (LbrFilter), whose cycles are then added to those of the next one; and, outside call-stack mode,
/// the oldest of those that it records, if at least LbrFilter::depth of them follow.
struct BranchRun {
  std::span<const PassedBranch> branches;
  std::uint64_t missing{};        ///< Number of left out branches that the LBR records.
  std::uint64_t cycles_behind{};  ///< Unhalted core cycles after the last one.
};

/// What the front end did for this instruction, for FRONTEND_RETIRED. SDM 3B table 18-58.
struct FrontendOutcome {
  bool dsb_miss{}, l1i_miss{}, l2_miss{}, itlb_miss{}, stlb_miss{};
  std::uint16_t bubble_cycles{};  ///< Consecutive cycles in which the IDQ delivered less than it could.
  std::uint8_t bubble_slots{};    ///< Empty slots in each of them, 0..4.
  /// Lines of its code, and the line of a software prefetch, that came from beyond the L2; those of them that no cache
  /// had.
  std::uint8_t llc_references{}, llc_misses{};
  /// Lines of its code that were read from the L1I, and not from decoded micro-ops.
  std::uint8_t l1i_hits{};
  /// Lines of its code that the L1I lacked; pages that the first level TLB lacked: the second level had, or lacked too.
  std::uint8_t l1i_misses{}, itlb_stlb_hits{}, itlb_walks{};
  /// Those of these pages that are large or huge.
  std::uint8_t itlb_large_stlb_hits{}, itlb_large_walks{}, itlb_huge_walks{};
  std::uint8_t baclears{};  ///< 1: a branch of which nobody knew before it was decoded.
};

/// What one retired instruction, or a macro-fused pair, did: the unit in which precise sources feed the PMU. A faulting
/// instruction has not retired (rule Q10); a REP string instruction retires once (rule C5).
struct Retirement {
  GuestLinear ip;        ///< First byte of the instruction, CS base added (rule P4).
  GuestLinear next_ip;   ///< The next instruction to run: the target of a taken branch (rule P3).
  std::uint8_t cpl{};    ///< Privilege level the instruction ran at.
  bool long_mode{true};  ///< IA-32e mode active: R8-R15 and upper halves exist (rule P22).
  bool has_load{}, has_store{};
  /// Its loads and stores besides the one that `has_load` or `has_store` says: CMPS makes two loads, a repeated string
  /// instruction one for each element. -1: it did no element.
  std::int32_t more_loads{}, more_stores{};
  bool macro_fused{};  ///< One micro-operation with the branch behind it: for UOPS_RETIRED.MACRO_FUSED.
  /// Of such a pair that retires as one (rule P2a): the bytes from its compare, at `ip`, to its branch. `next_ip`,
  /// `branch` and `registers` are the branch's, the accesses the compare's. 0: one instruction.
  std::uint8_t branch_offset{};
  InstructionClass kind{};
  MemAccess load{};
  MemAccess store{};
  BranchOutcome branch{};
  FrontendOutcome frontend{};
  std::uint16_t l1d_fills{};   ///< Lines that it brought into the L1D.
  CacheEventCounts caches{};   ///< What it caused in the caches, its own fetch among it.
  OffcoreCounts offcore{};     ///< Requests that it made, its own fetch among them.
  std::uint16_t uops{1};       ///< Retired micro-operations.
  std::uint64_t cycles{};      ///< Unhalted core cycles since the previous retirement; 0 = retired in the same cycle.
  std::uint64_t ref_cycles{};  ///< Unhalted reference cycles since the previous retirement, at the TSC's rate.
  std::uint32_t bus_cycles{};  ///< Ticks of the bus clock since the previous retirement.
  bool alone{true};            ///< The core's other thread was halted meanwhile, or there is none.
  /// A model of the pipeline counts the micro-operations that it issued, executed and retired: Pmu::settle() gets that,
  /// and here they add nothing. A record that waits for such an event is still triggered by this retirement.
  bool has_pipeline{};
  /// Registers after the instruction; only read when a record is written, may be null when nothing is armed.
  const PebsRegisters* registers{};

  /// How many instructions have retired: 1, or 2 of a pair.
  [[nodiscard]] constexpr std::uint64_t instructions() const { return branch_offset == 0 ? 1 : 2; }
};

}  // namespace vpmu
