#include <gtest/gtest.h>

#include "exec/tests/fixtures/assembled.hpp"
#include "pmu/profiled_guest.hpp"

// RDPMC through the whole vCPU loop: when the gate is armed, and what RDPMC returns.

namespace vmm::test {
namespace {

using namespace vpmu::msr;
using namespace std::chrono_literals;

/// IA32_PERFEVTSELx for unhalted cycles at both levels, enabled.

// The gate costs an exit for every #GP, and a debug register: it is armed only while counters may be read. A DS area
// alone does not count as use; Linux leaves it set for ever.
TEST(PmuVcpu, RdpmcGateIsArmedWhileThePmuIsInUse) {
  ProfiledGuest guest;
  guest.will_write(IA32_DS_AREA, ProfiledGuest::ds_area);
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 0xF);
  guest.run_script();
  EXPECT_EQ(guest.gate(), 0U);
  EXPECT_FALSE(guest.backend.is_watched);
  guest.will_write(IA32_PERFEVTSEL0, select_cycles);
  guest.run_script();
  EXPECT_EQ(guest.gate(), ProfiledGuest::fault_handler);
  EXPECT_TRUE(guest.backend.is_watched);
}

// How Linux stops a throttled event: it clears the select, restarts the others, and reads the counter when it takes the
// event out.
TEST(PmuVcpu, RdpmcGateStaysUntilAStoppedCounterHasBeenRead) {
  ProfiledGuest guest;
  guest.will_write(IA32_PERFEVTSEL0, select_cycles);
  for (const std::uint64_t enables : {0xFU, 0U, 0xFU}) guest.will_write(IA32_PERF_GLOBAL_CTRL, enables);
  guest.will_write(IA32_PERFEVTSEL0, 0);
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 0xF);
  guest.run_script();
  EXPECT_EQ(guest.gate(), ProfiledGuest::fault_handler);
  guest.will_read(IA32_A_PMC0);
  guest.will_write(IA32_PERFEVTSEL0, 0);
  guest.run_script();
  EXPECT_EQ(guest.gate(), ProfiledGuest::fault_handler) << "another read may follow";
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 0xF);
  guest.run_script();
  EXPECT_EQ(guest.gate(), 0U);
  EXPECT_FALSE(guest.backend.is_watched);
}

// A precise event, whose counter PEBS reloads: the handler has read the counter before it throttles the event.
TEST(PmuVcpu, RdpmcGateStaysForACounterThatWasReadBeforeItWasStopped) {
  ProfiledGuest guest;
  guest.will_write(IA32_PERFEVTSEL0, select_cycles);
  for (const std::uint64_t enables : {0xFU, 0U}) guest.will_write(IA32_PERF_GLOBAL_CTRL, enables);
  guest.will_read(IA32_A_PMC0);
  guest.will_write(IA32_PERFEVTSEL0, 0);
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 0xF);
  guest.run_script();
  EXPECT_EQ(guest.gate(), ProfiledGuest::fault_handler);
  EXPECT_TRUE(guest.backend.is_watched);
  guest.will_read(IA32_A_PMC0);
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 0xF);
  guest.run_script();
  EXPECT_EQ(guest.gate(), 0U);
}

// A program that only checks whether a counter holds what was written to it.
TEST(PmuVcpu, RdpmcGateIsArmedForACounterThatWasWritten) {
  for (const vpmu::MsrIndex counter : {IA32_PMC0 + 2, IA32_A_PMC0 + 1, IA32_FIXED_CTR0 + 2}) {
    ProfiledGuest guest;
    guest.will_write(counter, 1);
    guest.run_script();
    EXPECT_EQ(guest.gate(), ProfiledGuest::fault_handler) << counter.value();
  }
}

/// Places RDPMC at the loop's head: without a PMU it faults into the guest's handler.
void place_rdpmc(ProfiledGuest& guest, std::uint32_t ecx) {
  guest.backend.registers.rcx = ecx;
  guest.cpu.add(ProfiledGuest::code, X86("rdpmc"), [&guest](FakeBackend& p) {
    const std::array<std::uint64_t, 6> frame{0, p.registers.rip, 0x10, p.registers.rflags, p.registers.rsp, 0x18};
    p.registers.rsp -= sizeof frame;
    guest.store(p.registers.rsp, std::as_bytes(std::span{frame}));
    p.registers.rip = ProfiledGuest::fault_handler;
    return std::nullopt;
  });
  guest.cpu.add(ProfiledGuest::fault_handler, X86("nop"), [](FakeBackend&) { return Exit{Shutdown{}}; });
  guest.cpu.add(ProfiledGuest::code + 2, X86("hlt"), [](FakeBackend&) { return Exit{Hlt{}}; });
}

TEST(PmuVcpu, RdpmcReadsACounterThatIsUpToDate) {
  ProfiledGuest guest;
  place_rdpmc(guest, 0);
  guest.will_write(IA32_PERFEVTSEL0, select_cycles);
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 1);
  guest.cpu.per_instruction = 5us;
  EXPECT_TRUE(std::holds_alternative<Hlt>(guest.run())) << "the guest's handler must not run";
  EXPECT_EQ(guest.backend.registers.rax, 5000U);
  EXPECT_EQ(guest.backend.registers.rdx, 0U);
  EXPECT_EQ(guest.backend.registers.rsp, ProfiledGuest::stack);
  EXPECT_EQ(guest.statistic("pmu.rdpmc.served"), 1U);
}

TEST(PmuVcpu, RdpmcOfACounterThatIsNotThereFaultsInTheGuest) {
  ProfiledGuest guest;
  place_rdpmc(guest, 0x4000'0003);
  guest.will_write(IA32_PERFEVTSEL0, select_cycles);
  EXPECT_TRUE(std::holds_alternative<Shutdown>(guest.run())) << "the guest's handler runs";
  EXPECT_EQ(guest.statistic("pmu.rdpmc.refused"), 1U);
}

}  // namespace
}  // namespace vmm::test
