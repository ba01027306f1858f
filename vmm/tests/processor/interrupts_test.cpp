#include <gtest/gtest.h>

#include "processor/interrupt_unit.hpp"
#include "processor/msr_unit.hpp"

namespace vmm::test {
namespace {

using vpmu::MsrStatus;

constexpr std::uint32_t index_at = 0, data_at = 0x10;

/// The low half of a redirection table entry.
void redirect(IoApic& apic, unsigned line, std::uint32_t entry) {
  apic.write(index_at, 0x10 + 2 * line);
  apic.write(data_at, entry);
}
std::uint32_t redirection(IoApic& apic, unsigned line) {
  apic.write(index_at, 0x10 + 2 * line);
  return apic.read(data_at);
}

TEST(IoApic, SaysWhatItIs) {
  IoApic apic;
  apic.write(index_at, 1);
  EXPECT_EQ(apic.read(data_at), 0x17'0011U) << "24 lines, version 11H";
  EXPECT_EQ(redirection(apic, 23), 0x1'0000U) << "masked after reset";
  apic.write(index_at, 0xFF);
  EXPECT_EQ(apic.read(data_at), 0U);
}

/// The vector of the next message.
std::optional<unsigned> vector_of(IoApic& apic) {
  const auto message = apic.take();
  return message ? std::optional<unsigned>{message->vector} : std::nullopt;
}

TEST(IoApic, AnEdgeInterruptsOnce) {
  IoApic apic;
  redirect(apic, 4, 0x34);
  EXPECT_FALSE(apic.take());
  apic.set_line(4, LineLevel::high);
  EXPECT_EQ(vector_of(apic), 0x34U);
  EXPECT_FALSE(apic.take());
  apic.end_of_interrupt(0x34);
  EXPECT_FALSE(apic.take()) << "still high, but no new edge";
  apic.set_line(4, LineLevel::low);
  apic.set_line(4, LineLevel::high);
  EXPECT_EQ(vector_of(apic), 0x34U);
}

TEST(IoApic, GoesOnWhereItWasSaved) {
  constexpr std::uint32_t level = 1 << 15;
  IoApic apic;
  redirect(apic, 4, 0x34);
  redirect(apic, 9, 0x59 | level);
  apic.set_line(4, LineLevel::high);
  apic.set_line(9, LineLevel::high);
  EXPECT_EQ(vector_of(apic), 0x34U);
  EXPECT_EQ(vector_of(apic), 0x59U);
  apic.send(0xFEE0'3000, 0x41);
  apic.write(index_at, 0x2A);
  ByteWriter saved;
  apic.save(saved);
  const Bytes image = saved.take();
  IoApic other;
  ByteReader in{image};
  ASSERT_TRUE(other.restore(in));
  EXPECT_TRUE(in.done());
  EXPECT_EQ(other.read(index_at), 0x2AU);
  EXPECT_EQ(vector_of(other), 0x41U) << "it waited";
  other.set_line(4, LineLevel::high);
  EXPECT_FALSE(other.take()) << "it was high";
  other.end_of_interrupt(0x59);
  EXPECT_EQ(vector_of(other), 0x59U) << "still high";
  for (std::size_t size = 0; size < image.size(); ++size) {
    ByteReader part{std::span{image}.first(size)};
    EXPECT_FALSE(IoApic{}.restore(part)) << size;
  }
  Bytes bad = image;
  bad[image.size() - 20] = std::byte{15};  // the message's vector
  ByteReader refused{bad};
  EXPECT_FALSE(IoApic{}.restore(refused));
}

// SDM 3A 10.11.
TEST(IoApic, PassesMessagesOn) {
  using Mode = ApicMessage::Mode;
  IoApic apic;
  apic.send(0xFEE0'3000, 0x41);
  apic.send(0xFEEF'F000, 0x31);
  apic.send(0xFEE0'1004, 0x151);
  apic.send(0xFEE0'3000, 0x41);
  EXPECT_EQ(apic.take(), (ApicMessage{.vector = 0x31, .everyone = true, .destination = 0xFF}));
  EXPECT_EQ(apic.take(), (ApicMessage{.vector = 0x41, .destination = 3})) << "two that are the same join, as in IRR";
  EXPECT_EQ(apic.take(),
            (ApicMessage{.vector = 0x51, .mode = Mode::lowest_priority, .logical = true, .destination = 1}));
  EXPECT_FALSE(apic.take());
}

TEST(IoApic, LosesMessagesThatAreNoInterrupts) {
  IoApic apic;
  apic.send(0xE000'0000, 0x41);
  apic.send(0x1'FEE0'0000, 0x41);
  apic.send(0xFEE0'0000, 0x0F);
  apic.send(0xFEE0'0000, 0x441);
  EXPECT_FALSE(apic.take()) << "no interrupt's address twice, a vector that there is not, an NMI";
}

// I/O APIC data sheet 3.2.4.
TEST(IoApic, ALineLeadsToWhomItsEntryNames) {
  IoApic apic;
  redirect(apic, 4, 0x934);
  apic.write(index_at, 0x10 + 2 * 4 + 1);
  apic.write(data_at, 0x0200'0000);
  apic.set_line(4, LineLevel::high);
  EXPECT_EQ(
      apic.take(),
      (ApicMessage{.vector = 0x34, .mode = ApicMessage::Mode::lowest_priority, .logical = true, .destination = 2}));
}

TEST(IoApic, AMaskedLineWaits) {
  IoApic apic;
  redirect(apic, 4, 0x1'0034);
  apic.set_line(4, LineLevel::high);
  EXPECT_FALSE(apic.take());
  redirect(apic, 4, 0x34);
  EXPECT_EQ(vector_of(apic), 0x34U);
}

TEST(IoApic, ALevelInterruptsAgainUntilItIsLow) {
  IoApic apic;
  redirect(apic, 9, 0x8040);
  apic.set_line(9, LineLevel::high);
  EXPECT_EQ(vector_of(apic), 0x40U);
  EXPECT_FALSE(apic.take()) << "not before it is served";
  EXPECT_EQ(redirection(apic, 9) & 0x4000U, 0x4000U) << "remote IRR";
  apic.end_of_interrupt(0x40);
  EXPECT_EQ(vector_of(apic), 0x40U);
  apic.set_line(9, LineLevel::low);
  apic.end_of_interrupt(0x40);
  EXPECT_FALSE(apic.take());
}

TEST(IoApic, LinesThatDoNotExistAreIgnored) {
  IoApic apic;
  apic.set_line(24, LineLevel::high);
  apic.set_line(~0U, LineLevel::high);
  EXPECT_FALSE(apic.take());
}

TEST(ApicTimer, CountsDownInItsDivisor) {
  ApicTimer timer;
  timer.count(100, 16, false, 1000);
  EXPECT_EQ(timer.due(), 1000U + 1600U);
  EXPECT_EQ(timer.left(1000 + 160), 90U);
  EXPECT_FALSE(timer.take_due(2599));
  EXPECT_TRUE(timer.take_due(2600));
  EXPECT_FALSE(timer.due()) << "once";
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
