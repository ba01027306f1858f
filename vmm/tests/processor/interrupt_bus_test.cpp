// Interrupts between processors without KVM. SDM 3A 10.6, 10.12.
#include <gtest/gtest.h>

#include <array>
#include <deque>

#include "processor/interrupt_unit.hpp"
#include "processor/msr_unit.hpp"
#include "vpmu/msr.hpp"

namespace vmm::test {
namespace {

using vpmu::MsrStatus;

constexpr std::uint64_t logical = 1 << 11, assert_level = 1 << 14, to_all = 2 << 18, to_others = 3 << 18;
constexpr std::uint64_t lowest_priority = 1 << 8, nmi = 4 << 8, init = 5 << 8, start_up = 6 << 8;
constexpr std::uint64_t to(std::uint64_t id) { return id << 32; }

/// The APICs of several processors on one bus, without the processors.
class Bus : public testing::Test {
 protected:
  struct Cpu {
    Cpu(Bus& owner, std::uint32_t id) : time{owner.clock_, 1'000'000}, unit{state, time, &owner.bus_} {
      state.id = id;
      state.apic.reset(id);
      state.sregs.apic_base = 0xFEE0'0800;
      unit.write(apic::spurious, 0x1FF);
    }
    SoftState state;
    VirtualTime time;
    InterruptUnit unit;
    GuestFeatures features{CpuidTable{}};
    MsrUnit msrs{state, unit, features};
  };
  Bus() {
    for (std::uint32_t id = 0; id < 18; ++id) cpus_.emplace_back(*this, id);
  }
  void use_x2apic() {
    for (Cpu& cpu : cpus_) ASSERT_EQ(cpu.msrs.write(0x1B, 0xFEE0'0C00), MsrStatus::ok);
  }
  void send(std::uint32_t from, std::uint64_t command) {
    ASSERT_EQ(cpus_[from].msrs.write(vpmu::msr::IA32_X2APIC_ICR.value(), command), MsrStatus::ok);
  }
  /// Sends an IPI in xAPIC mode.
  void send(std::uint32_t from, std::uint32_t destination, std::uint32_t command) {
    cpus_[from].unit.write(apic::command_high, destination << 24);
    cpus_[from].unit.write(apic::command_low, command);
  }
  /// The ids of the processors for which the vector is pending. Each accepts it and writes EOI.
  std::vector<std::uint32_t> take(std::uint8_t vector) {
    std::vector<std::uint32_t> found;
    for (Cpu& cpu : cpus_) {
      if (cpu.state.apic.pending() != vector) continue;
      found.push_back(cpu.state.id);
      cpu.state.apic.accept(vector);
      cpu.unit.write(apic::end_of_interrupt, 0);
    }
    return found;
  }
  using Ids = std::vector<std::uint32_t>;

  MachineClock clock_;
  IoApic io_apic_;
  InterruptBus bus_{&io_apic_};
  std::deque<Cpu> cpus_;
};

TEST_F(Bus, AnIdIsOneProcessors) {
  use_x2apic();
  EXPECT_EQ(cpus_[17].msrs.read(0x802).value, 17U);
  send(0, to(17) | 0x41);
  EXPECT_EQ(take(0x41), Ids{17});
  send(17, to(17) | 0x41);
  EXPECT_EQ(take(0x41), Ids{17}) << "itself";
  send(0, to(18) | 0x41);
  EXPECT_EQ(take(0x41), Ids{}) << "nobody has that";
  EXPECT_EQ(cpus_[0].msrs.read(vpmu::msr::IA32_X2APIC_ICR.value()).value, to(18) | 0x41);
}

TEST_F(Bus, ShorthandsAndEveryone) {
  use_x2apic();
  send(3, to_others | 0x41);
  EXPECT_EQ(take(0x41).size(), 17U);
  send(3, to_all | 0x42);
  EXPECT_EQ(take(0x42).size(), 18U);
  send(3, to(0xFFFF'FFFF) | 0x43);
  EXPECT_EQ(take(0x43).size(), 18U);
  send(3, to(0xFF) | 0x44);
  EXPECT_EQ(take(0x44).size(), 0U) << "an id in x2APIC mode";
  send(3, to_others | 0x0F);
  EXPECT_EQ(take(0x0F).size(), 0U) << "no interrupt has that vector";
}

// SDM 3A 10.4.3.
TEST_F(Bus, AnApicThatIsDisabledGetsNothing) {
  ASSERT_EQ(cpus_[2].msrs.write(0x1B, 0xFEE0'0000), MsrStatus::ok);
  send(0, 2, 0x4050);
  EXPECT_EQ(take(0x50), std::vector<std::uint32_t>{});
  send(0, 0xFF, 0x4051);
  const std::vector<std::uint32_t> taken = take(0x51);
  EXPECT_EQ(taken.size(), 17U);
  EXPECT_EQ(std::ranges::count(taken, 2U), 0);
}

// SDM 3A 10.12.10.
TEST_F(Bus, LogicalIdsInX2apicMode) {
  use_x2apic();
  EXPECT_EQ(cpus_[17].msrs.read(0x80D).value, 0x1'0002U) << "cluster 1, the second of it";
  send(0, to(0x1'0003) | logical | 0x41);
  EXPECT_EQ(take(0x41), (Ids{16, 17}));
  send(0, to(0x0000'8005) | logical | 0x41);
  EXPECT_EQ(take(0x41), (Ids{0, 2, 15}));
}

// SDM 3A 10.6.2.2.
TEST_F(Bus, LogicalIdsInXapicMode) {
  for (Cpu& cpu : cpus_)
    if (cpu.state.id < 8) cpu.unit.write(apic::logical_destination, 1U << (24 + cpu.state.id));
  send(0, 0x82, logical | 0x41);
  EXPECT_EQ(take(0x41), (Ids{1, 7})) << "flat";
  for (Cpu& cpu : cpus_) {
    cpu.unit.write(apic::destination_format, 0);
    cpu.unit.write(apic::logical_destination, (cpu.state.id / 4 << 4 | 1U << cpu.state.id % 4) << 24);
  }
  send(0, 0x13, logical | 0x42);
  EXPECT_EQ(take(0x42), (Ids{4, 5})) << "clusters";
  send(0, 0xFF, 0x43);
  EXPECT_EQ(take(0x43).size(), 18U) << "everyone";
  send(0, 9, 0x44);
  EXPECT_EQ(take(0x44), Ids{9}) << "by its id";
}

TEST_F(Bus, TheLeastPriorityTakesIt) {
  use_x2apic();
  for (Cpu& cpu : cpus_) cpu.unit.write(apic::task_priority, cpu.state.id == 5 ? 0x10 : 0x20);
  send(0, to_all | lowest_priority | 0x41);
  EXPECT_EQ(take(0x41), Ids{5});
}

TEST_F(Bus, DevicesReachWhomTheyName) {
  use_x2apic();
  io_apic_.send(0xFEE0'7000, 0x51);
  cpus_[2].unit.refresh();
  EXPECT_EQ(take(0x51), Ids{7}) << "whoever looks hands it on";
}

TEST_F(Bus, NmisAreNoVectors) {
  use_x2apic();
  send(0, to(1) | nmi | 0x41);
  EXPECT_EQ(take(0x41), Ids{});
  EXPECT_EQ(cpus_[1].state.events.nmi.pending, 1);
  EXPECT_EQ(cpus_[0].state.events.nmi.pending, 0);
}

// SDM 3A 8.4.4.1: INIT, and then a start-up IPI. A running processor ignores a start-up IPI.
TEST_F(Bus, StartsProcessors) {
  use_x2apic();
  send(0, to(1) | start_up | 0x9A);
  EXPECT_FALSE(cpus_[1].state.start_pending) << "it runs";
  send(0, to(1) | init | assert_level);
  ASSERT_TRUE(cpus_[1].state.init_pending);
  send(0, to(1) | start_up | 0x9A);
  EXPECT_EQ(cpus_[1].state.start_pending, 0x9A);
  send(0, to(2) | init);
  EXPECT_FALSE(cpus_[2].state.init_pending) << "de-asserted";
}

TEST_F(Bus, WhatInitLeaves) {
  SoftState& s = cpus_[3].state;
  s.regs.rax = 5;
  s.msrs[0xC000'0082] = 0x1234;
  s.halted = true;
  s.apic.request(0x41);
  reset_by_init(s);
  EXPECT_TRUE(s.waits_for_start);
  EXPECT_FALSE(s.halted);
  EXPECT_EQ(s.regs.rax, 0U);
  EXPECT_EQ(s.sregs.cr0, 0x6000'0010U);
  EXPECT_EQ(s.sregs.apic_base, 0xFEE0'0800U);
  EXPECT_EQ(s.msrs[0xC000'0082], 0x1234U) << "MSRs stay";
  EXPECT_EQ(s.apic.read(apic::id), 3U << 24);
  EXPECT_EQ(s.apic.read(apic::spurious), 0xFFU);
  start_at_page(s, 0x9A);
  EXPECT_FALSE(s.waits_for_start);
  EXPECT_EQ(s.sregs.cs.base, 0x9'A000U);
  EXPECT_EQ(s.sregs.cs.selector, 0x9A00);
  EXPECT_EQ(s.regs.rip, 0U);
}

}  // namespace
}  // namespace vmm::test
