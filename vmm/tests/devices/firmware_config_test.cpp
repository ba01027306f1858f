#include "devices/firmware_config.hpp"

#include <gtest/gtest.h>

#include <array>

// QEMU docs/specs/fw_cfg.

namespace vmm {
namespace {

constexpr std::uint64_t memory_bytes = 0x1'2345'6000;

class Firmware : public testing::Test {
 protected:
  void select(std::uint16_t item) { device_.port_write(0x510, std::as_bytes(std::span{&item, 1})); }
  std::uint8_t byte() {
    std::array<std::byte, 1> out{std::byte{0xFF}};
    device_.port_read(0x511, out);
    return static_cast<std::uint8_t>(out[0]);
  }
  std::uint64_t bytes(unsigned count) {
    std::uint64_t value = 0;
    for (unsigned n = 0; n < count; ++n) value |= std::uint64_t{byte()} << 8 * n;
    return value;
  }
  FirmwareConfig device_{memory_bytes, 3};
};

TEST_F(Firmware, TellsOfTheMachine) {
  select(0);
  EXPECT_EQ(bytes(4), 0x554D'4551U) << "QEMU";
  select(3);
  EXPECT_EQ(bytes(8), memory_bytes);
  for (const std::uint16_t item : {std::uint16_t{5}, std::uint16_t{15}}) {
    select(item);
    EXPECT_EQ(bytes(2), 3U);
  }
  select(0x8000);
  EXPECT_EQ(bytes(8), 0U);
}

TEST_F(Firmware, BehindItsEndAnItemReadsAsZero) {
  select(3);
  EXPECT_EQ(bytes(8), memory_bytes);
  for (unsigned n = 0; n < 70'000; ++n) ASSERT_EQ(byte(), 0U);
}

TEST_F(Firmware, AccessesOfOtherSizesAndPortsDoNothing) {
  select(3);
  const std::byte zero{};
  device_.port_write(0x510, {&zero, 1});
  device_.port_write(0x511, std::as_bytes(std::span{&memory_bytes, 1}).first(2));
  std::array<std::byte, 2> word{std::byte{0xFF}, std::byte{0xFF}};
  device_.port_read(0x511, word);
  device_.port_read(0x510, std::span{word}.first(1));
  EXPECT_EQ(word[0], std::byte{0xFF});
  EXPECT_EQ(bytes(8), memory_bytes);
}

TEST_F(Firmware, GoesOnWhereItWasSaved) {
  select(3);
  EXPECT_EQ(bytes(1), memory_bytes & 0xFF);
  ByteWriter out;
  device_.save(out);
  FirmwareConfig other{memory_bytes, 3};
  const Bytes image = out.take();
  ByteReader in{image};
  other.restore(in);
  EXPECT_TRUE(in.done());
  std::array<std::byte, 1> next{};
  other.port_read(0x511, next);
  EXPECT_EQ(next[0], static_cast<std::byte>(memory_bytes >> 8 & 0xFF));
}

}  // namespace
}  // namespace vmm
