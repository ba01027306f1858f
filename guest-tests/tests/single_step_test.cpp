// Single-steps and exceptions of the guest work as on a processor without a PMU: while the PMU is unused, while it is
// in use but stopped, and while a counter counts. SDM 3B 17.3.1.4 (single-step), 3A 6.8.3 (MOV SS), 6.12.1 (the
// handler's stack frame).
#include <array>
#include <span>

#include "gt/asm.hpp"
#include "gt/interrupts.hpp"
#include "gt/pmu.hpp"
#include "gt/stepping.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;

constexpr std::uint8_t int_n = 0x80;
constexpr std::uint64_t reasons = 0xE00F;  // of DR6: B0 to B3, BD, BS and BT

/// What a handler found.
struct Entry {
  std::uint64_t vector, rip, rflags, dr6;
};
constinit std::array<Entry, 32> entries{};
constinit std::uint32_t entry_count = 0;

/// One handler for all vectors, so that each takes the same number of instructions. It skips faulting instructions of
/// two bytes.
void note(gt::InterruptFrame& frame) {
  static constexpr std::array<std::uint8_t, int_n + 1> skipped{2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 2};
  if (entry_count == entries.size()) {
    frame.rflags &= ~x86::rflags::TF::mask;
    return;
  }
  entries[entry_count] = {
      .vector = frame.vector, .rip = frame.rip, .rflags = frame.rflags, .dr6 = gt::read_dr6() & reasons};
  ++entry_count;
  gt::write_dr6(0);
  frame.rip += skipped[frame.vector];
  if ((entries[entry_count - 1].dr6 & x86::dr6::B::make(2)) != 0) frame.rflags |= x86::rflags::RF::mask;
}

enum class Use : std::uint8_t { none, stopped, counting };
constexpr std::array all_uses{Use::none, Use::stopped, Use::counting};
const char* name_of(Use use) { return use == Use::none ? "unused" : use == Use::stopped ? "stopped" : "counting"; }

void begin(Use use) {
  for (const std::uint64_t v :
       {x86::vector::DE, x86::vector::DB, x86::vector::BP, x86::vector::UD, x86::vector::GP, int_n})
    gt::on_vector(v, note);
  entry_count = 0;
  gt::write_dr6(0);
  if (use == Use::none) return;
  pmu::stop();  // counting may be enabled after RESET
  pmu::program(0, pmu::select(pmu::instructions, pmu::os | pmu::usr), 0);
  if (use == Use::counting) pmu::start(pmu::gp_bit(0));
}

/// Stops the PMU; with Use::counting the counter must have counted.
void end(Use use) {
  if (use == Use::none) return;
  if (use == Use::counting && !gt::exact_counts()) GT_CHECK(pmu::wait_until([] { return pmu::counter(0) != 0; }));
  pmu::stop();
  const std::uint32_t seen = entry_count;
  if (use == Use::counting) GT_CHECK(pmu::counter(0) != 0);
  GT_EQUAL(entry_count, seen);
}

struct Expected {
  std::uint64_t vector;
  const char* at;
  bool stepping;
};

/// `function` must cause exactly the expected entries, in each use of the PMU.
void check_entries(void (*function)(), std::span<const Expected> expected) {
  for (const Use use : all_uses) {
    begin(use);
    function();
    end(use);
    GT_EQUAL_AT(name_of(use), entry_count, expected.size());
    for (std::size_t i = 0; i < expected.size() && i < entry_count; ++i) {
      GT_EQUAL_AT(name_of(use), entries[i].vector, expected[i].vector);
      GT_EQUAL_AT(name_of(use), entries[i].rip, reinterpret_cast<std::uint64_t>(expected[i].at));
      GT_EQUAL_AT(name_of(use), (entries[i].rflags & x86::rflags::TF::mask) != 0, expected[i].stepping);
      // INT1 leaves DR6 as it is. SDM 2A INT n/INTO/INT3/INT1.
      const bool step = expected[i].vector == x86::vector::DB && expected[i].stepping;
      if (expected[i].stepping || expected[i].vector != x86::vector::DB)
        GT_EQUAL_AT(name_of(use), entries[i].dr6, step ? x86::dr6::BS::mask : 0U);
    }
  }
}

Expected trap(const char* at) { return {.vector = x86::vector::DB, .at = at, .stepping = true}; }

// A trap follows each instruction that began with TF set: not the POPF that sets TF, but the one that clears it. SDM 3B
// 17.3.1.4.
GT_TEST(GuestDebugging_PopfBeginsAndEndsSingleSteps) {
  gt_popf_image = 0;
  const std::array expected{trap(gt_popf_1), trap(gt_popf_2), trap(gt_popf_3),
                            trap(gt_popf_4), trap(gt_popf_5), trap(gt_popf_6)};
  for (const Use use : all_uses) {
    begin(use);
    gt_popf_steps();
    end(use);
    GT_EQUAL_AT(name_of(use), entry_count, expected.size() + 1);
    for (std::size_t i = 0; i < expected.size() && i < entry_count; ++i) {
      GT_EQUAL_AT(name_of(use), entries[i].rip, reinterpret_cast<std::uint64_t>(expected[i].at));
      GT_EQUAL_AT(name_of(use), entries[i].rflags & x86::rflags::TF::mask, x86::rflags::TF::mask);
      GT_EQUAL_AT(name_of(use), entries[i].dr6, x86::dr6::BS::mask);
    }
    GT_EQUAL_AT(name_of(use), entries[6].rip, reinterpret_cast<std::uint64_t>(gt_popf_7));
    GT_EQUAL_AT(name_of(use), entries[6].rflags & x86::rflags::TF::mask, 0U);
    GT_EQUAL_AT(name_of(use), entries[6].dr6, x86::dr6::BS::mask);
    GT_EQUAL_AT(name_of(use), gt_popf_image & x86::rflags::TF::mask, x86::rflags::TF::mask);
    gt_popf_image = 0;
  }
}

GT_TEST(GuestDebugging_IretBeginsAndEndsSingleSteps) {
  for (const Use use : all_uses) {
    begin(use);
    gt_iret_steps();
    end(use);
    GT_EQUAL_AT(name_of(use), entry_count, 2U);
    GT_EQUAL_AT(name_of(use), entries[0].rip, reinterpret_cast<std::uint64_t>(gt_iret_1));
    GT_EQUAL_AT(name_of(use), entries[0].rflags & x86::rflags::TF::mask, x86::rflags::TF::mask);
    GT_EQUAL_AT(name_of(use), entries[1].rip, reinterpret_cast<std::uint64_t>(gt_iret_2));
    GT_EQUAL_AT(name_of(use), entries[1].rflags & x86::rflags::TF::mask, 0U);
    GT_EQUAL_AT(name_of(use), entries[1].dr6, x86::dr6::BS::mask);
  }
}

// The PMU may single-step with TF, but handlers must not find it in RFLAGS: the guest has not set it.
GT_TEST(GuestDebugging_HandlersFindNoTrapFlag) {
  struct Row {
    void (*function)();
    Expected expected;
  };
  const std::array rows{Row{gt_int3_once, {x86::vector::BP, gt_int3_1, false}},
                        Row{gt_int_n_once, {int_n, gt_int_n_1, false}},
                        Row{gt_int1_once, {x86::vector::DB, gt_int1_1, false}},
                        Row{gt_ud2_once, {x86::vector::UD, gt_ud2_1, false}},
                        Row{gt_ud_once, {x86::vector::UD, gt_ud_1, false}},
                        Row{gt_de_once, {x86::vector::DE, gt_de_1, false}},
                        Row{gt_gp_once, {x86::vector::GP, gt_gp_1, false}},
                        Row{gt_bp_behind_mov_ss, {x86::vector::BP, gt_bp_behind_mov_ss_1, false}},
                        Row{gt_bp_behind_sti, {x86::vector::BP, gt_bp_behind_sti_1, false}}};
  for (const Row& row : rows) check_entries(row.function, {&row.expected, 1});
}

/// The instructions of `function` and its handler, as counted.
std::uint64_t counted(void (*function)()) {
  begin(Use::stopped);
  pmu::start(pmu::gp_bit(0));
  function();
  pmu::stop();
  GT_EQUAL(entry_count, 1U);
  return pmu::counter(0);
}

// All have the same handler; a software interrupt retires, an instruction that faults does not. Stubs of vectors with
// an error code have one PUSH fewer.
GT_TEST(GuestDebugging_HandlersAreCountedInFull, gt::need_exact_counts) {
  const std::uint64_t of_int3 = counted(gt_int3_once);
  GT_CHECK(of_int3 > 50);
  GT_EQUAL(counted(gt_int_n_once), of_int3);
  GT_EQUAL(counted(gt_int1_once), of_int3);
  GT_EQUAL(counted(gt_ud2_once), of_int3 - 1);
  GT_EQUAL(counted(gt_ud_once), of_int3 - 1);
  GT_EQUAL(counted(gt_de_once), of_int3 - 1);
  GT_EQUAL(counted(gt_gp_once), of_int3 - 2);
}

// Events clear TF: a handler is not stepped, but finds TF in the RFLAGS on its stack. SDM 3B 17.3.1.4.
GT_TEST(GuestDebugging_EventsInSteppedCode) {
  const std::array expected{Expected{int_n, gt_int_n_stepped_1, true},
                            trap(gt_int_n_stepped_2),
                            Expected{x86::vector::BP, gt_int_n_stepped_3, true},
                            trap(gt_int_n_stepped_4),
                            Expected{x86::vector::UD, gt_int_n_stepped_4, true},
                            trap(gt_int_n_stepped_6),
                            trap(gt_int_n_stepped_7),
                            Expected{x86::vector::DB, gt_int_n_stepped_8, false}};
  check_entries(gt_int_n_stepped, expected);
}

// Instructions that a hypervisor intercepts, and accesses to the PMU.
GT_TEST(GuestDebugging_InterceptedInstructionsAreStepped) {
  const std::array expected{trap(gt_others_stepped_1), trap(gt_others_stepped_2), trap(gt_others_stepped_3),
                            trap(gt_others_stepped_4), trap(gt_others_stepped_5), trap(gt_others_stepped_6)};
  for (const Use use : all_uses) {
    if (use == Use::none) continue;  // RDPMC works only while the PMU is in use
    begin(use);
    gt_others_stepped();
    end(use);
    GT_EQUAL_AT(name_of(use), entry_count, 13U);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      GT_EQUAL_AT(name_of(use), entries[i].rip, reinterpret_cast<std::uint64_t>(expected[i].at));
      GT_EQUAL_AT(name_of(use), entries[i].dr6, x86::dr6::BS::mask);
    }
    GT_EQUAL_AT(name_of(use), entries[6].rip, reinterpret_cast<std::uint64_t>(gt_others_stepped_7));
    GT_EQUAL_AT(name_of(use), entries[8].rip, reinterpret_cast<std::uint64_t>(gt_others_stepped_8));
    GT_EQUAL_AT(name_of(use), entries[10].rip, reinterpret_cast<std::uint64_t>(gt_others_stepped_10));
    GT_EQUAL_AT(name_of(use), entries[12].rip, reinterpret_cast<std::uint64_t>(gt_others_stepped_12));
  }
}

// The trap after MOV SS is suppressed until after the next instruction. SDM 3A 6.8.3.
GT_TEST(GuestDebugging_MovSsHoldsTheTrapOff) {
  bool host_holds = false;
  for (const Use use : all_uses) {
    begin(use);
    gt_mov_ss_stepped();
    end(use);
    if (use == Use::none) host_holds = entry_count == 3;
    if (use == Use::none && !host_holds) gt::skip("this host's processor traps behind MOV SS");
    GT_EQUAL_AT(name_of(use), entry_count, 3U);
    GT_EQUAL_AT(name_of(use), entries[0].rip, reinterpret_cast<std::uint64_t>(gt_mov_ss_stepped_1));
    GT_EQUAL_AT(name_of(use), entries[1].rip, reinterpret_cast<std::uint64_t>(gt_mov_ss_stepped_2));
    GT_EQUAL_AT(name_of(use), entries[2].rip, reinterpret_cast<std::uint64_t>(gt_mov_ss_stepped_3));
  }
}

// A data breakpoint (DR0) on the operand of MOV SS is reported behind the next instruction, on which an instruction
// breakpoint (DR1) does not hit. SDM 3A 6.8.3.
struct HeldEntry {
  std::uint64_t at, behind;
};
HeldEntry load_watched_ss() {
  static constinit std::uint16_t selector = 0;
  constexpr std::uint64_t access_2_bytes_and_execution = 0x7'0405;
  HeldEntry e{};
  asm volatile("mov %%ss, %0" : "=m"(selector));
  gt::write_dr0(reinterpret_cast<std::uint64_t>(&selector));
  asm volatile(
      "lea 1f(%%rip), %0\n lea 2f(%%rip), %1\n mov %0, %%dr1\n mov %2, %%dr7\n mov %3, %%ss\n 1: nop\n 2: nop\n"
      : "=&r"(e.at), "=&r"(e.behind)
      : "r"(access_2_bytes_and_execution), "m"(selector)
      : "memory");
  gt::write_dr7(x86::dr7::fixed);
  return e;
}
GT_TEST(GuestDebugging_MovSsHoldsBreakpointsOff) {
  for (const Use use : all_uses) {
    begin(use);
    const HeldEntry e = load_watched_ss();
    end(use);
    const bool host_holds = entry_count == 1 && entries[0].rip == e.behind;
    if (use == Use::none && !host_holds) gt::skip("this host's processor does not hold breakpoints behind MOV SS");
    GT_EQUAL_AT(name_of(use), entry_count, 1U);
    GT_EQUAL_AT(name_of(use), entries[0].vector, x86::vector::DB);
    GT_EQUAL_AT(name_of(use), entries[0].rip, e.behind);
    GT_EQUAL_AT(name_of(use), entries[0].dr6, x86::dr6::B::make(1));
  }
}

// A repeated string instruction traps after each iteration. SDM 2B REP. An emulated processor may need one more trap to
// find that no iteration is left.
GT_TEST(GuestDebugging_RepeatedInstructionsAreSteppedByIterations) {
  std::uint32_t in_all = 0;
  for (const Use use : all_uses) {
    std::array<char, 4> from{'a', 'b', 'c', 0}, to{};
    begin(use);
    gt_copy_stepped(to.data(), from.data());
    end(use);
    if (use == Use::none) in_all = entry_count;
    GT_CHECK(in_all == 5 || in_all == 6);
    GT_EQUAL_AT(name_of(use), entry_count, in_all);
    const auto at = [](const char* label) { return reinterpret_cast<std::uint64_t>(label); };
    for (std::size_t i = 0; i + 2 < in_all; ++i) GT_EQUAL_AT(name_of(use), entries[i].rip, at(gt_copy_stepped_1));
    GT_EQUAL_AT(name_of(use), entries[in_all - 2].rip, at(gt_copy_stepped_2));
    GT_EQUAL_AT(name_of(use), entries[in_all - 1].rip, at(gt_copy_stepped_3));
    GT_CHECK(to[0] == 'a' && to[1] == 'b' && to[2] == 'c');
  }
}

// With DEBUGCTL.BTF only taken branches trap; #DB clears BTF, so that the next trap comes after one instruction again.
// SDM 3B 17.4.3, rule Z11.
GT_TEST(GuestDebugging_BranchesAreStepped, gt::need_branch_steps) {
  constexpr std::uint64_t btf = pmu::reg::debugctl::BTF::mask;
  for (const Use use : all_uses) {
    begin(use);
    gt::wrmsr(pmu::msr::IA32_DEBUGCTL, btf);
    gt_branches_stepped();
    const std::uint64_t after = gt::rdmsr(pmu::msr::IA32_DEBUGCTL);
    end(use);
    GT_EQUAL_AT(name_of(use), entry_count, 2U);
    GT_EQUAL_AT(name_of(use), entries[0].rip, reinterpret_cast<std::uint64_t>(gt_branches_stepped_1));
    GT_EQUAL_AT(name_of(use), entries[1].rip, reinterpret_cast<std::uint64_t>(gt_branches_stepped_2));
    GT_EQUAL_AT(name_of(use), entries[1].dr6, x86::dr6::BS::mask);
    GT_EQUAL_AT(name_of(use), after & btf, 0U);
  }
}

// SDM 3B 17.2.3: the processor clears at most bits 3:0 of DR6; the rest belongs to software.
GT_TEST(GuestDebugging_Dr6KeepsWhatSoftwareLeft) {
  static constinit volatile std::uint64_t watched = 0;
  static constinit std::uint64_t dr6 = 0;
  for (const Use use : all_uses) {
    begin(use);
    gt::on_vector(x86::vector::DB, [](gt::InterruptFrame&) {
      dr6 = gt::read_dr6() & reasons;
      ++entry_count;
    });
    gt::write_dr6(x86::dr6::BS::mask);
    gt::write_dr0(reinterpret_cast<std::uint64_t>(&watched));
    gt::write_dr7(x86::dr7::fixed | x86::dr7::L0::mask | x86::dr7::RW0::make(1) | x86::dr7::LEN0::make(2));
    gt::rdmsr(pmu::msr::IA32_PERF_GLOBAL_CTRL);  // causes an exit
    watched = 1;
    gt::write_dr7(0x400);
    end(use);
    GT_EQUAL_AT(name_of(use), entry_count, 1U);
    GT_EQUAL_AT(name_of(use), dr6, x86::dr6::BS::mask | x86::dr6::B::make(1));
  }
}

}  // namespace
