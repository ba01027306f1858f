#include <gtest/gtest.h>

#include "io_apic_registers.hpp"

namespace vmm::test {
namespace {

TEST(IoApic, SaysWhatItIs) {
  IoApic apic;
  apic.write(io_apic_index_at, 1);
  EXPECT_EQ(apic.read(io_apic_data_at), 0x17'0011U) << "24 lines, version 11H";
  EXPECT_EQ(redirection(apic, 23), 0x1'0000U) << "masked after reset";
  apic.write(io_apic_index_at, 0xFF);
  EXPECT_EQ(apic.read(io_apic_data_at), 0U);
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
  apic.write(io_apic_index_at, 0x2A);
  ByteWriter saved;
  apic.save(saved);
  const Bytes image = saved.take();
  IoApic other;
  ByteReader in{image};
  ASSERT_TRUE(other.restore(in));
  EXPECT_TRUE(in.done());
  EXPECT_EQ(other.read(io_apic_index_at), 0x2AU);
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
  apic.write(io_apic_index_at, 0x10 + 2 * 4 + 1);
  apic.write(io_apic_data_at, 0x0200'0000);
  apic.set_line(4, LineLevel::high);
  EXPECT_EQ(
      apic.take(),
      (ApicMessage{.vector = 0x34, .mode = ApicMessage::Mode::lowest_priority, .logical = true, .destination = 2}));
}

// Data sheet 3.2.4, bit 16: an edge on a masked line is neither delivered nor held; a level is seen once it is
// unmasked.
TEST(IoApic, AMaskedLineLosesEdgesAndNotItsLevel) {
  constexpr std::uint32_t masked = 1 << 16, level = 1 << 15;
  IoApic apic;
  redirect(apic, 4, masked | 0x34);
  apic.set_line(4, LineLevel::high);
  redirect(apic, 4, 0x34);
  EXPECT_FALSE(apic.take());
  apic.set_line(4, LineLevel::low);
  apic.set_line(4, LineLevel::high);
  EXPECT_EQ(vector_of(apic), 0x34U);
  redirect(apic, 9, masked | level | 0x35);
  apic.set_line(9, LineLevel::high);
  EXPECT_FALSE(apic.take());
  redirect(apic, 9, level | 0x35);
  EXPECT_EQ(vector_of(apic), 0x35U);
  redirect(apic, 9, 0x35);
  EXPECT_FALSE(apic.take()) << "the line's rise was no edge while the entry had its level";
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

}  // namespace
}  // namespace vmm::test
