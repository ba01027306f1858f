// A vCPU that stands still ends in an internal error; one that waits, or that gets on by one register only, does not.
#include <gtest/gtest.h>

#include "exec/tests/fixtures/assembled.hpp"
#include "pmu/profiled_guest.hpp"
#include "support/x86.hpp"

namespace vmm::test {
namespace {

using namespace vpmu::msr;

constexpr std::uint64_t count_instructions = 0x43'00C0;

/// A KVM that reports the end of a single-step without having run anything.
FakeBackend::Run steps_in_place() {
  return [](FakeBackend& p) { return Debug{1, p.registers.rip, x86::dr6::BS::mask, 0x400}; };
}

class Progress : public testing::TestWithParam<const char*> {
 protected:
  void begin_counting() {
    guest_.place_loop();
    guest_.will_write(IA32_PERFEVTSEL0, count_instructions);
    guest_.will_write(IA32_PERF_GLOBAL_CTRL, 1);
    guest_.run_script();
    guest_.backend.calls.clear();
  }
  /// The next instruction, which the engine does not know, is left to the back end.
  void at_cpuid() {
    guest_.store_code(ProfiledGuest::code, X86("cpuid"));
    guest_.backend.registers.rip = ProfiledGuest::code;
  }

  ProfiledGuest guest_{{.source = GetParam()}};
};

TEST_P(Progress, AVcpuThatStandsStillIsAnErrorWithItsState) {
  begin_counting();
  at_cpuid();
  guest_.backend.debug_registers.dr7 = 0x455;
  guest_.backend.otherwise = steps_in_place();
  const auto exit = guest_.vcpu->run();
  ASSERT_FALSE(exit);
  EXPECT_NE(exit.error().what.find("stands still"), std::string::npos) << exit.error().what;
  EXPECT_NE(exit.error().what.find(fmt::format("RIP {:#x}", ProfiledGuest::code)), std::string::npos);
  EXPECT_NE(exit.error().what.find("DR7 0x455"), std::string::npos);
  EXPECT_FALSE(exit.error().advice.empty());
  EXPECT_GE(guest_.backend.count("run"), ProgressWatch::max_turns);
}

TEST_P(Progress, WhatChangesARegisterGetsOn) {
  begin_counting();
  at_cpuid();
  constexpr unsigned turns = ProgressWatch::max_turns * 2;
  unsigned n = 0;
  guest_.backend.otherwise = [&, step = steps_in_place()](FakeBackend& p) -> Exit {
    ++p.registers.r15;
    if (++n == turns) return Shutdown{};
    return step(p);
  };
  const auto exit = guest_.vcpu->run();
  ASSERT_TRUE(exit) << exit.error().what;
  EXPECT_TRUE(std::holds_alternative<Shutdown>(*exit));
  EXPECT_EQ(n, turns);
}

// A kick comes out of a halt, for as long as the halt lasts.
TEST_P(Progress, AHaltedVcpuDoesNotStandStill) {
  begin_counting();
  at_cpuid();
  guest_.backend.is_halted = true;
  guest_.backend.otherwise = FakeBackend::ends_with(Interrupted{});
  for (unsigned n = 0; n < ProgressWatch::max_turns + 1; ++n) {
    const auto exit = guest_.vcpu->run();
    ASSERT_TRUE(exit) << exit.error().what;
    ASSERT_TRUE(std::holds_alternative<Interrupted>(*exit));
    guest_.backend.calls.clear();
  }
}

INSTANTIATE_TEST_SUITE_P(Sources, Progress, testing::Values("step", "exact"),
                         [](const auto& row) { return std::string{row.param}; });

}  // namespace
}  // namespace vmm::test
