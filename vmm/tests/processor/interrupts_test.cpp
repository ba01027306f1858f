#include <gtest/gtest.h>

#include "io_apic_registers.hpp"
#include "processor/interrupt_unit.hpp"
#include "processor/msr_unit.hpp"

namespace vmm::test {
namespace {

using vpmu::MsrStatus;

TEST(ApicTimer, CountsDownInItsDivisor) {
  ApicTimer timer;
  timer.count(100, 16, false, 1000);
  EXPECT_EQ(timer.due(), 1000U + 1600U);
  EXPECT_EQ(timer.left(1000 + 160), 90U);
  EXPECT_FALSE(timer.take_due(2599));
  EXPECT_TRUE(timer.take_due(2600));
  EXPECT_FALSE(timer.due()) << "once";
}

TEST(ApicTimer, ARunningCountGoesOnInAnotherModeAndDivisor) {
  ApicTimer timer;
  timer.count(100, 1, false, 0);
  timer.repeat(100);
  EXPECT_EQ(timer.left(60), 40U) << "not begun anew";
  EXPECT_TRUE(timer.take_due(100));
  EXPECT_EQ(timer.due(), 200U) << "but repeated";
  timer.divide(4, 140);
  EXPECT_EQ(timer.left(140), 60U);
  EXPECT_EQ(timer.due(), 140U + 240U);
  EXPECT_TRUE(timer.take_due(380));
  EXPECT_EQ(timer.due(), 780U) << "the whole period is longer, too";
  timer.repeat(0);
  EXPECT_TRUE(timer.take_due(780));
  EXPECT_FALSE(timer.due());
  timer.repeat(100);
  EXPECT_FALSE(timer.due()) << "a count that is over does not begin again";
}

TEST(ApicTimer, APeriodicOneGoesOnAndJoinsWhatNobodySaw) {
  ApicTimer timer;
  timer.count(10, 1, true, 0);
  EXPECT_TRUE(timer.take_due(35));
  EXPECT_EQ(timer.due(), 40U);
  EXPECT_FALSE(timer.take_due(39));
  timer.count(0, 1, true, 39);
  EXPECT_FALSE(timer.due()) << "a count of 0 stops it";
}

/// The interrupts and MSRs of a vCPU, without the vCPU.
class Interrupts : public testing::Test {
 protected:
  Interrupts() {
    state_.sregs.apic_base = 0xFEE0'0900;
    state_.sregs.efer = 0x500;
  }
  void use_x2apic() {
    ASSERT_EQ(msrs_.write(0x1B, 0xFEE0'0C00), MsrStatus::ok);
    ASSERT_EQ(msrs_.write(0x80F, 0x1FF), MsrStatus::ok);
  }
  void pass(std::uint64_t ticks) {
    time_.pass(ticks);
    unit_.refresh();
  }

  SoftState state_;
  MachineClock clock_;
  VirtualTime time_{clock_, 1'000'000};
  IoApic io_apic_;
  InterruptBus bus_{&io_apic_};
  InterruptUnit unit_{state_, time_, &bus_};
  GuestFeatures features_{CpuidTable{}};
  MsrUnit msrs_{state_, unit_, features_};
};

// SDM 3A 10.12.5.
TEST_F(Interrupts, X2apicRegistersAreMsrsInThatModeOnly) {
  EXPECT_EQ(msrs_.read(0x802).status, MsrStatus::gp);
  EXPECT_EQ(msrs_.write(0x80F, 0x1FF), MsrStatus::gp);
  use_x2apic();
  EXPECT_EQ(msrs_.read(0x802).status, MsrStatus::ok);
  EXPECT_EQ(msrs_.read(0x80D).value, 1U) << "the logical id of id 0";
  EXPECT_EQ(msrs_.read(0x1B).value, 0xFEE0'0D00U) << "it stays the boot processor";
  EXPECT_EQ(msrs_.write(0x1B, 0xFEE0'0800), MsrStatus::gp) << "not back to xAPIC mode";
  EXPECT_EQ(msrs_.write(0x1B, 0xFEE0'0000), MsrStatus::ok);
  EXPECT_EQ(msrs_.write(0x1B, 0xFEE0'0400), MsrStatus::gp) << "not enabled";
  EXPECT_EQ(msrs_.write(0x1B, 0xFEE0'0C00), MsrStatus::gp) << "not at once";
  EXPECT_EQ(msrs_.write(0x1B, 0xFEE0'0800), MsrStatus::ok);
  use_x2apic();
  EXPECT_EQ(msrs_.write(0x802, 0), MsrStatus::gp);
  EXPECT_EQ(msrs_.write(0x80B, 1), MsrStatus::gp) << "EOI takes 0 only";
  EXPECT_EQ(msrs_.read(0x83F).status, MsrStatus::gp);
}

// SDM 3A 10.4.3: the APIC is then as after a reset: pending interrupts and the timer are lost.
TEST_F(Interrupts, ADisabledApicForgetsItsRequestsAndItsTimer) {
  use_x2apic();
  ASSERT_EQ(msrs_.write(0x832, 0x2'0000 | 0x55), MsrStatus::ok);
  ASSERT_EQ(msrs_.write(0x838, 100), MsrStatus::ok);
  ASSERT_EQ(msrs_.write(0x83F, 0x61), MsrStatus::ok);
  ASSERT_EQ(state_.apic.pending(), 0x61);
  ASSERT_LE(unit_.until_due(), 200U);
  ASSERT_EQ(msrs_.write(0x1B, 0xFEE0'0000), MsrStatus::ok);
  EXPECT_FALSE(state_.apic.pending());
  EXPECT_EQ(unit_.until_due(), ~0ULL);
  ASSERT_EQ(msrs_.write(0x1B, 0xFEE0'0800), MsrStatus::ok);
  use_x2apic();
  pass(1000);
  EXPECT_FALSE(state_.apic.pending());
  EXPECT_EQ(msrs_.read(0x832).value, 0x1'0000U) << "masked, as at the start";
}

// SDM 3C table 35-2. Linux reads it for the microcode update unless CPUID shows a hypervisor.
TEST_F(Interrupts, ThePlatformIdIsReadOnly) {
  EXPECT_EQ(msrs_.read(0x17).status, MsrStatus::ok);
  EXPECT_EQ(msrs_.read(0x17).value, 0U);
  EXPECT_EQ(msrs_.write(0x17, 1ULL << 50), MsrStatus::gp);
}

TEST_F(Interrupts, AProcessorInterruptsItself) {
  use_x2apic();
  ASSERT_EQ(msrs_.write(0x83F, 0x61), MsrStatus::ok);
  EXPECT_EQ(state_.apic.pending(), 0x61);
  state_.apic.accept(0x61);
  ASSERT_EQ(msrs_.write(0x830, 0x71), MsrStatus::ok);
  EXPECT_EQ(state_.apic.pending(), 0x71) << "by its id, through ICR";
  state_.apic.accept(0x71);
  ASSERT_EQ(msrs_.write(0x830, 3U << 18 | 0x81), MsrStatus::ok);
  EXPECT_FALSE(state_.apic.pending()) << "all but itself";
}

TEST_F(Interrupts, ALineReachesTheVcpu) {
  use_x2apic();
  redirect(io_apic_, 4, 0x8034);
  io_apic_.set_line(4, LineLevel::high);
  unit_.refresh();
  ASSERT_EQ(state_.apic.pending(), 0x34);
  state_.apic.accept(0x34);
  unit_.refresh();
  EXPECT_FALSE(state_.apic.pending());
  ASSERT_EQ(msrs_.write(0x80B, 0), MsrStatus::ok);
  unit_.refresh();
  EXPECT_EQ(state_.apic.pending(), 0x34) << "its end told the IOAPIC";
}

// SDM 3A 10.8.4, 10.8.5: TMR tells of each request whether a line's level made it; only then does EOI reach the I/O
// APIC.
TEST_F(Interrupts, OnlyTheEndOfALevelsInterruptIsTold) {
  const auto trigger_mode = [&](std::uint8_t vector) {
    return unit_.read(0x180 + vector / 32 * 0x10U) >> vector % 32 & 1;
  };
  unit_.write(apic::spurious, 0x1FF);
  redirect(io_apic_, 4, 0x8079);
  io_apic_.set_line(4, LineLevel::high);
  unit_.refresh();
  EXPECT_EQ(trigger_mode(0x79), 1U);
  state_.apic.accept(0x79);
  EXPECT_EQ(redirection(io_apic_, 4) & 0x4000U, 0x4000U) << "remote IRR";
  state_.apic.request(0x89);
  state_.apic.accept(0x89);
  unit_.write(apic::end_of_interrupt, 0);
  EXPECT_EQ(redirection(io_apic_, 4) & 0x4000U, 0x4000U) << "the other interrupt's end";
  io_apic_.set_line(4, LineLevel::low);
  unit_.write(apic::end_of_interrupt, 0);
  EXPECT_EQ(redirection(io_apic_, 4) & 0x4000U, 0U);
  redirect(io_apic_, 4, 0x79);
  io_apic_.set_line(4, LineLevel::high);
  unit_.refresh();
  EXPECT_EQ(trigger_mode(0x79), 0U) << "an edge";
}

// SDM 3A 10.5.3.
TEST_F(Interrupts, ErrorsShowOnceTheStatusIsWritten) {
  unit_.write(apic::spurious, 0x1FF);
  unit_.write(apic::lvt_error, 0x51);
  unit_.write(apic::command_low, 0x0F);
  EXPECT_EQ(state_.apic.pending(), 0x51) << "sent an illegal vector";
  EXPECT_EQ(unit_.read(apic::error_status), 0U);
  unit_.receive({.vector = 3});
  unit_.write(0x400, 1);
  unit_.write(apic::error_status, 0x1234);
  EXPECT_EQ(unit_.read(apic::error_status), 0xE0U) << "sent, received, and a register that is none";
  unit_.write(apic::error_status, 0);
  EXPECT_EQ(unit_.read(apic::error_status), 0U);
}

// SDM 3A figure 10-8.
TEST_F(Interrupts, ReservedBitsReadZeroInThePageAndFaultAsMsrs) {
  unit_.write(apic::spurious, 0x1FF);
  const std::array<std::pair<std::uint32_t, std::uint32_t>, 9> kept{{{apic::task_priority, 0xFF},
                                                                     {apic::lvt_timer, 0x6'00FF},
                                                                     {apic::lvt_cmci, 0x7FF},
                                                                     {apic::lvtpc, 0x7FF},
                                                                     {apic::lvt_lint0, 0xA7FF},
                                                                     {apic::lvt_error, 0xFF},
                                                                     {apic::divide, 0xB},
                                                                     {apic::command_high, 0xFF00'0000},
                                                                     {apic::logical_destination, 0xFF00'0000}}};
  for (const auto& [offset, bits] : kept) {
    unit_.write(offset, ~0x1'0000U);
    EXPECT_EQ(unit_.read(offset), bits) << std::hex << offset;
  }
  use_x2apic();
  EXPECT_EQ(msrs_.write(0x808, 0x100), MsrStatus::gp) << "TPR";
  EXPECT_EQ(msrs_.write(0x832, 0x100), MsrStatus::gp) << "the timer has no delivery mode";
  EXPECT_EQ(msrs_.write(0x834, 0x1'1400), MsrStatus::ok) << "LVTPC with its delivery status, which is read-only";
  EXPECT_EQ(msrs_.read(0x834).value, 0x1'0400U);
  EXPECT_EQ(msrs_.write(0x830, 1 << 13), MsrStatus::gp);
  EXPECT_EQ(msrs_.write(0x83F, 0x100), MsrStatus::gp);
  for (const std::uint32_t index : {0x800U, 0x809U, 0x80EU, 0x831U, 0x83BU, 0x840U, 0x8FFU}) {
    EXPECT_EQ(msrs_.read(index).status, MsrStatus::gp) << std::hex << index;
    EXPECT_EQ(msrs_.write(index, 0), MsrStatus::gp) << std::hex << index;
  }
}

// SDM 3A 10.5.4.
TEST_F(Interrupts, TheTimersModeChangesWhileItCounts) {
  use_x2apic();
  ASSERT_EQ(msrs_.write(0x83E, 0xB), MsrStatus::ok);  // divide by 1
  ASSERT_EQ(msrs_.write(0x832, 0xEC), MsrStatus::ok);
  ASSERT_EQ(msrs_.write(0x838, 1000), MsrStatus::ok);
  pass(600);
  ASSERT_EQ(msrs_.write(0x832, 0x2'00EC), MsrStatus::ok);
  EXPECT_EQ(msrs_.read(0x839).value, 400U) << "periodic from now on";
  pass(500);
  EXPECT_EQ(msrs_.read(0x839).value, 900U);
  ASSERT_EQ(msrs_.write(0x832, 0xEC), MsrStatus::ok);
  pass(900);
  EXPECT_EQ(msrs_.read(0x839).value, 0U) << "once again";
  ASSERT_EQ(msrs_.write(0x832, 0x2'00EC), MsrStatus::ok);
  EXPECT_EQ(msrs_.read(0x839).value, 0U) << "and then it stays at 0";
}

// SDM 3A 10.5.4.1.
TEST_F(Interrupts, ADeadlineIsInTermsOfTheTsc) {
  use_x2apic();
  ASSERT_EQ(msrs_.write(0x6E0, 500), MsrStatus::ok);
  EXPECT_EQ(msrs_.read(0x6E0).value, 0U) << "not in that mode yet";
  ASSERT_EQ(msrs_.write(0x832, 0x4'00EC), MsrStatus::ok);
  ASSERT_EQ(msrs_.write(0x6E0, 500), MsrStatus::ok);
  EXPECT_EQ(unit_.until_due(), 500U);
  ASSERT_EQ(msrs_.write(0x3B, 100), MsrStatus::ok);
  EXPECT_EQ(time_.tsc(), 100U) << "TSC_ADJUST moves the TSC";
  EXPECT_EQ(unit_.until_due(), 400U) << "and with it what is left";
  pass(399);
  EXPECT_FALSE(state_.apic.pending());
  pass(1);
  EXPECT_EQ(state_.apic.pending(), 0xEC);
  EXPECT_EQ(msrs_.read(0x6E0).value, 0U);
}

TEST_F(Interrupts, ACountInterruptsAndAMaskedOneDoesNot) {
  use_x2apic();
  ASSERT_EQ(msrs_.write(0x83E, 0xB), MsrStatus::ok);  // divide by 1
  ASSERT_EQ(msrs_.write(0x832, 0x2'00EC), MsrStatus::ok);
  ASSERT_EQ(msrs_.write(0x838, 50), MsrStatus::ok);
  pass(20);
  EXPECT_EQ(msrs_.read(0x839).value, 30U);
  pass(30);
  ASSERT_EQ(state_.apic.pending(), 0xEC);
  state_.apic.accept(0xEC);
  ASSERT_EQ(msrs_.write(0x80B, 0), MsrStatus::ok);
  ASSERT_EQ(msrs_.write(0x832, 0x3'00EC), MsrStatus::ok);
  pass(50);
  EXPECT_FALSE(state_.apic.pending());
  EXPECT_EQ(unit_.until_due(), 50U) << "it counts on";
}

TEST_F(Interrupts, MsrsThatHoldWhatMayBeThere) {
  EXPECT_EQ(msrs_.write(0xC000'0082, 0x8000'0000'0000), MsrStatus::gp) << "LSTAR is an address";
  EXPECT_EQ(msrs_.write(0xC000'0082, 0xFFFF'8000'0000'0000), MsrStatus::ok);
  EXPECT_EQ(msrs_.read(0xC000'0082).value, 0xFFFF'8000'0000'0000U);
  EXPECT_EQ(msrs_.write(0xC000'0080, 0x2), MsrStatus::gp);
  state_.sregs.cr0 = 0x8000'0001;
  EXPECT_EQ(msrs_.write(0xC000'0080, 0), MsrStatus::gp) << "long mode stays while there is paging";
  EXPECT_EQ(msrs_.write(0xC000'0080, 0x901), MsrStatus::ok);
  EXPECT_EQ(msrs_.read(0xC000'0080).value, 0xD01U);
  EXPECT_EQ(msrs_.read(0x277).value, 0x0007'0406'0007'0406U) << "PAT after reset";
  EXPECT_EQ(msrs_.write(0x8B, 5), MsrStatus::ok);
  EXPECT_EQ(msrs_.read(0x8B).value, 0U) << "the microcode's revision is not the guest's";
  EXPECT_EQ(msrs_.read(0x38F).status, MsrStatus::unknown) << "the PMU's";
}

}  // namespace
}  // namespace vmm::test
