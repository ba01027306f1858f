// The device's side of a virtqueue, also with a hostile driver. Virtio 1.2 2.7.
#include "virtio/queue.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "virtio/driver_ring.hpp"

namespace vmm::virtio {
namespace {

using test::DriverRing;
using vpmu::GuestPhysical;

constexpr std::uint64_t base = 0x10'0000;
constexpr std::uint16_t size = 8;

class VirtioQueue : public testing::Test {
 protected:
  [[nodiscard]] Queue open() const { return *Queue::open(memory, driver.ring()); }
  /// Why the device refuses the available buffers.
  [[nodiscard]] std::string refusal() const {
    Queue queue = open();
    const auto chain = queue.next();
    return chain ? "" : describe(chain.error());
  }

  GuestMemory memory{*GuestMemory::create(GuestMemory::min_bytes)};
  DriverRing driver{memory, base, size};
};

TEST_F(VirtioQueue, GivesChainsInTheOrderOfTheDriver) {
  driver.describe(5, {0x20'0000, 3, DriverRing::next, 2});
  driver.describe(2, {0x20'1000, 5, DriverRing::next, 7});
  driver.describe(7, {0x20'2000, 100, DriverRing::write, 0});
  driver.describe(0, {0x20'3000, 0, 0, 0});
  driver.offer(5);
  driver.offer(0);
  Queue queue = open();
  const auto chain = **queue.next();
  EXPECT_EQ(chain.head, 5);
  EXPECT_EQ(total_bytes(chain.readable), 8U);
  ASSERT_EQ(chain.writable.size(), 1U);
  EXPECT_EQ(chain.writable[0].at, GuestPhysical{0x20'2000});
  ASSERT_TRUE(memory.write(GuestPhysical{0x20'0000}, std::as_bytes(std::span{"abc", 3})));
  ASSERT_TRUE(memory.write(GuestPhysical{0x20'1000}, std::as_bytes(std::span{"defgh", 5})));
  std::string text(8, '-');
  EXPECT_EQ(queue.read(chain, 2, std::as_writable_bytes(std::span{text})), 6U);
  EXPECT_EQ(text, "cdefgh--");
  EXPECT_EQ(queue.write(chain, std::as_bytes(std::span{"answer", 6})), 6U);
  queue.give_back(chain, 6);
  EXPECT_EQ((**queue.next()).head, 0);
  EXPECT_EQ(*queue.next(), std::nullopt);
  EXPECT_EQ(driver.take(), (DriverRing::Used{.id = 5, .bytes = 6}));
  EXPECT_EQ(driver.take(), std::nullopt);
}

// Virtio 1.2 2.7.5.2: at most 2^32 bytes in a chain, whatever RAM its descriptors name again and again.
TEST_F(VirtioQueue, RefusesAChainOfMoreThanFourGibibytes) {
  constexpr std::uint16_t entries = 512;
  const DriverRing large{memory, base, entries};
  constexpr auto all = static_cast<std::uint32_t>(GuestMemory::min_bytes);
  constexpr auto fits = static_cast<std::uint16_t>((1ULL << 32U) / all);
  static_assert(fits < entries);
  const auto describe_chain = [&](std::uint16_t pieces) {
    for (std::uint16_t i = 0; i < pieces; ++i) {
      const bool more = i + 1 < pieces;
      large.describe(i, {0, all, more ? DriverRing::next : std::uint16_t{0}, static_cast<std::uint16_t>(i + 1)});
    }
  };
  describe_chain(fits);
  const auto whole = walk_chain(memory, large.ring(), 0);
  ASSERT_TRUE(whole) << describe(whole.error());
  EXPECT_EQ(total_bytes(whole->readable), 1ULL << 32U);
  describe_chain(fits + 1);
  const auto too_long = walk_chain(memory, large.ring(), 0);
  ASSERT_FALSE(too_long);
  EXPECT_NE(describe(too_long.error()).find("more than 2^32"), std::string::npos) << describe(too_long.error());
}

TEST_F(VirtioQueue, InterruptsUnlessTheDriverSaysNot) {
  const Queue queue = open();
  EXPECT_TRUE(queue.wants_interrupt());
  driver.put(driver.ring().available.value(), std::uint16_t{1});
  EXPECT_FALSE(queue.wants_interrupt());
}

TEST_F(VirtioQueue, GoesAroundItsRing) {
  Queue queue = open();
  for (unsigned i = 0; i < 70'000; ++i) {
    driver.give_room(4);
    const auto chain = queue.next();
    ASSERT_TRUE(chain && *chain);
    queue.give_back(**chain, i % 5);
    ASSERT_EQ(driver.take()->bytes, i % 5);
    if (i % 1000 == 999) driver.forget_buffers();
  }
}

TEST_F(VirtioQueue, RefusesAnIndexBeyondTheRing) {
  driver.offer(size);
  EXPECT_NE(refusal().find("names descriptor 8 of a ring of 8"), std::string::npos) << refusal();
  driver.describe(1, {base, 4, DriverRing::next, 0xFFFF});
  driver = DriverRing{memory, base, size};
  driver.offer(1);
  EXPECT_NE(refusal().find("names descriptor 65535"), std::string::npos) << refusal();
}

TEST_F(VirtioQueue, RefusesALoop) {
  driver.describe(1, {base, 4, DriverRing::next, 2});
  driver.describe(2, {base, 4, DriverRing::next, 1});
  driver.offer(1);
  EXPECT_NE(refusal().find("a chain of more than 8 descriptors"), std::string::npos) << refusal();
}

TEST_F(VirtioQueue, RefusesWhatIsNotRam) {
  for (const std::uint64_t at : std::array<std::uint64_t, 3>{GuestMemory::min_bytes - 3, 0xE000'0000, ~0ULL - 1}) {
    driver = DriverRing{memory, base, size};
    driver.describe(1, {at, 4, 0, 0});
    driver.offer(1);
    EXPECT_NE(refusal().find("which are not RAM"), std::string::npos) << at << ": " << refusal();
  }
}

TEST_F(VirtioQueue, RefusesAnIndirectDescriptorAndAReadableOneLast) {
  driver.describe(1, {base, 16, DriverRing::indirect, 0});
  driver.offer(1);
  EXPECT_NE(refusal().find("indirect"), std::string::npos) << refusal();
  driver = DriverRing{memory, base, size};
  driver.describe(1, {base, 16, DriverRing::write | DriverRing::next, 2});
  driver.describe(2, {base, 16, 0, 0});
  driver.offer(1);
  EXPECT_NE(refusal().find("a buffer to read after one to write"), std::string::npos) << refusal();
}

TEST_F(VirtioQueue, RefusesMoreBuffersThanThereAre) {
  driver.set_available(size + 1);
  EXPECT_NE(refusal().find("9 buffers available in a ring of 8"), std::string::npos) << refusal();
}

TEST_F(VirtioQueue, RefusesRingsThatAreNoRamOrNotAligned) {
  const auto opens = [this](auto change) {
    Ring ring = driver.ring();
    change(ring);
    return Queue::open(memory, ring).has_value();
  };
  EXPECT_TRUE(opens([](Ring&) {}));
  EXPECT_FALSE(opens([](Ring& ring) { ring.descriptors = GuestPhysical{base + 8}; }));
  EXPECT_FALSE(opens([](Ring& ring) { ring.available = GuestPhysical{base + 1}; }));
  EXPECT_FALSE(opens([](Ring& ring) { ring.used = GuestPhysical{base + 2}; }));
  EXPECT_FALSE(opens([](Ring& ring) { ring.used = GuestPhysical{GuestMemory::min_bytes - 8}; }));
  EXPECT_FALSE(opens([](Ring& ring) { ring.available = GuestPhysical{~0ULL - 1}; }));
  EXPECT_FALSE(opens([](Ring& ring) { ring.size = 0; }));
}

}  // namespace
}  // namespace vmm::virtio
