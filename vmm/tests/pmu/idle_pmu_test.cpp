#include <gtest/gtest.h>

#include "pmu/profiled_guest.hpp"

// While the PMU has nothing to do, runs of the guest bypass it.

namespace vmm::test {
namespace {

using namespace vpmu::msr;

/// IA32_PERFEVTSELx for both levels, enabled, without interrupt.
constexpr std::uint16_t cycles = 0x003C, instructions = 0x00C0;

/// Runs the guest once, so that the PMU's initialization is complete.
void let_begin(ProfiledGuest& guest) {
  guest.backend.tells_devices = true;
  guest.run_script();
  guest.backend.calls.clear();
}

TEST(IdlePmu, ADevicesExitTakesOneRun) {
  ProfiledGuest guest;
  let_begin(guest);
  std::array<std::byte, 1> byte{};
  guest.backend.script.push_back(FakeBackend::ends_with(PortRead{0x3FD, 1, byte}));
  EXPECT_EQ(guest.vcpu->run_to_device(), VcpuBackend::DeviceRun::device_exit);
  EXPECT_EQ(guest.backend.calls, std::vector<std::string>{"run"});
}

TEST(IdlePmu, WhatElseTheGuestComesToIsAnsweredByRun) {
  ProfiledGuest guest;
  let_begin(guest);
  guest.will_read(IA32_PERF_CAPABILITIES);
  guest.backend.script.push_back(FakeBackend::ends_with(Shutdown{}));
  EXPECT_EQ(guest.vcpu->run_to_device(), VcpuBackend::DeviceRun::other_exit);
  EXPECT_TRUE(std::holds_alternative<Shutdown>(guest.run()));
  EXPECT_EQ(guest.statistic("pmu.exits.rdmsr"), 1U);
  EXPECT_NE(guest.backend.reply.data, 0U);
}

TEST(IdlePmu, FailureOfTheHostEndsTheRunWithItsReason) {
  ProfiledGuest guest;
  let_begin(guest);
  guest.backend.broken = {"run"};
  EXPECT_EQ(guest.vcpu->run_to_device(), VcpuBackend::DeviceRun::other_exit);
  const auto exit = guest.vcpu->run();
  ASSERT_FALSE(exit);
  EXPECT_EQ(exit.error().what, "run is broken");
}

// A run that bypassed a PMU in use would not be counted, would delay a PMI, and would send RDPMC to the guest's #GP.
TEST(IdlePmu, InUseItLetsNoRunPass) {
  ProfiledGuest guest;
  let_begin(guest);
  guest.place_loop();
  guest.will_write(IA32_PERFEVTSEL0, select(cycles));
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 1);
  guest.run_script();
  const std::size_t runs = guest.backend.count("run");
  EXPECT_EQ(guest.vcpu->run_to_device(), VcpuBackend::DeviceRun::not_run) << "a counter counts";
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 0);
  guest.run_script();
  EXPECT_EQ(guest.vcpu->run_to_device(), VcpuBackend::DeviceRun::not_run) << "the RDPMC gate is there";
  EXPECT_EQ(guest.backend.count("run"), runs + 2) << "what run_script() ran";
}

TEST(IdlePmu, APmiThatWaitsLetsNoRunPass) {
  ProfiledGuest guest;
  let_begin(guest);
  guest.backend.set_apic_word(ProfiledGuest::lvtpc, ProfiledGuest::lvtpc_nmi);
  guest.backend.stores = Stored::not_now;
  PmuVcpuState state = guest.vcpu->state();
  state.pending_pmi = 1;
  ASSERT_TRUE(guest.vcpu->restore(state));
  guest.run_script();
  EXPECT_EQ(guest.backend.count("nmi"), 0U);
  EXPECT_EQ(guest.vcpu->run_to_device(), VcpuBackend::DeviceRun::not_run);
  guest.backend.stores = Stored::done;
  guest.run_script();
  EXPECT_EQ(guest.backend.count("nmi"), 1U);
  guest.backend.script.push_back(FakeBackend::ends_with(Interrupted{}));
  EXPECT_EQ(guest.vcpu->run_to_device(), VcpuBackend::DeviceRun::other_exit) << "it has been delivered";
}

/// The guest starts to count without a #GP handler: no RDPMC gate shows that the PMU is in use.
void will_count_without_gate(ProfiledGuest& guest) {
  let_begin(guest);
  guest.backend.special.idt.limit = 0;
  guest.place_loop();
  guest.will_write(IA32_PERFEVTSEL0, select(cycles));
}

TEST(IdlePmu, ACounterThatTheGuestStartsIsCountedFromItsNextInstruction) {
  ProfiledGuest guest;
  will_count_without_gate(guest);
  guest.will_read(IA32_PMC0, std::chrono::microseconds{100});
  guest.backend.script.push_back(FakeBackend::ends_with(Shutdown{}));
  EXPECT_TRUE(std::holds_alternative<Shutdown>(guest.run()));
  EXPECT_EQ(guest.backend.reply.data, 100'000U) << "1 GHz";
  EXPECT_EQ(guest.vcpu->run_to_device(), VcpuBackend::DeviceRun::not_run);
}

// A debugger's runs take the plan away from the source. It must get the plan back.
TEST(IdlePmu, ACounterGoesOnBehindADebugger) {
  ProfiledGuest guest;
  will_count_without_gate(guest);
  guest.run_script();
  guest.backend.script.push_back(FakeBackend::ends_with(Shutdown{}));
  ASSERT_TRUE(guest.vcpu->run_debugged({}));
  ASSERT_EQ(guest.statistic("pmu.debugged_runs"), 1U);
  const std::uint64_t before = guest.vcpu->pmu().state().pmc[0];
  EXPECT_EQ(guest.vcpu->run_to_device(), VcpuBackend::DeviceRun::not_run);
  guest.will_read(IA32_PMC0, std::chrono::microseconds{100});
  guest.run_script();
  EXPECT_EQ(guest.backend.reply.data, before + 100'000U) << "1 GHz";
}

// An overflow of the uncore is only noticed where a vCPU exits to its PMU: runs must not bypass the PMU.
TEST(IdlePmu, AnUncoreWhoseOverflowIsAwaitedLetsNoRunPass) {
  PackageUncore uncore{*vpmu::describe(vpmu::Generation::skylake).uncore, 1, 1, [](unsigned) {}};
  ProfiledGuest guest{{.uncore = {.package = &uncore, .id = 0}}};
  let_begin(guest);
  guest.backend.script.push_back(FakeBackend::ends_with(Interrupted{}));
  ASSERT_EQ(guest.vcpu->run_to_device(), VcpuBackend::DeviceRun::other_exit) << "nothing counts";
  guest.run();
  guest.will_write(vpmu::MsrIndex{0x394}, 0x50'0000);    // MSR_UNC_PERF_FIXED_CTRL: count, interrupt
  guest.will_write(vpmu::MsrIndex{0xE01}, 0x2000'0001);  // MSR_UNC_PERF_GLOBAL_CTRL: of core 0
  guest.run_script();
  ASSERT_TRUE(uncore.is_awaited());
  EXPECT_EQ(guest.vcpu->run_to_device(), VcpuBackend::DeviceRun::not_run);
}

// KVM completes a WRMSR when the vCPU runs next. A source that counts instructions must not count it as one of those
// that follow.
TEST(IdlePmu, ASourceLearnsOfTheExitThatAnIdleGuestHasLeftOpen) {
  for (const bool tells : {false, true}) {
    ProfiledGuest guest{{.source = "step"}};
    let_begin(guest);
    guest.backend.tells_devices = tells;
    guest.place_loop();
    guest.will_write(IA32_PERFEVTSEL0, select(instructions));
    (void)guest.vcpu->run_to_device();
    guest.run_script();
    EXPECT_EQ(guest.backend.count("complete_exit"), 1U) << tells;
  }
}

}  // namespace
}  // namespace vmm::test
