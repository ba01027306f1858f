#include "memory/linear.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "memory/patchy_memory.hpp"
#include "vpmu/bits.hpp"

namespace vmm::test {
namespace {

using vpmu::AccessKind;
using vpmu::bit;
using vpmu::GuestLinear;
using vpmu::page_size;
using vpmu::PagingPrivilege;
namespace pf = vpmu::page_fault_error;

constexpr std::uint64_t P = bit(0), RW = bit(1), US = bit(2), A = bit(5), D = bit(6), XD = bit(63);
constexpr std::uint64_t page_table = 0x4000;
constexpr std::uint64_t first_frame = 0x9000, second_frame = 0x6000;
constexpr GuestLinear first_page{0xffff'8000'0000'3000}, second_page{0xffff'8000'0000'4000};

/// Two adjacent linear pages whose frames are not adjacent, and nothing else mapped.
class LinearMemoryTest : public testing::Test {
 protected:
  LinearMemoryTest() {
    for (const std::uint64_t at : {0x1000ULL, 0x2000ULL, 0x3000ULL, 0x4000ULL, 0x6000ULL, 0x9000ULL}) ram.add_page(at);
    ram.poke(0x1000 + 256 * 8, 0x2000 | P | RW | US);
    ram.poke(0x2000, 0x3000 | P | RW | US);
    ram.poke(0x3000, page_table | P | RW | US);
    map(3, first_frame | P | RW);
    map(4, second_frame | P | RW);
  }

  void map(std::uint64_t index, std::uint64_t entry) { ram.poke(page_table + index * 8, entry); }
  std::uint64_t entry(std::uint64_t index) { return ram.peek(page_table + index * 8); }

  /// The error code of a page fault at `at`; all ones for anything else.
  static std::uint32_t code_at(const vpmu::AccessResult& result, GuestLinear at) {
    return result && !result->not_memory && result->address == at ? result->error_code : ~0U;
  }
  static bool is_not_memory(const vpmu::AccessResult& result, GuestLinear at) {
    return result && result->not_memory && result->address == at;
  }

  PatchyMemory ram;
  LinearMemory memory{ram};
  vpmu::PagingState state{
      .cr0 = bit(31) | bit(16) | bit(0), .cr3 = 0x1000, .cr4 = bit(5), .efer = bit(8) | bit(10) | bit(11)};
  std::array<std::byte, 16> bytes{};
  std::span<std::byte> all{bytes};
};

// Rule F13: pages that are adjacent in linear memory only.
TEST_F(LinearMemoryTest, ReadsAcrossPagesThatAreNotNeighboursInRam) {
  ram.poke(first_frame + 0xff8, 0x1111'1111'1111'1111);
  ram.poke(second_frame, 0x2222'2222'2222'2222);
  EXPECT_FALSE(memory.read(state, first_page + 0xff8, all));
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(bytes.at(i), std::byte(i < 8 ? 0x11 : 0x22)) << i;
}

TEST_F(LinearMemoryTest, ReadsEachByteOnce) {
  EXPECT_FALSE(memory.read(state, first_page + 0xff8, all));
  EXPECT_EQ(ram.reads_of.size(), 16U);
  for (const auto& [at, times] : ram.reads_of) EXPECT_EQ(times, 1U) << at;
}

TEST_F(LinearMemoryTest, WritesAcrossPagesThatAreNotNeighboursInRam) {
  bytes.fill(std::byte{0x5a});
  EXPECT_FALSE(memory.write(state, first_page + 0xff9, all));
  EXPECT_EQ(ram.peek(first_frame + 0xff8), 0x5a5a'5a5a'5a5a'5a00);
  EXPECT_EQ(ram.peek(second_frame), 0x5a5a'5a5a'5a5a'5a5a);
  EXPECT_EQ(ram.peek(second_frame + 8), 0x5aU);
}

// Rule F12.
TEST_F(LinearMemoryTest, SetsAccessedAndDirtyOfEveryPageItWrites) {
  EXPECT_FALSE(memory.write(state, first_page + 0xff8, all));
  EXPECT_EQ(entry(3) & (A | D), A | D);
  EXPECT_EQ(entry(4) & (A | D), A | D);
  EXPECT_EQ(ram.peek(0x3000) & A, A);
}

TEST_F(LinearMemoryTest, SetsAccessedButNotDirtyOfPagesItReads) {
  EXPECT_FALSE(memory.read(state, first_page, all));
  EXPECT_EQ(entry(3) & (A | D), A);
  EXPECT_EQ(entry(4) & (A | D), 0U);
}

TEST_F(LinearMemoryTest, ReportsTheFirstByteThatFaults) {
  map(4, 0);
  EXPECT_EQ(code_at(memory.read(state, first_page + 0xff8, all), second_page), 0U);
  EXPECT_EQ(code_at(memory.write(state, first_page + 0xff8, all), second_page), pf::W);
  EXPECT_EQ(code_at(memory.write(state, second_page + 0x123, all), second_page + 0x123), pf::W);
}

// Rule F12: with CR0.WP a write to a read-only page faults, as one to a missing page does.
TEST_F(LinearMemoryTest, RefusesToWriteReadOnlyPages) {
  map(3, first_frame | P);
  EXPECT_EQ(code_at(memory.write(state, first_page, all), first_page), pf::P | pf::W);
  EXPECT_FALSE(memory.read(state, first_page, all));
  state.cr0 &= ~bit(16);
  EXPECT_FALSE(memory.write(state, first_page, all));
}

TEST_F(LinearMemoryTest, AppliesThePrivilegeItIsGiven) {
  EXPECT_EQ(code_at(memory.read(state, first_page, all, PagingPrivilege::user), first_page), pf::P | pf::U);
  EXPECT_EQ(code_at(memory.write(state, first_page, all, PagingPrivilege::user), first_page), pf::P | pf::W | pf::U);
  EXPECT_EQ(code_at(memory.probe(state, first_page, 1, AccessKind::read, PagingPrivilege::user), first_page),
            pf::P | pf::U);
}

TEST_F(LinearMemoryTest, ReportsPagesMappedToNoRam) {
  map(4, 0xfee0'0000 | P | RW);
  EXPECT_TRUE(is_not_memory(memory.read(state, first_page + 0xff8, all), second_page));
  EXPECT_TRUE(is_not_memory(memory.write(state, second_page, all), second_page));
  EXPECT_TRUE(is_not_memory(memory.probe(state, first_page + 0xff8, 16, AccessKind::read), second_page));
}

TEST_F(LinearMemoryTest, ReportsTablesInNoRam) {
  ram.poke(0x2000, 0x7777'7000 | P | RW);
  EXPECT_TRUE(is_not_memory(memory.read(state, first_page, all), first_page));
  EXPECT_TRUE(is_not_memory(memory.write(state, first_page, all), first_page));
}

TEST_F(LinearMemoryTest, ReportsAddressesThatAreNotCanonical) {
  const GuestLinear outside{0x0000'8000'0000'0000};
  EXPECT_TRUE(is_not_memory(memory.read(state, outside, all), outside));
  EXPECT_TRUE(is_not_memory(memory.write(state, outside, all), outside));
  EXPECT_TRUE(is_not_memory(memory.probe(state, outside, 1, AccessKind::write), outside));
}

TEST_F(LinearMemoryTest, AccessesNothingWhenAskedForNoBytes) {
  EXPECT_FALSE(memory.read(state, GuestLinear{0x0000'8000'0000'0000}, {}));
  EXPECT_EQ(ram.words_read, 0U);
}

TEST_F(LinearMemoryTest, RefusesSizesThatWouldKeepItBusy) {
  EXPECT_TRUE(is_not_memory(memory.probe(state, first_page, ~0ULL, AccessKind::read), first_page));
  EXPECT_EQ(ram.words_read, 0U);
  EXPECT_FALSE(memory.probe(state, first_page, 2 * page_size, AccessKind::read));
}

TEST_F(LinearMemoryTest, ProbesWithoutAnyTrace) {
  const std::uint64_t before = entry(3);
  EXPECT_FALSE(memory.probe(state, first_page + 0xff8, 16, AccessKind::write));
  EXPECT_EQ(entry(3), before);
  EXPECT_TRUE(ram.reads_of.empty());
}

TEST_F(LinearMemoryTest, ProbesEveryPageOfTheRange) {
  map(4, second_frame | P);
  EXPECT_FALSE(memory.probe(state, first_page, page_size, AccessKind::write));
  EXPECT_EQ(code_at(memory.probe(state, first_page, page_size + 1, AccessKind::write), second_page), pf::P | pf::W);
  EXPECT_FALSE(memory.probe(state, first_page, page_size + 1, AccessKind::read));
}

TEST_F(LinearMemoryTest, FetchesUpToTheFirstByteThatCannotBeFetched) {
  ram.poke(first_frame + 0xff8, 0x8877'6655'4433'2211);
  map(4, second_frame | P | XD);
  EXPECT_EQ(memory.fetch(state, first_page + 0xffd, all, PagingPrivilege::supervisor), 3U);
  EXPECT_EQ(bytes[0], std::byte{0x66});
  EXPECT_EQ(bytes[2], std::byte{0x88});
  EXPECT_EQ(memory.fetch(state, second_page, all, PagingPrivilege::supervisor), 0U);
  map(4, 0xfee0'0000 | P);
  EXPECT_EQ(memory.fetch(state, first_page + 0xffd, all, PagingPrivilege::supervisor), 3U);
  EXPECT_EQ(memory.fetch(state, first_page, all, PagingPrivilege::user), 0U);
}

TEST_F(LinearMemoryTest, FetchesWithoutSettingAccessed) {
  EXPECT_EQ(memory.fetch(state, first_page, all, PagingPrivilege::supervisor), 16U);
  EXPECT_EQ(entry(3) & A, 0U);
}

TEST_F(LinearMemoryTest, LogsTheFramesAndTablesItChanges) {
  std::set<std::uint64_t> logged;
  const LinearMemory logging{ram, [&](vpmu::GuestPhysical page) { logged.insert(page.value()); }};
  EXPECT_FALSE(logging.write(state, first_page + 0xff8, all));
  EXPECT_EQ(logged, (std::set<std::uint64_t>{0x1000, 0x2000, 0x3000, page_table, first_frame, second_frame}));
  logged.clear();
  EXPECT_FALSE(logging.read(state, first_page, all));
  EXPECT_FALSE(logging.probe(state, first_page, 16, AccessKind::write));
  EXPECT_TRUE(logged.empty());
}

// Hostile tables: whatever RAM and registers contain, an access ends, and probe() predicts the result of read().
TEST_F(LinearMemoryTest, ProbesAndReadsAgreeOnRandomTables) {
  std::mt19937_64 random{20160901};
  unsigned succeeded = 0;
  for (int round = 0; round < 400; ++round) {
    PatchyMemory hostile;
    const LinearMemory linear{hostile};
    for (std::uint64_t page = 0; page < 8; ++page) {
      hostile.add_page(page * page_size);
      for (std::uint64_t at = 0; at < page_size; at += 8) {
        hostile.poke(page * page_size + at, (random() % 9 * page_size) | (random() & 0x7e) |
                                                (random() % 16 != 0 ? P : 0) | (random() % 64 == 0 ? random() : 0));
      }
    }
    state.cr3 = random();
    if (random() % 8 != 0) state.cr3 &= 0x7000;
    state.cr4 = bit(5) | (random() & (bit(12) | bit(21)));
    const GuestLinear at{static_cast<std::uint64_t>(static_cast<std::int64_t>(random() << 16) >> 16)};
    std::vector<std::byte> buffer(random() % (3 * page_size));
    const auto probed = linear.probe(state, at, buffer.size(), AccessKind::read);
    const auto read = linear.read(state, at, buffer);
    ASSERT_EQ(probed.has_value(), read.has_value());
    if (!probed) ++succeeded;
    if (!probed) continue;
    ASSERT_EQ(probed->address, read->address);
    ASSERT_EQ(probed->not_memory, read->not_memory);
    ASSERT_EQ(probed->error_code, read->error_code);
  }
  EXPECT_GT(succeeded, 10U);
  EXPECT_LT(succeeded, 380U);
}

}  // namespace
}  // namespace vmm::test
