#include <gtest/gtest.h>

#include "pmu/profiled_guest.hpp"

// A vCPU's PMU that is saved, restored, reset, or suspended by a debugger.
namespace vmm::test {
namespace {

using namespace vpmu::msr;
using namespace std::chrono_literals;

/// IA32_PERFEVTSELx for both levels, enabled, without interrupt.

// A counter continues in the vCPU to which its state was restored.
TEST(PmuVcpu, AStateGoesOnInAnotherVcpu) {
  ProfiledGuest first;
  first.place_loop();
  first.will_write(IA32_PERFEVTSEL0, select_cycles);
  first.will_write(IA32_PMC0, 1000);
  first.will_write(IA32_PERF_GLOBAL_CTRL, 1);
  first.run_script();
  const PmuVcpuState state = first.vcpu->state();
  const std::uint64_t counted = first.vcpu->pmu().state().pmc[0];
  ASSERT_GE(counted, 1000U);

  ProfiledGuest second;
  ASSERT_EQ(second.vcpu->restore(state).value(), vpmu::RestoreStatus::ok);
  EXPECT_TRUE(second.backend.is_watched) << "the clock is in use";
  EXPECT_EQ(second.vcpu->pmu().state().pmc[0], counted);
  second.place_loop();
  second.will_read(IA32_PMC0, 500ns);
  second.run_script();
  EXPECT_GE(second.backend.reply.data, counted + 500);
}

TEST(PmuVcpu, AStateOfSomethingElseIsRefusedAndChangesNothing) {
  ProfiledGuest guest;
  guest.will_write(IA32_PMC0, 1000);
  guest.run_script();
  PmuVcpuState state = guest.vcpu->state();
  state.pmu.state.pmc[0] = 7;
  PmuVcpuState wrong = state;
  wrong.pending_pmi = 2;
  EXPECT_EQ(guest.vcpu->restore(wrong).value(), vpmu::RestoreStatus::illegal_value);
  wrong = state;
  wrong.pmu.version = 99;
  EXPECT_EQ(guest.vcpu->restore(wrong).value(), vpmu::RestoreStatus::wrong_version);
  EXPECT_EQ(guest.vcpu->pmu().state().pmc[0], 1000U);
}

TEST(PmuVcpu, AResetLeavesNothing) {
  ProfiledGuest guest;
  guest.will_write(IA32_PERFEVTSEL0, select_cycles);
  guest.will_write(IA32_PMC0, 1000);
  guest.run_script();
  ASSERT_TRUE(guest.vcpu->reset());
  EXPECT_FALSE(guest.backend.is_watched);
  EXPECT_EQ(guest.vcpu->pmu().state().pmc[0], 0U);
  EXPECT_EQ(guest.vcpu->pmu().state().perfevtsel[0], 0U);
}

// With a debugger the PMU counts nothing, but answers accesses to its MSRs.
TEST(PmuVcpu, ADebuggerGetsItsExitsAndThePmuStandsStill) {
  ProfiledGuest guest;
  guest.place_loop();
  guest.will_write(IA32_PERFEVTSEL0, select_cycles);
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 1);
  guest.run_script();
  const std::uint64_t before = guest.vcpu->pmu().state().pmc[0];
  kvm_guest_debug stepping{};
  stepping.control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP;
  guest.will_read(IA32_PMC0, 500ns);
  guest.backend.script.push_back(FakeBackend::ends_with(Debug{1, ProfiledGuest::code, 0x4000, 0}));
  const auto exit = guest.vcpu->run_debugged(stepping);
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Debug>(*exit));
  EXPECT_EQ(guest.backend.reply.data, before);
  EXPECT_EQ(guest.backend.guest_debug.control & KVM_GUESTDBG_SINGLESTEP, std::uint32_t{KVM_GUESTDBG_SINGLESTEP});
  EXPECT_GE(guest.statistic("pmu.debugged_runs"), 2U);
  guest.will_read(IA32_PMC0, 500ns);
  guest.run_script();
  EXPECT_GT(guest.backend.reply.data, before) << "and goes on";
}

}  // namespace
}  // namespace vmm::test
