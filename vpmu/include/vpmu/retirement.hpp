#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "vpmu/address.hpp"
#include "vpmu/offcore.hpp"

namespace vpmu {

/// The 64-bit fields of a PEBS record, by position. Formats 0 to 3 are prefixes of one another. SDM 3B tables 18-23,
/// 18-44, 18-55.
enum class Slot : std::uint8_t {
  rflags,
  rip,
  rax,
  rbx,
  rcx,
  rdx,
  rsi,
  rdi,
  rbp,
  rsp,
  r8,
  r9,
  r10,
  r11,
  r12,
  r13,
  r14,
  r15,
  status,         ///< 90H: GLOBAL_STATUS (formats 1, 2) or APPLICABLE_COUNTERS (format 3).
  data_address,   ///< 98H.
  data_source,    ///< A0H.
  latency,        ///< A8H, core cycles.
  eventing_ip,    ///< B0H, formats 2 and 3.
  tx_abort_info,  ///< B8H, formats 2 and 3.
  tsc,            ///< C0H, format 3.
};
/// Number of slots.
inline constexpr unsigned slot_count = 25;
/// Number of those that hold registers: the first ones.
inline constexpr unsigned register_slot_count = 18;

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

/// One memory access of a retired instruction. For string and gather instructions: the last element (rule S4).
struct MemAccess {
  GuestLinear address;
  HitLevel level{HitLevel::unknown};
  std::uint16_t
      latency{};     ///< Core cycles from dispatch to data return, at least 4 (rule L7); 0 = the source cannot know.
  bool dtlb_miss{};  ///< Missed the first level TLB.
  bool stlb_miss{};  ///< And the second level.
  bool locked{};
  bool split{};  ///< Crosses a cache line.
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

/// What an instruction is, where an event asks for it (Counts::nops to Counts::sse_integer).
enum class InstructionClass : std::uint8_t {
  other,
  nop,
  x87_operation,
  mmx,
  sse_packed_single,
  sse_scalar_single,
  sse_packed_double,
  sse_scalar_double,
  sse_integer,
};

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
  /// Lines of its code that came from beyond the L2, and those of them that no cache had.
  std::uint8_t llc_references{}, llc_misses{};
  /// Lines of its code that the L1I lacked; pages that the first level TLB lacked: the second level had, or lacked too.
  std::uint8_t l1i_misses{}, itlb_stlb_hits{}, itlb_walks{};
};

/// What one retired instruction did: the unit in which precise sources feed the PMU. A faulting instruction has not
/// retired (rule Q10); a REP string instruction retires once (rule C5).
struct Retirement {
  GuestLinear ip;        ///< First byte of the instruction, CS base added (rule P4).
  GuestLinear next_ip;   ///< The next instruction to run: the target of a taken branch (rule P3).
  std::uint8_t cpl{};    ///< Privilege level the instruction ran at.
  bool long_mode{true};  ///< IA-32e mode active: R8-R15 and upper halves exist (rule P22).
  bool has_load{}, has_store{};
  bool macro_fused{};  ///< Fuses with the following branch (option macro_fusion, rule P2a; UOPS_RETIRED.MACRO_FUSED).
  InstructionClass kind{};
  MemAccess load{};
  MemAccess store{};
  BranchOutcome branch{};
  FrontendOutcome frontend{};
  std::uint16_t l1d_fills{};   ///< Lines that it brought into the L1D.
  OffcoreCounts offcore{};     ///< Requests that it made, its own fetch among them.
  std::uint16_t uops{1};       ///< Retired micro-operations.
  std::uint64_t cycles{};      ///< Unhalted core cycles since the previous retirement; 0 = retired in the same cycle.
  std::uint64_t ref_cycles{};  ///< Unhalted reference cycles since the previous retirement, at the TSC's rate.
  std::uint32_t bus_cycles{};  ///< Ticks of the bus clock since the previous retirement.
  /// Registers after the instruction; only read when a record is written, may be null when nothing is armed.
  const PebsRegisters* registers{};
};

}  // namespace vpmu
