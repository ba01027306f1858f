#include "lockstep/overlay_ram.hpp"

#include <gtest/gtest.h>

#include "fakes/fake_ram.hpp"

namespace vmm::test {
namespace {

using vpmu::GuestPhysical;
constexpr GuestPhysical page{0x3000}, table{0x5000};

class Overlay : public testing::Test {
 protected:
  std::uint64_t in_ram(GuestPhysical at) { return ram.read_word(at, 8).value_or(~0ULL); }
  void set_ram(GuestPhysical at, std::uint64_t word) { ASSERT_TRUE(ram.write(at, std::as_bytes(std::span{&word, 1}))); }
  void set_copy(GuestPhysical at, std::uint64_t word) {
    const GuestPhysical start{at.value() & ~(vpmu::page_size - 1)};
    std::byte* const copy = overlay.page(start);
    overlay.will_write(start);
    std::memcpy(copy + at.value() % vpmu::page_size, &word, sizeof word);
  }

  FakeRam ram{1 << 20};
  LinearMemory memory{ram};
  OverlayRam overlay{memory};
};

// The engine runs instructions on the copies that require aligned operands.
TEST_F(Overlay, CopiesAreAlignedAsPagesAre) {
  for (std::uint64_t n = 1; n < 20; ++n)
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(overlay.page(GuestPhysical{n * vpmu::page_size})) % vpmu::page_size, 0U);
}

TEST_F(Overlay, WritesStayInTheCopy) {
  set_ram(page, 1);
  set_copy(page, 2);
  EXPECT_EQ(in_ram(page), 1U);
  EXPECT_EQ(overlay.read_word(page, 8), 2U);
  EXPECT_EQ(overlay.difference(), page);
}

TEST_F(Overlay, RewindTakesWritesBackAndKeepsAddresses) {
  set_ram(page, 1);
  set_copy(page, 2);
  const std::byte* const copy = overlay.page(page);
  overlay.rewind();
  EXPECT_EQ(overlay.read_word(page, 8), 1U);
  EXPECT_EQ(overlay.page(page), copy);
  EXPECT_FALSE(overlay.difference());
}

TEST_F(Overlay, TheGuestGetsBackWhatTouchedPagesHeld) {
  set_ram(page, 1);
  set_ram(table, 3);
  set_copy(page, 2);
  overlay.page(table);
  set_ram(page, 8);
  set_ram(table, 9);
  ASSERT_TRUE(overlay.restore_guest());
  EXPECT_EQ(in_ram(page), 1U);
  EXPECT_EQ(in_ram(table), 3U);
}

TEST_F(Overlay, AccessedBitsDifferOnlyInPageTables) {
  constexpr std::uint64_t accessed = 0x20;
  ASSERT_TRUE(overlay.exchange_word(table, 8, 0, 1));
  set_ram(table, 1);
  set_ram(table + 8, accessed);
  EXPECT_FALSE(overlay.difference());
  overlay.page(page);
  set_ram(page, accessed);
  EXPECT_EQ(overlay.difference(), page);
}

}  // namespace
}  // namespace vmm::test
