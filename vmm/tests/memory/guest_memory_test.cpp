#include "memory/guest_memory.hpp"
#include "fakes/sizes.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>

namespace vmm {
namespace {

using test::gib;
using test::mib;
using vpmu::GuestPhysical;

GuestMemory memory_of(std::uint64_t bytes) {
  auto memory = GuestMemory::create(bytes);
  EXPECT_TRUE(memory) << describe(memory.error());
  return std::move(*memory);
}

TEST(GuestMemory, SmallMemoryIsOneRangeFromZero) {
  const auto memory = memory_of(64 * mib);
  ASSERT_EQ(memory.ranges().size(), 1U);
  EXPECT_EQ(memory.ranges()[0].first, GuestPhysical{0});
  EXPECT_EQ(memory.ranges()[0].bytes, 64 * mib);
}

TEST(GuestMemory, BeyondThreeGibibytesItGoesOnAtFour) {
  const auto memory = memory_of(3 * gib + 512 * mib);
  ASSERT_EQ(memory.ranges().size(), 2U);
  EXPECT_EQ(memory.ranges()[0].bytes, 3 * gib);
  EXPECT_EQ(memory.ranges()[1].first, GuestPhysical{4 * gib});
  EXPECT_EQ(memory.ranges()[1].bytes, 512 * mib);
  EXPECT_TRUE(memory.store<std::uint64_t>(GuestPhysical{4 * gib}, 7));
  EXPECT_EQ(memory.load<std::uint64_t>(GuestPhysical{4 * gib}), 7U);
  // The last word below the hole is another one.
  EXPECT_TRUE(memory.store<std::uint64_t>(GuestPhysical{3 * gib - 8}, 9));
  EXPECT_EQ(memory.load<std::uint64_t>(GuestPhysical{4 * gib}), 7U);
}

TEST(GuestMemory, NoAccessReachesTheHoleOrBeyondTheEnd) {
  const auto memory = memory_of(3 * gib + 512 * mib);
  std::array<std::byte, 16> bytes{};
  for (const std::uint64_t at : std::initializer_list<std::uint64_t>{3 * gib - 8, 3 * gib, 4 * gib - 8,
                                                                     4 * gib + 512 * mib - 8, ~0ULL - 7, ~0ULL}) {
    EXPECT_FALSE(memory.read(GuestPhysical{at}, bytes)) << std::hex << at;
    EXPECT_FALSE(memory.write(GuestPhysical{at}, bytes)) << std::hex << at;
    EXPECT_TRUE(memory.bytes_at(GuestPhysical{at}, bytes.size()).empty()) << std::hex << at;
  }
  EXPECT_TRUE(memory.bytes_at(GuestPhysical{0}, ~0ULL).empty());
}

TEST(GuestMemory, MisalignedWordsAreRefused) {
  const auto memory = memory_of(16 * mib);
  EXPECT_FALSE(memory.load<std::uint64_t>(GuestPhysical{0x1004}));
  EXPECT_FALSE(memory.store<std::uint32_t>(GuestPhysical{0x1002}, 1));
  EXPECT_FALSE((memory.exchange<std::uint64_t>(GuestPhysical{0x1001}, 0, 1)));
}

TEST(GuestMemory, ExchangeComparesFirst) {
  const auto memory = memory_of(16 * mib);
  ASSERT_TRUE(memory.store<std::uint64_t>(GuestPhysical{0x1000}, 5));
  EXPECT_FALSE((memory.exchange<std::uint64_t>(GuestPhysical{0x1000}, 4, 6)));
  EXPECT_TRUE((memory.exchange<std::uint64_t>(GuestPhysical{0x1000}, 5, 6)));
  EXPECT_EQ(memory.load<std::uint64_t>(GuestPhysical{0x1000}), 6U);
}

TEST(GuestMemory, BadSizesAreUsageErrors) {
  for (const std::uint64_t bytes :
       std::initializer_list<std::uint64_t>{0, 15 * mib, 64 * mib + 1, (1ULL << 38U) + 4096, ~0ULL}) {
    const auto memory = GuestMemory::create(bytes);
    ASSERT_FALSE(memory) << bytes;
    EXPECT_EQ(memory.error().kind, ErrorKind::usage);
    EXPECT_NE(memory.error().what.find(std::to_string(bytes)), std::string::npos) << memory.error().what;
  }
}

TEST(GuestMemory, IsTheProcessesOwnUnlessAskedFor) { EXPECT_EQ(memory_of(16 * mib).descriptor(), nullptr); }

TEST(GuestMemory, SharedMemoryIsInItsDescriptorOneRangeBehindTheOther) {
  const auto memory = *GuestMemory::create(3 * gib + 512 * mib, GuestBacking::shared);
  ASSERT_NE(memory.descriptor(), nullptr);
  const int file = memory.descriptor()->get();
  ASSERT_TRUE(memory.store<std::uint64_t>(GuestPhysical{0x1008}, 7));
  ASSERT_TRUE(memory.store<std::uint64_t>(GuestPhysical{4 * gib + 0x2000}, 9));
  std::uint64_t low{}, high{};
  EXPECT_EQ(::pread(file, &low, sizeof low, 0x1008), 8);
  EXPECT_EQ(::pread(file, &high, sizeof high, static_cast<off_t>(3 * gib + 0x2000)), 8);
  EXPECT_EQ(low, 7U);
  EXPECT_EQ(high, 9U);
  // And the other way round.
  const std::uint64_t other = 11;
  EXPECT_EQ(::pwrite(file, &other, sizeof other, 0x1010), 8);
  EXPECT_EQ(memory.load<std::uint64_t>(GuestPhysical{0x1010}), 11U);
}

TEST(GuestMemory, NobodyChangesTheSizeOfSharedMemory) {
  const auto memory = *GuestMemory::create(16 * mib, GuestBacking::shared);
  const int file = memory.descriptor()->get();
  EXPECT_NE(::ftruncate(file, 4096), 0);
  EXPECT_NE(::ftruncate(file, static_cast<off_t>(32 * mib)), 0);
  EXPECT_NE(::fcntl(file, F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(::fcntl(file, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

}  // namespace
}  // namespace vmm
