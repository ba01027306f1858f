// A block that is made from another one of the same code is what decoding makes of it.
#include "exec/decode/decoded_block.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "exec/blocks/block_arena.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/random_program.hpp"

namespace vpmu::exec::test {
namespace {

using Bytes = std::vector<std::byte>;

bool are_same(const DecodedBlock& a, const DecodedBlock& b) {
  const auto bytes_of = [](const DecodedBlock& d) { return std::as_bytes(d.ops()); };
  const BlockFacts &x = a.facts, &y = b.facts;
  return std::ranges::equal(bytes_of(a), bytes_of(b)) && x.offset == y.offset && x.distance == y.distance &&
         x.first_alone == y.first_alone && x.comparison == y.comparison && x.op_count == y.op_count &&
         x.code_bytes == y.code_bytes && x.mode == y.mode && x.branch == y.branch && x.is_whole == y.is_whole &&
         x.counts[count_instructions] == y.counts[count_instructions] &&
         x.counts[count_branches] == y.counts[count_branches] && x.counts[count_loads] == y.counts[count_loads] &&
         x.counts[count_stores] == y.counts[count_stores];
}

/// Blocks of code at an address, and of the same code elsewhere.
class MovedBlocks : public testing::Test {
 protected:
  static constexpr std::uint64_t here = 0x40'0000, elsewhere = 0x7FFF'F7A0'1000;

  Block& made(const Bytes& code, CodeMode mode = CodeMode::bits64, std::uint64_t rip = here) {
    EXPECT_TRUE(decoded_.decode(rip, mode, code, routines_));
    Block& block = arena_.make(decoded_, code);
    block.first = block.ops()[0].run;  // as Jit::expect()
    return block;
  }

  TestCode host_code_;
  HostRoutines routines_{&host_code_};
  BlockArena arena_;
  DecodedBlock decoded_, moved_;
};

TEST_F(MovedBlocks, AreWhatDecodingMakes) {
  std::mt19937_64 random{44};
  std::size_t moved = 0, all = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    RandomProgram program{seed, here, true};
    program.write();
    const auto code = std::as_bytes(std::span{program.code()});
    for (const std::size_t begin : program.blocks()) {
      // What stands behind it is another matter elsewhere.
      Bytes first(code.begin() + static_cast<std::ptrdiff_t>(begin), code.end()), then;
      first.resize(std::min<std::size_t>(first.size(), 200));
      if (!decoded_.decode(here, CodeMode::bits64, first, routines_)) continue;
      Block& block = made(first);
      then = first;
      then.resize(block.code_bytes);
      while (then.size() < 200) then.push_back(static_cast<std::byte>(random()));
      ++all;
      block.ops()[0].run = nullptr;  // it counts, or was compiled
      if (!moved_.copy(block, elsewhere + begin, CodeMode::bits64, then)) continue;
      ++moved;
      ASSERT_TRUE(decoded_.decode(elsewhere + begin, CodeMode::bits64, then, routines_));
      ASSERT_TRUE(are_same(moved_, decoded_)) << "seed " << seed << ", at " << begin;
    }
  }
  EXPECT_GT(moved, all / 2);
}

TEST_F(MovedBlocks, AreOfTheSameCode) {
  const Bytes code{std::byte{0x01}, std::byte{0xC8}, std::byte{0xC3}};  // add %ecx, %eax; ret
  const Block& block = made(code);
  EXPECT_TRUE(moved_.copy(block, elsewhere, CodeMode::bits64, code));
  EXPECT_EQ(moved_.facts.distance, (std::array{BlockFacts::nowhere, BlockFacts::nowhere})) << "a return leads nowhere";
  EXPECT_FALSE(moved_.copy(block, elsewhere, CodeMode::bits32, code));
  EXPECT_FALSE(moved_.copy(block, elsewhere, CodeMode::bits64, std::span{code}.first(2)));
  Bytes other = code;
  other[1] = std::byte{0xC1};
  EXPECT_FALSE(moved_.copy(block, elsewhere, CodeMode::bits64, other));
  EXPECT_FALSE(moved_.copy(made(code, CodeMode::bits32), elsewhere, CodeMode::bits32, code));
}

// Where a block ends because no more code is there, or because of what stands behind it, it may be longer elsewhere.
TEST_F(MovedBlocks, AreWhole) {
  const Bytes nops(3, std::byte{0x90}), more(10, std::byte{0x90});
  EXPECT_FALSE(moved_.copy(made(nops), elsewhere, CodeMode::bits64, more));
  const Bytes before_cpuid{std::byte{0x90}, std::byte{0x0F}, std::byte{0xA2}};  // nop; cpuid
  const Block& ended = made(before_cpuid);
  ASSERT_EQ(ended.code_bytes, 1U);
  EXPECT_FALSE(moved_.copy(ended, elsewhere, CodeMode::bits64, more));
  const Bytes many(100, std::byte{0x90});
  EXPECT_TRUE(moved_.copy(made(many), elsewhere, CodeMode::bits64, many)) << "as long as any";
}

TEST_F(MovedBlocks, LeadAsFar) {
  const Bytes jump{std::byte{0xEB}, std::byte{0xFE - 0x10}};  // jmp .-0x10
  ASSERT_TRUE(moved_.copy(made(jump, CodeMode::bits64, 0x10), elsewhere, CodeMode::bits64, jump));
  EXPECT_EQ(moved_.facts.distance, (std::array<std::int64_t, 2>{-0x10, 2}));
}

}  // namespace
}  // namespace vpmu::exec::test
