#include "exec/host/code_writer.hpp"

#include <gtest/gtest.h>

#include <array>

#include "exec/engine.hpp"
#include "exec/host/host_assembler.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"

namespace vpmu::exec::test {
namespace {

// Nothing is written beyond the given room, whatever is appended.
TEST(CodeWriter, NothingIsWrittenBehindItsPlace) {
  std::array<std::byte, 6> room{};
  CodeWriter out{std::span{room}.first(4)};
  out.bytes({1, 2, 3});
  EXPECT_EQ(out.written().size(), 3U);
  out.append(0x0605'0403, 4);
  EXPECT_FALSE(out.is_whole());
  EXPECT_TRUE(out.written().empty()) << "no part of it may be run";
  out.copy(room);
  out.byte(7);
  out.replace_word32(1, ~0U);
  EXPECT_EQ(room, (std::array<std::byte, 6>{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{3}}));
  out.clear();
  out.byte(9);
  EXPECT_EQ(out.written().size(), 1U);
}

TEST(CodeWriter, ANumberThatIsNoByteSpoilsIt) {
  std::array<std::byte, 4> room{};
  CodeWriter out{room};
  out.bytes({1, 0x100});
  EXPECT_TRUE(out.written().empty());
}

TEST(HostAssembler, CodeWithAJumpToNowhereIsNone) {
  HostAssembler a;
  a.jump(a.label());
  EXPECT_TRUE(a.finish().empty());
  a.clear();
  const HostAssembler::Label twice = a.label();
  a.here(twice);
  a.here(twice);
  EXPECT_TRUE(a.finish().empty());
  a.clear();
  a.here(3);
  EXPECT_TRUE(a.finish().empty());
  a.clear();
  const HostAssembler::Label good = a.label();
  a.here(good);
  a.jump(good);
  EXPECT_EQ(a.finish().size(), 5U);
}

TEST(HostAssembler, CodeWithoutEndIsNone) {
  HostAssembler a;
  for (std::size_t n = 0; n <= HostAssembler::max_bytes; ++n) a.bytes({0x90});
  EXPECT_TRUE(a.finish().empty());
}

// The room suffices for the longest code of a block: each instruction needs a TLB lookup, an exit, and guest registers
// that have no host register.
TEST(HostAssembler, HasRoomForTheLongestBlock) {
  FlatRam ram{2 * page_size};
  NoPlatform nobody;
  TestCode code;
  Engine engine{ram, nobody, &code, Compiling{.after = 1}};
  std::size_t at = 0;
  for (std::size_t n = 0; n + 1 < Block::max_ops; ++n)
    for (const unsigned b : {0x4DU, 0x01U, 0x34U, 0x29U})
      ram.bytes()[at++] = static_cast<std::byte>(b);  // add %r14, (%r9,%r13)
  for (const unsigned b : {0xFFU, 0x54U, 0x24U, 0x08U}) ram.bytes()[at++] = static_cast<std::byte>(b);  // call *8(%rsp)
  CpuState s;
  s.rip = ram.address();
  s.rflags = 2;
  s.gpr[r9] = s.gpr[rsp] = ram.address() + page_size + 64;
  engine.load(s);
  EXPECT_EQ(engine.run(Block::max_ops), Stop::budget);
  EXPECT_EQ(engine.compiled_blocks(), 1U);
}

}  // namespace
}  // namespace vpmu::exec::test
