#include "exec/blocks/block_arena.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "exec/interpret/ops.hpp"

namespace vpmu::exec::test {
namespace {

constexpr std::byte nop_byte{0x90};

/// A block of `count` NOPs.
Block& make_nops(BlockArena& arena, DecodedBlock& decoded, std::uint64_t rip, std::size_t count) {
  const std::vector<std::byte> code(count, nop_byte);
  HostRoutines none{nullptr};
  EXPECT_TRUE(decoded.decode(rip, CodeMode::bits64, code, none));
  return arena.make(decoded, code);
}

TEST(BlockArena, KeepsWhatBlocksAreMadeOf) {
  BlockArena arena;
  DecodedBlock decoded;
  std::mt19937_64 random{1};
  std::vector<std::pair<const Block*, std::size_t>> made;
  for (std::uint64_t n = 0; n < 4000; ++n) {
    const std::size_t count = 1 + random() % Block::max_ops;
    made.emplace_back(&make_nops(arena, decoded, n, count), count);
  }
  EXPECT_GT(arena.bytes(), 4000 * sizeof(Block));
  for (std::uint64_t n = 0; n < made.size(); ++n) {
    const auto& [block, count] = made[n];
    ASSERT_EQ(block->offset, n);
    ASSERT_EQ(block->ops().size(), count + 1);
    ASSERT_EQ(block->counts[count_instructions], static_cast<std::int64_t>(count));
    ASSERT_EQ(block->ops()[count - 1].run, op_nop());
    ASSERT_EQ(block->ops()[count].run, op_end());
    ASSERT_EQ(std::vector(block->code().begin(), block->code().end()), std::vector(count, nop_byte));
  }
}

TEST(BlockArena, DestroysBlocksAndUsesTheirMemoryAgain) {
  BlockArena arena;
  DecodedBlock decoded;
  arena.clear();
  EXPECT_EQ(arena.bytes(), 0U);
  const Block* const first = &make_nops(arena, decoded, 0, 1);
  for (std::uint64_t n = 1; n < 1000; ++n)
    make_nops(arena, decoded, n, Block::max_ops).observed = std::make_unique<Observed>();  // for the leak checker
  const std::size_t before = arena.bytes();
  arena.clear();
  EXPECT_EQ(arena.bytes(), 0U);
  EXPECT_EQ(&make_nops(arena, decoded, 0, 1), first);
  for (std::uint64_t n = 1; n < 1000; ++n) make_nops(arena, decoded, n, Block::max_ops);
  EXPECT_EQ(arena.bytes(), before);
}

TEST(BlockTable, FindsBlocksByWhereTheyBegin) {
  BlockArena arena;
  DecodedBlock decoded;
  BlockTable table;
  constexpr std::uint64_t page = 0xFFFF'8000'0000'1000;
  EXPECT_EQ(table.find(0), nullptr);
  std::vector<Block*> made;
  for (std::uint64_t n = 0; n < page_size; n += 3)
    table.put(*made.emplace_back(&make_nops(arena, decoded, page + n, 1)));
  for (std::uint64_t n = 0; n < page_size; ++n) ASSERT_EQ(table.find(n), n % 3 == 0 ? made[n / 3] : nullptr) << n;
  EXPECT_LE(table.places().size(), 4 * made.size());
  const std::size_t places = table.places().size();
  for (unsigned times = 0; times < 5000; ++times) {
    Block& anew = make_nops(arena, decoded, page + 3, 2);
    table.put(anew);
    ASSERT_EQ(table.find(3), &anew);
  }
  EXPECT_EQ(table.places().size(), places);
  EXPECT_EQ(std::ranges::count(table.places(), made[1]), 0);
  EXPECT_EQ(std::ranges::count_if(table.places(), [](const Block* b) { return b != nullptr; }),
            static_cast<std::ptrdiff_t>(made.size()));
}

}  // namespace
}  // namespace vpmu::exec::test
