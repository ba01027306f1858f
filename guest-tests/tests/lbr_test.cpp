// Last branch records. SDM 3B 17.4.8, 17.9, 17.10; rules Z5, Z11, Z12.
#include "gt/asm.hpp"
#include "gt/branches.hpp"
#include "gt/cpu.hpp"
#include "gt/interrupts.hpp"
#include "gt/pmu.hpp"
#include "gt/sampling.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
namespace dbg = gt::pmu::reg::debugctl;
std::uint64_t depth() { return gt::cpu::facts().lbr_depth; }

struct Branch {
  std::uint64_t from, to;
};

/// Branches recorded while DEBUGCTL.LBR is set: JMP, CALL, RET, in known places.
struct ThreeBranches {
  std::uint64_t jump, call, function, after_call;
};

ThreeBranches run_three_branches() {
  ThreeBranches at{};
  asm volatile(
      "lea 1f(%%rip), %[jump]\n lea 2f(%%rip), %[call]\n lea 4f(%%rip), %[function]\n lea 3f(%%rip), %[after]\n"
      "mov $1, %%eax\n xor %%edx, %%edx\n mov $0x1D9, %%ecx\n wrmsr\n"
      "1: jmp 2f\n nop\n"
      "4: ret\n"
      "2: call 4b\n"
      "3: xor %%eax, %%eax\n xor %%edx, %%edx\n wrmsr\n"
      : [jump] "=&r"(at.jump), [call] "=&r"(at.call), [function] "=&r"(at.function), [after] "=&r"(at.after_call)
      :
      : "rax", "rcx", "rdx", "memory", "cc");
  return at;
}

std::uint64_t tos() { return gt::rdmsr(pmu::msr::MSR_LASTBRANCH_TOS); }
std::uint32_t place(std::uint64_t back) { return static_cast<std::uint32_t>((tos() + depth() - back) % depth()); }

/// PERF_CAPABILITIES[5:0] = 5: flags are in MSR_LBR_INFO_i. Before that they are above the address in FROM. SDM
/// 3B 17.4.8.1.
bool has_info() { return pmu::reg::perf_capabilities::LBR_FMT::get(gt::cpu::perf_capabilities()) == 5; }

/// The entry that is `back` places below the top, without flags.
Branch recorded(std::uint64_t back) {
  const std::uint64_t from = gt::rdmsr(pmu::msr::MSR_LASTBRANCH_0_FROM_IP + place(back));
  const std::uint64_t address =
      has_info() ? from : static_cast<std::uint64_t>(static_cast<std::int64_t>(from << 1) >> 1);
  return {address, gt::rdmsr(pmu::msr::MSR_LASTBRANCH_0_TO_IP + place(back))};
}
bool mispredicted(std::uint64_t back) {
  const std::uint64_t flags =
      gt::rdmsr((has_info() ? pmu::msr::MSR_LBR_INFO_0 : pmu::msr::MSR_LASTBRANCH_0_FROM_IP) + place(back));
  return (flags & vpmu::bit(63)) != 0;
}

std::uint64_t address(const char* label) { return reinterpret_cast<std::uint64_t>(label); }

GT_TEST(Lbr_RecordsTakenBranchesInOrder, gt::need_exact_counts) {
  const std::uint64_t before = gt::rdmsr(pmu::msr::MSR_LASTBRANCH_TOS);
  const ThreeBranches at = run_three_branches();
  GT_EQUAL((gt::rdmsr(pmu::msr::MSR_LASTBRANCH_TOS) - before) % depth(), 3U);
  GT_EQUAL(recorded(2).from, at.jump);
  GT_EQUAL(recorded(2).to, at.call);
  GT_EQUAL(recorded(1).from, at.call);
  GT_EQUAL(recorded(1).to, at.function);
  GT_EQUAL(recorded(0).from, at.function);
  GT_EQUAL(recorded(0).to, at.after_call);
}

/// Runs one branch of each kind, and compares the entries with what the filter permits.
void check_kinds(std::uint64_t select) {
  gt::wrmsr(pmu::msr::MSR_LBR_SELECT, select);
  const std::uint64_t before = tos();
  gt::gt_branch_kinds(dbg::LBR::mask);
  const auto known = gt::branch_kinds();
  std::uint64_t back = 0;
  for (unsigned i = known.size(); i-- > 0;) {
    if ((select & vpmu::bit(known.at(i).select_bit)) != 0) continue;
    GT_EQUAL(recorded(back).from, known.at(i).from);
    GT_EQUAL(recorded(back).to, known.at(i).to);
    ++back;
  }
  GT_EQUAL((tos() + depth() - before) % depth(), back);
}

GT_TEST(Lbr_RecordsEachKind, gt::need_exact_counts) { check_kinds(0); }

// SDM 3B tables 17-11 to 17-13: a set bit leaves its kind out, and no other.
GT_TEST(Lbr_SelectLeavesEachKindOut, gt::need_exact_counts) {
  constexpr unsigned first_kind = 2, last_kind = 8;
  for (unsigned kind = first_kind; kind <= last_kind; ++kind) check_kinds(vpmu::bit(kind));
  check_kinds(vpmu::low_bits(last_kind + 1) & ~std::uint64_t{3});
}

/// Eight taken branches at CPL 3.
void loop_at_cpl3(void*) {
  std::uint64_t n = 9;
  asm volatile("1: dec %0\n jnz 1b" : "+r"(n)::"cc");
}

// The level is the one that the branch ends in: the entry into CPL 3 is a branch of CPL 3, the exception that leaves it
// is not.
GT_TEST(Lbr_SelectByLevel, gt::need_exact_counts) {
  constexpr unsigned ends_at_cpl3 = 11;  // IRET, CALL, the loop, RET
  const auto run = [](std::uint64_t select) {
    gt::wrmsr(pmu::msr::MSR_LBR_SELECT, select);
    gt::wrmsr(pmu::msr::MSR_LASTBRANCH_TOS, 0);
    gt::wrmsr(pmu::msr::IA32_DEBUGCTL, dbg::LBR::mask);
    gt::run_at_cpl3(loop_at_cpl3, nullptr);
    gt::wrmsr(pmu::msr::IA32_DEBUGCTL, 0);
  };
  run(pmu::reg::lbr_select::CPL_EQ_0::mask);
  GT_EQUAL(tos(), ends_at_cpl3);
  GT_EQUAL(recorded(ends_at_cpl3 - 1).to, address(gt::gt_user_trampoline));
  // Far branches only, because the handler has many others.
  run(pmu::reg::lbr_select::CPL_NEQ_0::mask | (vpmu::low_bits(8) & ~std::uint64_t{3}));
  unsigned exits = 0;
  for (std::uint64_t back = 0; back < depth(); ++back) {
    const Branch b = recorded(back);
    GT_CHECK(b.to != address(gt::gt_user_trampoline));
    if (b.from == address(gt::gt_user_done) && b.to == gt::vector_stub(x86::vector::UD)) ++exits;
  }
  GT_EQUAL(exits, 1U);
}

// The exception and the return from its handler are both recorded.
GT_TEST(Lbr_RecordsExceptionsAndTheirReturn, gt::need_exact_counts) {
  gt::wrmsr(pmu::msr::MSR_LBR_SELECT, vpmu::low_bits(8) & ~std::uint64_t{3});  // far branches only
  const std::uint64_t before = tos();
  gt::gt_branch_ud2(dbg::LBR::mask);
  GT_EQUAL((tos() + depth() - before) % depth(), 2U);
  GT_EQUAL(recorded(1).from, address(gt::gt_branch_ud2_at));
  GT_EQUAL(recorded(1).to, gt::vector_stub(x86::vector::UD));
  GT_EQUAL(recorded(0).to, address(gt::gt_branch_ud2_behind));
}

GT_TEST(Lbr_WrapsAroundItsDepth, gt::need_exact_counts) {
  gt::wrmsr(pmu::msr::MSR_LASTBRANCH_TOS, depth() - 2);
  gt::gt_branch_loop(dbg::LBR::mask, 4);  // three branches
  GT_EQUAL(tos(), 1U);
  for (std::uint64_t back = 0; back < 3; ++back) {
    GT_EQUAL(recorded(back).from, address(gt::gt_branch_loop_branch));
    GT_EQUAL(recorded(back).to, address(gt::gt_branch_loop_head));
  }
  GT_CHECK(recorded(3).from != address(gt::gt_branch_loop_branch));
  gt::gt_branch_loop(dbg::LBR::mask, depth() + 1);
  for (std::uint64_t back = 0; back < depth(); ++back)
    GT_EQUAL(recorded(back).from, address(gt::gt_branch_loop_branch));
}

// A loop that has run before is predicted, and each iteration reports its cycles. SDM 3B table 17-16.
GT_TEST(Lbr_TellsPredictionAndCycles, gt::need_exact_counts | gt::need_hit_levels) {
  for (unsigned i = 0; i < 3; ++i) gt::gt_branch_loop(dbg::LBR::mask, 200);
  for (std::uint64_t back = 0; back + 1 < depth(); ++back) {
    GT_CHECK(!mispredicted(back));
    if (!has_info()) continue;
    const std::uint64_t cycles = pmu::reg::lbr_info::CYCLES::get(gt::rdmsr(pmu::msr::MSR_LBR_INFO_0 + place(back)));
    GT_CHECK(cycles != 0 && cycles < 100);
  }
}

// Some taken branches without a pattern are mispredicted.
GT_TEST(Lbr_TellsMispredictions, gt::need_exact_counts | gt::need_hit_levels) {
  gt::wrmsr(pmu::msr::MSR_LBR_SELECT, vpmu::low_bits(9) & ~std::uint64_t{7});  // conditional branches only
  unsigned seen = 0;
  for (unsigned round = 0; round < 8; ++round) {
    gt::wrmsr(pmu::msr::IA32_DEBUGCTL, dbg::LBR::mask);
    std::uint64_t random = 0x9E37'79B9'7F4A'7C15 + round, n = 40;
    asm volatile(
        "1: mov %0, %%rax\n shl $13, %%rax\n xor %%rax, %0\n mov %0, %%rax\n shr $7, %%rax\n xor %%rax, %0\n"
        "mov %0, %%rax\n shl $17, %%rax\n xor %%rax, %0\n"
        "test $64, %0\n jnz 2f\n nop\n 2: dec %1\n jnz 1b\n"
        : "+r"(random), "+r"(n)
        :
        : "rax", "cc");
    gt::wrmsr(pmu::msr::IA32_DEBUGCTL, 0);
    for (std::uint64_t back = 0; back < depth(); ++back) seen += mispredicted(back) ? 1 : 0;
  }
  GT_CHECK(seen > 0);
  GT_CHECK(seen < 8 * depth());
}

bool has_call_stack() { return pmu::reg::lbr_select::EN_CALLSTACK::test(gt::cpu::facts().lbr_select); }
/// EN_CALLSTACK, with jumps, conditional and far branches left out. SDM 3B 17.9.
constexpr std::uint64_t call_stack = 0x3C4;

// Calls are pushed, except those that only get their own address.
GT_TEST(Lbr_CallStackShowsTheOpenCalls, gt::need_exact_counts) {
  if (!has_call_stack()) gt::skip("no LBR call stack on this processor");
  gt::wrmsr(pmu::msr::MSR_LBR_SELECT, call_stack);
  const std::uint64_t before = tos();
  gt::gt_call_stack(dbg::LBR::mask, 1);
  GT_EQUAL((tos() + depth() - before) % depth(), 3U);
  GT_EQUAL(recorded(0).from, address(gt::gt_stack_inner));
  GT_EQUAL(recorded(1).from, address(gt::gt_stack_middle));
  GT_EQUAL(recorded(2).from, address(gt::gt_stack_outer));
}

GT_TEST(Lbr_CallStackForgetsWhatReturned, gt::need_exact_counts) {
  if (!has_call_stack()) gt::skip("no LBR call stack on this processor");
  gt::wrmsr(pmu::msr::MSR_LBR_SELECT, call_stack);
  const std::uint64_t before = tos();
  gt::gt_call_stack(dbg::LBR::mask, 0);
  GT_EQUAL(tos(), before);
  for (std::uint32_t above = 1; above <= 3; ++above) {
    const auto i = static_cast<std::uint32_t>((before + above) % depth());
    GT_EQUAL(gt::rdmsr(pmu::msr::MSR_LASTBRANCH_0_FROM_IP + i), 0U);
    GT_EQUAL(gt::rdmsr(pmu::msr::MSR_LASTBRANCH_0_TO_IP + i), 0U);
  }
}

constinit volatile std::uint64_t debugctl_in_handler = 0;

// Rule Z11: #DB stops recording before it is delivered, so that it is not recorded itself.
GT_TEST(Lbr_StopsAtADebugException, gt::need_exact_counts) {
  gt::on_vector(x86::vector::DB, [](gt::InterruptFrame& frame) {
    debugctl_in_handler = gt::rdmsr(pmu::msr::IA32_DEBUGCTL);
    frame.rflags |= x86::rflags::RF::mask;
  });
  gt::write_dr0(address(gt::gt_kind_call));
  gt::write_dr7(x86::dr7::fixed | x86::dr7::G0::mask);
  const std::uint64_t before = tos();
  gt::gt_branch_kinds(dbg::LBR::mask | dbg::BTF::mask | dbg::TR::mask);
  gt::write_dr7(0x400);
  GT_EQUAL(debugctl_in_handler, dbg::TR::mask);
  GT_EQUAL((tos() + depth() - before) % depth(), 1U);
  GT_EQUAL(recorded(0).from, address(gt::gt_kind_jump));
}

// Rule Z12: the LBR freezes at the record. From the last branch's target straight code leads to the record's RIP: so
// software finds the instruction if the record does not name it.
GT_TEST(Lbr_FreezesAtThePebsRecord, gt::need_exact_counts | gt::need_records) {
  unsigned judged = 0;
  constexpr std::uint64_t min = 200;  // into the loop
  for (std::uint64_t period = min; period < min + gt::MarkedLoop::instructions; ++period) {
    const std::uint32_t pmis = pmu::pmi_count();
    gt::pebs::set_up(4, 1);
    pmu::acknowledge(pmu::global_status());
    pmu::catch_pmi_by_nmi({.acknowledge = ~std::uint64_t{pmu::status::LBR_FRZ::mask}});
    gt::wrmsr(pmu::msr::IA32_DEBUGCTL, dbg::LBR::mask | dbg::FREEZE_LBRS_ON_PMI::mask);
    gt::start_sampling({.event = pmu::instructions, .period = period});
    GT_REQUIRE(gt::sample_until([pmis] { return pmu::pmi_count() != pmis; }));
    const std::uint64_t head = gt::MarkedLoop::head();
    const gt::pebs::PebsRecord r = gt::pebs::record(0);
    const std::uint64_t rip = r[gt::pebs::Slot::rip];
    if (rip < head || rip > head + gt::MarkedLoop::end_offset) continue;  // of the code around the loop
    const Branch last = recorded(0);
    if (last.to != head) continue;  // the first round, entered by a call
    GT_EQUAL(last.from, head + gt::MarkedLoop::branch_offset);
    std::uint64_t at = last.to == rip ? last.from : last.to;
    while (at < rip && at + gt::MarkedLoop::length_at(at - head) != rip) at += gt::MarkedLoop::length_at(at - head);
    GT_EQUAL(at, gt::instruction_before(rip));
    if (gt::cpu::has_eventing_ip()) GT_EQUAL(at, r[gt::pebs::Slot::eventing_ip]);
    ++judged;
  }
  GT_CHECK(judged > gt::MarkedLoop::instructions / 2);
}

// Rule Z5: a frozen LBR records nothing.
GT_TEST(Lbr_StandsStillWhileFrozen, gt::need_exact_counts) {
  if (!gt::cpu::has_streamlined_freeze()) gt::skip("a freeze of this processor clears DEBUGCTL.LBR: see Freeze");
  gt::wrmsr(pmu::msr::IA32_PERF_GLOBAL_STATUS_SET, pmu::status::LBR_FRZ::mask);
  const std::uint64_t before = gt::rdmsr(pmu::msr::MSR_LASTBRANCH_TOS);
  run_three_branches();
  GT_EQUAL(gt::rdmsr(pmu::msr::MSR_LASTBRANCH_TOS), before);
  pmu::acknowledge(pmu::status::LBR_FRZ::mask);
  run_three_branches();
  GT_EQUAL((gt::rdmsr(pmu::msr::MSR_LASTBRANCH_TOS) - before) % depth(), 3U);
}

}  // namespace
