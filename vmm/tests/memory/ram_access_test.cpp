#include "memory/ram_access.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "memory/engine_ram.hpp"
#include "memory/linear.hpp"

namespace vmm::test {
namespace {

using vpmu::GuestPhysical;

class RamAccessTest : public testing::Test {
 protected:
  static GuestMemory make_memory() {
    auto memory = GuestMemory::create(size);
    EXPECT_TRUE(memory);
    return std::move(*memory);
  }

  static constexpr std::uint64_t size = GuestMemory::min_bytes;
  GuestMemory memory = make_memory();
  RamAccess ram{memory};
  std::array<std::byte, 8> bytes{};
};

TEST_F(RamAccessTest, ReadsWhatWasWritten) {
  bytes.fill(std::byte{0x3c});
  EXPECT_TRUE(ram.write(GuestPhysical{size - 8}, bytes));
  EXPECT_EQ(ram.read_word(GuestPhysical{size - 8}, 8), 0x3c3c'3c3c'3c3c'3c3c);
  EXPECT_EQ(ram.read_word(GuestPhysical{size - 4}, 4), 0x3c3c'3c3cU);
  bytes.fill(std::byte{0});
  EXPECT_TRUE(ram.read(GuestPhysical{size - 8}, bytes));
  EXPECT_EQ(bytes[7], std::byte{0x3c});
}

TEST_F(RamAccessTest, NeverLeavesRam) {
  for (const std::uint64_t at :
       {size - 7, size, GuestMemory::hole_first, GuestMemory::hole_end, ~std::uint64_t{0}, ~std::uint64_t{6}}) {
    EXPECT_FALSE(ram.read(GuestPhysical{at}, bytes)) << std::hex << at;
    EXPECT_FALSE(ram.write(GuestPhysical{at}, bytes)) << std::hex << at;
    EXPECT_FALSE(ram.contains(GuestPhysical{at}, 8)) << std::hex << at;
    EXPECT_FALSE(ram.read_word(GuestPhysical{at}, 8)) << std::hex << at;
    EXPECT_FALSE(ram.exchange_word(GuestPhysical{at}, 8, 0, 1)) << std::hex << at;
  }
  EXPECT_FALSE(ram.contains(GuestPhysical{0}, size + 1));
  EXPECT_FALSE(ram.contains(GuestPhysical{8}, ~0ULL));
  EXPECT_TRUE(ram.contains(GuestPhysical{0}, size));
}

TEST_F(RamAccessTest, RefusesWordsThatAreNotWholeAndAligned) {
  EXPECT_FALSE(ram.read_word(GuestPhysical{0x1004}, 8));
  EXPECT_FALSE(ram.read_word(GuestPhysical{0x1002}, 4));
  EXPECT_FALSE(ram.read_word(GuestPhysical{0x1000}, 2));
  EXPECT_FALSE(ram.exchange_word(GuestPhysical{0x1004}, 8, 0, 1));
  EXPECT_FALSE(ram.exchange_word(GuestPhysical{0x1000}, 2, 0, 1));
}

TEST_F(RamAccessTest, ExchangesOnlyTheExpectedWord) {
  EXPECT_FALSE(ram.exchange_word(GuestPhysical{0x1000}, 8, 1, 2));
  EXPECT_TRUE(ram.exchange_word(GuestPhysical{0x1000}, 8, 0, 0x5'0000'0006));
  EXPECT_TRUE(ram.exchange_word(GuestPhysical{0x1004}, 4, 5, 7));
  EXPECT_EQ(ram.read_word(GuestPhysical{0x1000}, 8), 0x7'0000'0006U);
}

// Without paging a linear address is a physical address: an access that crosses the end of RAM stops there.
TEST_F(RamAccessTest, StopsLinearAccessesAtTheEndOfRam) {
  const LinearMemory linear{ram};
  const vpmu::GuestLinear last{size - 4};
  const auto fault = linear.write({}, last, bytes);
  ASSERT_TRUE(fault);
  EXPECT_TRUE(fault->not_memory);
  EXPECT_EQ(fault->address.value(), size);
}

TEST_F(RamAccessTest, GivesWholePagesOfRamOnly) {
  EXPECT_EQ(ram.host_page(GuestPhysical{0x3000}), memory.bytes_at(GuestPhysical{0x3000}, 1).data());
  EXPECT_EQ(ram.host_page(GuestPhysical{size}), nullptr);
  EXPECT_EQ(ram.host_page(GuestPhysical{~std::uint64_t{0xFFF}}), nullptr);
}

// The engine may write to an open page until it stops: only then is the page logged as dirty.
TEST_F(RamAccessTest, TheEnginesWritesReachTheDirtyLogWhenItStops) {
  std::vector<std::uint64_t> logged;
  const LinearMemory linear{ram, [&](GuestPhysical page) { logged.push_back(page.value()); }};
  EngineRam engine_ram{linear};
  engine_ram.will_write(GuestPhysical{0x5000});
  EXPECT_TRUE(logged.empty());
  EXPECT_TRUE(engine_ram.exchange_word(GuestPhysical{0x6008}, 8, 0, 1)) << "an accessed bit";
  EXPECT_EQ(logged, std::vector<std::uint64_t>{0x6000});
  engine_ram.close();
  EXPECT_EQ(logged, (std::vector<std::uint64_t>{0x6000, 0x5000}));
  engine_ram.close();
  EXPECT_EQ(logged.size(), 2U);
}

}  // namespace
}  // namespace vmm::test
