#include "pmu/pmu_vcpu.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "exec/tests/fixtures/assembled.hpp"
#include "pmu/profiled_guest.hpp"

namespace vmm::test {
namespace {

using namespace vpmu::msr;
using namespace std::chrono_literals;
using vpmu::Slot;

/// IA32_PERFEVTSELx for both levels, enabled, without interrupt.
constexpr std::uint16_t retired_instructions = 0x00C0, unhalted_cycles = 0x003C;
constexpr std::uint64_t interrupt_on_overflow = vpmu::bit(20);
constexpr std::uint64_t minus(std::uint64_t n) { return (0 - n) & vpmu::low_bits(48); }
constexpr std::uint64_t period = 100'000;  // instructions: 100 us on the clock source

std::size_t position(const std::vector<std::string>& calls, std::string_view call, std::size_t from = 0) {
  return static_cast<std::size_t>(std::find(calls.begin() + static_cast<std::ptrdiff_t>(from), calls.end(), call) -
                                  calls.begin());
}

TEST(PmuVcpu, UnknownSourceIsRefusedByName) {
  FakeGuest guest;
  Log log;
  const auto created = PmuVcpu::create({.source = "sundial"}, guest.backend, guest.memory, log);
  ASSERT_FALSE(created);
  EXPECT_EQ(created.error().kind, ErrorKind::usage);
  EXPECT_NE(created.error().what.find("sundial"), std::string::npos);
  EXPECT_NE(created.error().advice.find("clock"), std::string::npos);
}

TEST(PmuVcpu, IdlePmuCostsNothing) {
  ProfiledGuest guest;
  guest.backend.script.push_back(FakeBackend::ends_with(Shutdown{}));
  EXPECT_TRUE(std::holds_alternative<Shutdown>(guest.run()));
  EXPECT_EQ(guest.backend.calls, std::vector<std::string>{"run"});
  EXPECT_EQ(guest.time.reads, 0U);
}

TEST(PmuVcpu, ExitsOfOthersGoToTheCaller) {
  ProfiledGuest guest;
  std::array<std::byte, 1> byte{};
  guest.will_read(IA32_PERF_CAPABILITIES);
  guest.backend.script.push_back(FakeBackend::ends_with(PortWrite{0x3F8, 1, byte}));
  const Exit exit = guest.run();
  ASSERT_TRUE(std::holds_alternative<PortWrite>(exit));
  EXPECT_EQ(std::get<PortWrite>(exit).port, 0x3F8);
  EXPECT_EQ(guest.statistic("pmu.exits.rdmsr"), 1U);
}

// Events before a WRMSR are counted with the state before it.
TEST(PmuVcpu, CountsAreSettledBeforeAWriteTakesEffect) {
  ProfiledGuest guest;
  guest.place_loop();
  guest.will_write(IA32_PERFEVTSEL0, select(unhalted_cycles));
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 1);
  guest.will_write(IA32_A_PMC0, 5, 10us);
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 0, 7us);
  guest.backend.script.emplace_back([&](FakeBackend&) {
    guest.time.pass(1s);
    return Interrupted{};
  });
  guest.run();
  EXPECT_EQ(guest.vcpu->pmu().state().pmc[0], 5 + 7000U);
}

TEST(PmuVcpu, RdmsrOfACounterIsUpToDate) {
  ProfiledGuest guest;
  guest.will_write(IA32_PERFEVTSEL0, select(unhalted_cycles));
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 1);
  guest.will_read(IA32_PMC0, 123us);
  guest.run_script();
  EXPECT_EQ(guest.backend.registers.rax, 123'000U);
}

/// One precise session on instructions, with a threshold after `threshold` records.
class PreciseSession : public testing::Test {
 protected:
  void start(std::uint64_t threshold, std::uint64_t event = select(retired_instructions)) {
    guest_.place_loop();
    guest_.set_ds(threshold, 16, minus(period));
    guest_.will_start_pebs(event, minus(period));
  }
  [[nodiscard]] std::uint64_t records() const { return guest_.statistic("pmu.pebs.records"); }
  void run_to_record(std::uint64_t n) {
    guest_.run_until([&] { return records() >= n; });
  }
  ProfiledGuest guest_;
};

// Rules P3, P8, P9: SDM 3B table 18-55, every field.
TEST_F(PreciseSession, RecordLandsInGuestMemory) {
  start(8);
  guest_.backend.registers.r8 = 0x808;
  guest_.backend.registers.rbp = 0xB9;
  std::uint64_t n = 0;  // of the first record of the load
  for (; n == 0 || guest_.field(n - 1, Slot::eventing_ip) != ProfiledGuest::load_at; ++n) {
    ASSERT_LT(n, 16U);
    run_to_record(n + 1);
  }
  const std::uint64_t at_record = ProfiledGuest::buffer + (n - 1) * ProfiledGuest::record_size;
  std::array<std::uint64_t, 25> expected{};
  const auto at = [&](Slot s) -> std::uint64_t& { return expected[static_cast<unsigned>(s)]; };
  at(Slot::rflags) = 0x246;
  at(Slot::rip) = ProfiledGuest::behind_load;
  at(Slot::rax) = 0x1111'2222'3333'4444;
  at(Slot::rbx) = ProfiledGuest::data;
  at(Slot::rbp) = 0xB9;
  at(Slot::rsp) = ProfiledGuest::stack;
  at(Slot::r8) = 0x808;
  at(Slot::status) = 1;
  at(Slot::eventing_ip) = ProfiledGuest::load_at;
  at(Slot::tsc) = ProfiledGuest::tsc;
  std::vector<std::uint8_t> bytes(sizeof expected);
  std::memcpy(bytes.data(), expected.data(), sizeof expected);
  EXPECT_EQ(guest_.load(at_record, sizeof expected), bytes);
  EXPECT_EQ(guest_.pebs_index(), at_record + ProfiledGuest::record_size);
}

// A record with time stamp 0 would be sorted before all others.
TEST_F(PreciseSession, ATscThatCannotBeReadStandsInRecordsCountedAndTold) {
  start(8);
  run_to_record(1);
  EXPECT_EQ(guest_.field(0, Slot::tsc), ProfiledGuest::tsc);
  guest_.backend.broken.insert("tsc");
  run_to_record(3);
  EXPECT_EQ(guest_.field(1, Slot::tsc), ProfiledGuest::tsc);
  EXPECT_EQ(guest_.field(2, Slot::tsc), ProfiledGuest::tsc);
  EXPECT_EQ(guest_.statistic("pmu.tsc.unread"), 2U);
  ASSERT_EQ(guest_.warnings.size(), 1U);
  EXPECT_NE(guest_.warnings[0].find("tsc is broken"), std::string::npos) << guest_.warnings[0];
}

// Rule P6. The time of the walk to the recorded instruction is not counted.
TEST_F(PreciseSession, CounterIsReloadedAndItsStatusCleared) {
  start(8);
  run_to_record(1);
  EXPECT_EQ(guest_.vcpu->pmu().state().pmc[0], minus(period));
  EXPECT_EQ(guest_.vcpu->pmu().state().global_status, 0U);
  EXPECT_EQ(guest_.backend.count("nmi"), 0U) << "below the threshold";
}

TEST_F(PreciseSession, OneRecordForEachPeriod) {
  start(100);
  const nanoseconds begin = guest_.time.now;
  run_to_record(10);
  const auto each = (guest_.time.now - begin) / 10;
  EXPECT_GE(each, 100us);
  EXPECT_LE(each, 115us) << "the timer's shortest time and a walk";
}

// Rules F5, V2: one NMI, through LVTPC.
TEST_F(PreciseSession, ThresholdRaisesOneNmi) {
  start(2);
  run_to_record(1);
  EXPECT_EQ(guest_.backend.count("nmi"), 0U);
  run_to_record(2);
  guest_.run_until([&] { return guest_.backend.count("nmi") == 1; });
  EXPECT_EQ(guest_.vcpu->pmu().state().global_status, vpmu::reg::global_status::OVF_DSBuffer::mask);
  EXPECT_EQ(guest_.backend.apic_word(ProfiledGuest::lvtpc), ProfiledGuest::lvtpc_nmi | ProfiledGuest::lvtpc_mask);
  EXPECT_EQ(guest_.statistic("pmu.pmi.nmi"), 1U);
}

TEST_F(PreciseSession, StoppedCountersMakeNoRecord) {
  start(8);
  run_to_record(1);
  guest_.will_write(IA32_PERF_GLOBAL_CTRL, 0);
  guest_.run_script();
  guest_.time.pass(10ms);
  guest_.run_script();
  EXPECT_EQ(records(), 1U);
  EXPECT_EQ(guest_.vcpu->pmu().state().global_status, 0U);
}

// The instruction of an exit must be completed before the vCPU is single-stepped: otherwise KVM would retire it within
// the walk.
TEST_F(PreciseSession, OpenExitIsCompletedBeforeAWalk) {
  start(8);
  guest_.will_write(MSR_OFFCORE_RSP_0, 0, 150us);  // the counter overflows in this run
  run_to_record(1);
  const auto& calls = guest_.backend.calls;
  const std::size_t completed = position(calls, "complete_exit");
  ASSERT_LT(completed, calls.size());
  const std::size_t next_run = position(calls, "run", completed);
  ASSERT_LT(next_run, calls.size());
  EXPECT_LT(position(calls, "set_guest_debug", completed), next_run) << "the walk starts right after";
  EXPECT_EQ(calls[completed - 1], "debugregs");
  EXPECT_EQ(calls[completed - 2], "run") << "nothing runs between the exit and its completion";
  EXPECT_LT(guest_.field(0, Slot::eventing_ip) - ProfiledGuest::code, vpmu::page_size);
}

// A handler that is entered slowly finds one record, not several.
TEST_F(PreciseSession, NoRecordUntilTheHandlerHasStoppedTheCounters) {
  start(1);
  guest_.run_until([&] { return guest_.backend.count("nmi") == 1; });
  const nanoseconds begin = guest_.time.now;
  guest_.run_until([&] { return guest_.time.now - begin >= 1ms; });
  EXPECT_EQ(records(), 1U);
  guest_.will_write(IA32_PERF_GLOBAL_CTRL, 0);
  guest_.will_write(IA32_PERF_GLOBAL_CTRL, 1);
  guest_.run_script();
  run_to_record(2);
}

TEST_F(PreciseSession, HandlerThatNeverStopsTheCountersGetsRecordsAllTheSame) {
  start(1);
  run_to_record(3);
}

TEST_F(PreciseSession, HandlerThatOnlyUnmasksGetsRecordsAtOnce) {
  start(1);
  guest_.run_until([&] { return guest_.backend.count("nmi") == 1; });
  guest_.backend.set_apic_word(ProfiledGuest::lvtpc, ProfiledGuest::lvtpc_nmi);
  const nanoseconds begin = guest_.time.now;
  run_to_record(2);
  EXPECT_LE(guest_.time.now - begin, 1ms);
}

// Rule V4. A guest that leaves LVTPC masked costs nothing: nothing is looked for when its counters have stopped.
TEST_F(PreciseSession, PmisThatMeetAMaskedLvtpcAreDropped) {
  guest_.backend.set_apic_word(ProfiledGuest::lvtpc, ProfiledGuest::lvtpc_nmi | ProfiledGuest::lvtpc_mask);
  start(1);
  run_to_record(3);
  EXPECT_GE(guest_.statistic("pmu.pmi.dropped"), 3U);
  guest_.will_write(IA32_PERF_GLOBAL_CTRL, 0);
  guest_.run_script();
  const std::size_t looks = guest_.backend.count("lapic");
  guest_.backend.set_apic_word(ProfiledGuest::lvtpc, ProfiledGuest::lvtpc_nmi);
  guest_.will_read(IA32_PERF_GLOBAL_STATUS);
  guest_.run_script();
  EXPECT_EQ(guest_.backend.count("lapic"), looks);
  EXPECT_EQ(guest_.backend.count("nmi"), 0U);
}

// Rule C1: the counter was armed by the clock, but counts user code only, and the guest is in the kernel.
TEST_F(PreciseSession, WalkWaitsForTheRightLevel) {
  constexpr std::uint64_t os = vpmu::bit(17);
  guest_.enter_ring(3);
  for (const std::uint64_t page : {ProfiledGuest::code, ProfiledGuest::data})
    guest_.map(page, vpmu::page_size, {.is_user = true});
  start(8, select(retired_instructions) & ~os);
  guest_.run_until([&] { return guest_.vcpu->pmu().state().armed != 0 || records() != 0; });
  guest_.enter_ring(0);
  guest_.run_until([&] { return guest_.vcpu->pmu().state().armed != 0; });
  for (int n = 0; n < 5; ++n) guest_.run();
  const std::uint64_t before = records();
  EXPECT_GT(guest_.statistic("pmu.walk.wrong_level"), 0U);
  guest_.enter_ring(3);
  run_to_record(before + 1);
}

// Where no instruction can be single-stepped, as these SYSCALLs, the guest must not be stopped all the time.
TEST_F(PreciseSession, CodeWithoutAnInstructionToStepLeavesTheGuestRunning) {
  const std::uint64_t second = guest_.cpu.add(ProfiledGuest::code, X86("syscall"));
  guest_.cpu.add(second, X86("syscall"), [](FakeBackend& p) {
    p.registers.rip = ProfiledGuest::code;
    return std::nullopt;
  });
  guest_.set_ds(8, 16, minus(period));
  guest_.will_start_pebs(select(retired_instructions), minus(period));
  guest_.run_until([&] { return guest_.vcpu->pmu().state().armed != 0; });
  const std::uint64_t tries = guest_.statistic("pmu.walk.nothing_found");
  const nanoseconds begin = guest_.time.now;
  guest_.run_until([&] { return guest_.time.now - begin >= 10ms; });
  EXPECT_GT(guest_.statistic("pmu.walk.nothing_found"), tries);
  EXPECT_LE(guest_.statistic("pmu.walk.nothing_found") - tries, 52U) << "one try each 200 us at the most";
  EXPECT_EQ(records(), 0U);
}

// One precise sample, as Linux takes it (late acknowledge): its cost in exits to user space.
TEST_F(PreciseSession, SampleCostsAtMostTwelveExits) {
  start(1);
  guest_.run_until([&] { return guest_.backend.count("nmi") == 1; });
  const auto exits = [&] {
    return guest_.statistic("pmu.exits.rdmsr") + guest_.statistic("pmu.exits.wrmsr") +
           guest_.statistic("pmu.exits.debug") + guest_.statistic("pmu.walk.runs") + guest_.statistic("pmu.walk.steps");
  };
  const std::uint64_t before = exits();
  guest_.will_write(IA32_PERF_GLOBAL_CTRL, 0);
  guest_.will_read(IA32_PERF_GLOBAL_STATUS);
  guest_.will_write(IA32_PERF_GLOBAL_OVF_CTRL, vpmu::reg::global_status::OVF_DSBuffer::mask);
  guest_.will_read(IA32_PERF_GLOBAL_STATUS);
  guest_.will_write(IA32_PERF_GLOBAL_CTRL, 0x7'0000'000F);
  guest_.run_script();
  guest_.store_word(ProfiledGuest::ds_area + 0x28, ProfiledGuest::buffer);
  guest_.backend.set_apic_word(ProfiledGuest::lvtpc, ProfiledGuest::lvtpc_nmi);
  guest_.run_until([&] { return guest_.backend.count("nmi") == 2; });
  EXPECT_GT(exits(), before);
  EXPECT_LE(exits() - before, 12U);
}

// Rule F10.
TEST(PmuVcpu, FaultOnTheDsAreaIsDroppedAndCounted) {
  ProfiledGuest guest;
  guest.place_loop();
  guest.set_ds(8, 16, minus(period));
  guest.unmap(ProfiledGuest::buffer);
  guest.will_start_pebs(select(retired_instructions), minus(period));
  guest.run_until([&] { return guest.statistic("pmu.pebs.dropped_fault") == 1; });
  EXPECT_EQ(guest.backend.pending.exception.injected, 0);
  EXPECT_EQ(guest.backend.count("set_sregs"), 0U);
}

// Rules O3, V2: without PEBS.
TEST(PmuVcpu, OverflowInterruptOfAPlainCounter) {
  ProfiledGuest guest;
  guest.place_loop();
  guest.backend.set_apic_word(ProfiledGuest::lvtpc, 0xEE);
  guest.will_write(IA32_A_PMC0, minus(50'000));
  guest.will_write(IA32_PERFEVTSEL0, select(unhalted_cycles) | interrupt_on_overflow);
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 1);
  const nanoseconds begin = guest.time.now;
  guest.run_until([&] { return guest.backend.count("interrupt") == 1; });
  EXPECT_GE(guest.time.now - begin, 50us);
  EXPECT_LE(guest.time.now - begin, 65us);
  EXPECT_EQ(guest.vcpu->pmu().state().global_status, 1U);
  EXPECT_EQ(guest.statistic("pmu.pmi.fixed"), 1U);
}

// Rule Z11.
TEST(PmuVcpu, GuestsOwnDebugExceptionIsHandedBack) {
  ProfiledGuest guest;
  guest.will_write(IA32_DEBUGCTL, vpmu::reg::debugctl::LBR::mask);
  guest.backend.script.push_back(FakeBackend::ends_with(Debug{1, ProfiledGuest::code + 1, 0xFFFF'0FF0 | 2, 0x400}));
  guest.run_script();
  EXPECT_EQ(guest.backend.pending.exception.nr, 1);
  EXPECT_EQ(guest.backend.debug_registers.dr6, 0xFFFF'0FF0U | 2);
  EXPECT_EQ(guest.vcpu->pmu().state().debugctl, 0U);
  EXPECT_EQ(guest.statistic("pmu.guest_debug"), 1U);
}

TEST(PmuVcpu, KicksComeBackToTheCaller) {
  ProfiledGuest guest;
  guest.backend.script.push_back(FakeBackend::ends_with(Interrupted{}));
  EXPECT_TRUE(std::holds_alternative<Interrupted>(guest.run()));
  EXPECT_EQ(guest.statistic("pmu.exits.kick"), 1U);
}

TEST(PmuVcpu, FailureOfTheHostEndsTheRunWithItsReason) {
  ProfiledGuest guest;
  guest.backend.broken.insert("run");
  const auto exit = guest.vcpu->run();
  ASSERT_FALSE(exit);
  EXPECT_EQ(exit.error().what, "run is broken");
}

}  // namespace
}  // namespace vmm::test
