// Last branch records. SDM 3B 17.4.8, 17.10; rule Z5.
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"

namespace {

namespace pmu = gt::pmu;
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

Branch recorded(std::uint64_t back) {
  const auto i = static_cast<std::uint32_t>((gt::rdmsr(pmu::msr::MSR_LASTBRANCH_TOS) + depth() - back) % depth());
  return {gt::rdmsr(pmu::msr::MSR_LASTBRANCH_0_FROM_IP + i), gt::rdmsr(pmu::msr::MSR_LASTBRANCH_0_TO_IP + i)};
}

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

// SDM 3B table 17-13: a set bit leaves that kind out.
GT_TEST(Lbr_SelectLeavesKindsOut, gt::need_exact_counts) {
  namespace select = pmu::reg::lbr_select;
  gt::wrmsr(pmu::msr::MSR_LBR_SELECT, select::NEAR_RET::mask | select::NEAR_REL_CALL::mask);
  const std::uint64_t before = gt::rdmsr(pmu::msr::MSR_LASTBRANCH_TOS);
  const ThreeBranches at = run_three_branches();
  GT_EQUAL((gt::rdmsr(pmu::msr::MSR_LASTBRANCH_TOS) - before) % depth(), 1U);
  GT_EQUAL(recorded(0).from, at.jump);
}

// Rule Z5: frozen LBRs keep still.
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
