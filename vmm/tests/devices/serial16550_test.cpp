#include "devices/serial16550.hpp"

#include <gtest/gtest.h>

#include <string>

#include "devices/fake_chips.hpp"

namespace vmm {
namespace {

constexpr std::uint16_t base = Serial16550::com1_port;

class SerialTest : public testing::Test {
 protected:
  std::uint8_t read(unsigned offset) {
    return test::in<std::uint8_t>(serial, static_cast<std::uint16_t>(base + offset));
  }
  void write(unsigned offset, std::uint8_t value) {
    test::out(serial, static_cast<std::uint16_t>(base + offset), value);
  }
  void type(const std::string& text) { EXPECT_EQ(serial.receive(std::as_bytes(std::span{text})), text.size()); }
  void connect_interrupts(std::uint8_t enable) {
    write(4, 0x0B);  // DTR, RTS, OUT2
    write(1, enable);
  }

  std::string sent;
  test::FakeLine line;
  Serial16550 serial{[this](std::uint8_t byte) { sent += static_cast<char>(byte); }, line};
};

TEST_F(SerialTest, WrittenBytesGoOutAndTheTransmitterIsAlwaysEmpty) {
  for (const char c : std::string{"ok\n"}) {
    EXPECT_EQ(read(5) & 0x60, 0x60);
    write(0, static_cast<std::uint8_t>(c));
  }
  EXPECT_EQ(sent, "ok\n");
}

TEST_F(SerialTest, TypedBytesAreReadInOrder) {
  EXPECT_EQ(read(5) & 1, 0);
  type("ab");
  EXPECT_EQ(read(5) & 1, 1);
  EXPECT_EQ(read(0), 'a');
  EXPECT_EQ(read(0), 'b');
  EXPECT_EQ(read(5) & 1, 0);
}

TEST_F(SerialTest, ReceivedDataRaisesTheLineUntilItIsRead) {
  connect_interrupts(1);
  EXPECT_FALSE(line.high());
  type("a");
  EXPECT_TRUE(line.high());
  EXPECT_EQ(read(2) & 0x0F, 0x04);
  EXPECT_TRUE(line.high());
  EXPECT_EQ(read(0), 'a');
  EXPECT_FALSE(line.high());
}

TEST_F(SerialTest, EmptyTransmitterInterruptIsAcknowledgedByReadingItsIdentity) {
  connect_interrupts(2);
  EXPECT_TRUE(line.high());
  EXPECT_EQ(read(2) & 0x0F, 0x02);
  EXPECT_FALSE(line.high());
  EXPECT_EQ(read(2) & 0x0F, 0x01);
  write(0, 'x');
  EXPECT_TRUE(line.high());
}

TEST_F(SerialTest, WithoutOut2TheLineStaysLow) {
  write(1, 3);
  type("a");
  write(0, 'x');
  EXPECT_FALSE(line.high());
}

TEST_F(SerialTest, DivisorLatchHidesDataAndInterruptEnable) {
  write(3, 0x83);
  write(0, 0x12);
  write(1, 0x34);
  EXPECT_EQ(read(0), 0x12);
  EXPECT_EQ(read(1), 0x34);
  write(3, 0x03);
  EXPECT_EQ(read(1), 0);
  EXPECT_EQ(sent, "");
}

TEST_F(SerialTest, LoopBackReturnsWhatIsSentAndTheModemLines) {
  write(4, 0x1F);
  write(0, 'z');
  EXPECT_EQ(sent, "");
  EXPECT_EQ(read(0), 'z');
  EXPECT_EQ(read(6) & 0xF0, 0xF0);
  write(4, 0x12);  // loop, RTS -> CTS
  EXPECT_EQ(read(6) & 0xF0, 0x10);
}

TEST_F(SerialTest, FifoShowsInTheIdentityAndCanBeCleared) {
  EXPECT_EQ(read(2) & 0xC0, 0);
  type("abc");
  write(2, 0x03);
  EXPECT_EQ(read(2) & 0xC0, 0xC0);
  EXPECT_EQ(read(5) & 1, 0);
}

TEST_F(SerialTest, ScratchKeepsItsValue) {
  write(7, 0xA5);
  EXPECT_EQ(read(7), 0xA5);
}

TEST_F(SerialTest, InputWithoutEndIsBounded) {
  const std::vector<std::byte> flood(Serial16550::max_waiting + 100);
  EXPECT_EQ(serial.receive(flood), Serial16550::max_waiting);
  EXPECT_EQ(serial.receive(flood), 0U);
  (void)read(0);
  EXPECT_EQ(serial.receive(flood), 1U);
}

}  // namespace
}  // namespace vmm
