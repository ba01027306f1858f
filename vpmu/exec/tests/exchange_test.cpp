#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/flat_ram.hpp"

// LOCK with misaligned operands. host_oracle_test shows that the results are right.

namespace vpmu::exec::test {
namespace {

struct MaybeAlone final : NoPlatform {
  bool runs_alone() override { return alone; }
  bool alone{true};
};

class SplitLock : public testing::Test {
 protected:
  /// Runs LOCK XADD with RDI at offset `to` of memory.
  Stop run(std::uint64_t to, bool alone) {
    const Assembled code = X86("lock xadd %rax, (%rdi)");
    for (std::size_t i = 0; i < code.size(); ++i) ram_.bytes()[i] = static_cast<std::byte>(code[i]);
    platform_.alone = alone;
    CpuState s;
    s.rip = ram_.address();
    s.rflags = 0x8D7;
    s.gpr[rax] = 2;
    s.gpr[rdi] = ram_.address() + to;
    engine_.load(s);
    return engine_.run(1);
  }
  std::uint64_t& word(std::uint64_t at) { return *reinterpret_cast<std::uint64_t*>(ram_.bytes().data() + at); }

  FlatRam ram_{3 * page_size};
  MaybeAlone platform_;
  Engine engine_{ram_, platform_};
};

TEST_F(SplitLock, IsLeftToOthersUnlessNobodyElseRuns) {
  constexpr std::uint64_t line = 0x1040;
  constexpr std::array places{line - 4, line + 4, 2 * page_size - 4};
  for (const std::uint64_t at : places) {
    word(at - 4) = 0x1111'1111'2222'2222;
    word(at + 4) = 0x3333'3333'4444'4444;
    EXPECT_EQ(run(at, false), Stop::unsupported);
    EXPECT_EQ(word(at - 4), 0x1111'1111'2222'2222U);
    EXPECT_EQ(engine_.state().gpr[rax], 2U);
    EXPECT_EQ(run(at, true), Stop::budget);
    EXPECT_EQ(engine_.state().gpr[rax], 0x4444'4444'1111'1111U);
    EXPECT_EQ(engine_.state().rflags & 1, 0U);
    EXPECT_EQ(word(at - 4), 0x1111'1113'2222'2222U);
    EXPECT_EQ(word(at + 4), 0x3333'3333'4444'4444U);
  }
}

TEST_F(SplitLock, ChangesNothingWhereItsEndIsNotThere) {
  constexpr std::uint64_t at = 3 * page_size - 4;
  word(at - 4) = 0x1111'1111'2222'2222;
  EXPECT_EQ(run(at, true), Stop::fault);
  EXPECT_EQ(word(at - 4), 0x1111'1111'2222'2222U);
  EXPECT_EQ(engine_.state().gpr[rax], 2U);
  EXPECT_EQ(engine_.state().rflags, 0x8D7U);
  ASSERT_TRUE(engine_.missing());
  EXPECT_EQ(engine_.missing()->at, ram_.address() + at + 4);
}

}  // namespace
}  // namespace vpmu::exec::test
