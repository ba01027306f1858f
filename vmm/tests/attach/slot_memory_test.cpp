#include "attach/slot_memory.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace vmm {
namespace {

using vpmu::GuestPhysical;

class SlotMemoryTest : public testing::Test {
 protected:
  static constexpr std::uint64_t ram_at = 0x10'0000, rom_at = 0xF000'0000, size = 0x4000;
  void SetUp() override {
    memory.set(0, 0, GuestPhysical{ram_at}, size, ram.data());
    memory.set(3, KVM_MEM_READONLY, GuestPhysical{rom_at}, size, rom.data());
  }
  alignas(4096) std::array<std::byte, size> ram{}, rom{};
  SlotMemory memory;
};

TEST_F(SlotMemoryTest, RamCanBeReadAndWritten) {
  const std::array in{std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 3> out{};
  ASSERT_TRUE(memory.write(GuestPhysical{ram_at + 0xFFF}, in));
  ASSERT_TRUE(memory.read(GuestPhysical{ram_at + 0xFFF}, out));
  EXPECT_EQ(out, in);
  EXPECT_EQ(ram[0xFFF], std::byte{1});
  EXPECT_EQ(memory.host_page(GuestPhysical{ram_at + 0x1000}), ram.data() + 0x1000);
  EXPECT_TRUE(memory.contains(GuestPhysical{ram_at}, size));
}

TEST_F(SlotMemoryTest, RomCanOnlyBeRead) {
  rom[8] = std::byte{0x5A};
  std::array<std::byte, 1> out{};
  EXPECT_TRUE(memory.read(GuestPhysical{rom_at + 8}, out));
  EXPECT_EQ(out[0], std::byte{0x5A});
  EXPECT_EQ(memory.read_word(GuestPhysical{rom_at + 8}, 8), 0x5AU);
  EXPECT_FALSE(memory.write(GuestPhysical{rom_at + 8}, out));
  EXPECT_FALSE(memory.exchange_word(GuestPhysical{rom_at + 8}, 8, 0x5A, 1));
  EXPECT_EQ(memory.host_page(GuestPhysical{rom_at}), nullptr);
  EXPECT_FALSE(memory.contains(GuestPhysical{rom_at}, 1));
}

TEST_F(SlotMemoryTest, NothingOutsideASlotIsTouched) {
  std::array<std::byte, 2> bytes{};
  for (const std::uint64_t at : {ram_at - 1, ram_at + size - 1, ~std::uint64_t{0}, std::uint64_t{0}}) {
    EXPECT_FALSE(memory.read(GuestPhysical{at}, bytes)) << std::hex << at;
    EXPECT_FALSE(memory.write(GuestPhysical{at}, bytes)) << std::hex << at;
  }
  EXPECT_FALSE(memory.contains(GuestPhysical{ram_at}, ~std::uint64_t{0}));
  EXPECT_FALSE(memory.read_word(GuestPhysical{ram_at + size}, 4));
}

TEST_F(SlotMemoryTest, WordsAreAlignedAndExchangedWhole) {
  EXPECT_TRUE(memory.exchange_word(GuestPhysical{ram_at + 8}, 8, 0, 0x1'0000'0002));
  EXPECT_FALSE(memory.exchange_word(GuestPhysical{ram_at + 8}, 8, 0, 7));
  EXPECT_EQ(memory.read_word(GuestPhysical{ram_at + 8}, 8), 0x1'0000'0002U);
  EXPECT_EQ(memory.read_word(GuestPhysical{ram_at + 8}, 4), 2U);
  EXPECT_FALSE(memory.read_word(GuestPhysical{ram_at + 9}, 4));
  EXPECT_FALSE(memory.read_word(GuestPhysical{ram_at + 8}, 3));
}

TEST_F(SlotMemoryTest, SlotsMoveAndGo) {
  memory.set(0, 0, GuestPhysical{0x20'0000}, size, ram.data());
  EXPECT_FALSE(memory.contains(GuestPhysical{ram_at}, 1));
  EXPECT_TRUE(memory.contains(GuestPhysical{0x20'0000}, size));
  memory.set(0, 0, GuestPhysical{0x20'0000}, 0, nullptr);
  EXPECT_FALSE(memory.contains(GuestPhysical{0x20'0000}, 1));
}

// Documentation/virt/kvm/api.rst, KVM_GET_DIRTY_LOG.
TEST_F(SlotMemoryTest, PagesWrittenToComeIntoTheLogOnce) {
  constexpr std::uint64_t page = 4096;
  std::vector<std::byte> large(70 * page);
  memory.set(5, KVM_MEM_LOG_DIRTY_PAGES, GuestPhysical{0x40'0000}, large.size(), large.data());
  memory.written(GuestPhysical{0x40'0000 + 3 * page});
  memory.written(GuestPhysical{0x40'0000 + 69 * page});
  memory.written(GuestPhysical{ram_at});  // of a slot without log
  memory.written(GuestPhysical{0x40'0000 + 70 * page});
  std::array<std::uint64_t, 2> bitmap{1, 0};
  memory.add_written(5, bitmap.data());
  EXPECT_EQ(bitmap[0], 9U) << "what KVM has found stays";
  EXPECT_EQ(bitmap[1], 1U << 5U);
  bitmap = {};
  memory.add_written(5, bitmap.data());
  memory.add_written(0, bitmap.data());
  memory.add_written(77, bitmap.data());
  EXPECT_EQ(bitmap, (std::array<std::uint64_t, 2>{}));
}

// A slot may be set again to change its flags, or its address.
TEST_F(SlotMemoryTest, ASlotThatIsSetAgainKeepsItsLog) {
  constexpr std::uint64_t page = 4096, at = 0x40'0000;
  const auto set = [&](std::uint32_t flags, std::uint64_t where, std::uint64_t bytes) {
    memory.set(5, flags, GuestPhysical{where}, bytes, ram.data());
  };
  const auto logged = [&] {
    std::uint64_t bitmap = 0;
    memory.add_written(5, &bitmap);
    return bitmap;
  };
  set(KVM_MEM_LOG_DIRTY_PAGES, at, size);
  memory.written(GuestPhysical{at + page});
  set(KVM_MEM_LOG_DIRTY_PAGES, at, size);
  EXPECT_EQ(logged(), 2U);
  memory.written(GuestPhysical{at + 2 * page});
  set(KVM_MEM_LOG_DIRTY_PAGES, 2 * at, size);
  EXPECT_EQ(logged(), 4U);
  memory.written(GuestPhysical{2 * at});
  set(0, at, size);
  set(KVM_MEM_LOG_DIRTY_PAGES, at, size);
  EXPECT_EQ(logged(), 0U) << "KVM's log ends with the flag";
  memory.written(GuestPhysical{at});
  set(0, at, 0);
  set(KVM_MEM_LOG_DIRTY_PAGES, at, size);
  EXPECT_EQ(logged(), 0U) << "another slot";
}

TEST_F(SlotMemoryTest, MemoryOfSystemManagementIsNotSeen) {
  memory.set(1U << 16U, 0, GuestPhysical{0xA0000}, size, ram.data());
  EXPECT_FALSE(memory.contains(GuestPhysical{0xA0000}, 1));
}

}  // namespace
}  // namespace vmm
