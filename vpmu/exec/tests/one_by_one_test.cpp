// Runs of one instruction, for which the engine has a path of its own, mixed with longer runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <vector>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/flat_ram.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"

namespace vpmu::exec::test {
namespace {

/// Accepts WRMSR, and records how many instructions the engine has counted by then.
class Counting final : public NoPlatform {
 public:
  Answer wrmsr(std::uint32_t, std::uint64_t) override {
    seen.push_back(engine->passed().instructions);
    return Answer::done;
  }
  Engine* engine{};
  std::vector<std::uint64_t> seen;
};

class OneByOne : public testing::Test {
 protected:
  void begin(const std::vector<unsigned>& code) {
    for (std::size_t i = 0; i < code.size(); ++i) ram_.bytes()[page_size + i] = static_cast<std::byte>(code[i]);
    platform_.engine = &engine_;
    CpuState s;
    s.rip = ram_.address() + page_size;
    s.rflags = 2;
    s.gpr[rbx] = ram_.address();
    s.gpr[rsp] = ram_.address() + page_size;
    engine_.load(s);
  }

  FlatRam ram_{3 * page_size};
  Counting platform_;
  TestCode host_code_;
  Engine engine_{ram_, platform_, &host_code_, Compiling{.after = 1}};
};

TEST_F(OneByOne, ThePlatformSeesTheInstructionThatAsksCounted) {
  begin(X86("1: nop; wrmsr; jmp 1b"));
  for (unsigned n = 0; n < 6; ++n) EXPECT_EQ(engine_.run(1), Stop::budget);
  EXPECT_EQ(engine_.run(3), Stop::budget);
  EXPECT_EQ(platform_.seen, (std::vector<std::uint64_t>{2, 5, 8}));
  EXPECT_EQ(engine_.passed().instructions, 9U);
}

TEST_F(OneByOne, CountsAreTheSameHoweverARunIsCut) {
  begin(X86("1: mov (%rbx), %rax; push %rax; pop %rcx; test %ecx, %ecx; je 1b"));
  std::mt19937_64 random{7};
  std::uint64_t run = 0;
  for (unsigned n = 0; n < 3000; ++n) {
    const std::uint64_t next = random() % 2 != 0 ? 1 : 1 + random() % 12;
    ASSERT_EQ(engine_.run(next), Stop::budget);
    run += next;
    const Passed passed = engine_.passed();
    ASSERT_EQ(passed.instructions, run);
    ASSERT_EQ(passed.loads, (run + 4) / 5 + (run + 2) / 5) << "the MOV and the POP";
    ASSERT_EQ(passed.stores, (run + 3) / 5) << "the PUSH";
    ASSERT_EQ(passed.branches, run / 5);
  }
}

TEST_F(OneByOne, WholeBlocksRunAgainBehindThem) {
  begin(X86("1: mov (%rbx), %rax; push %rax; pop %rcx; test %ecx, %ecx; je 1b"));
  engine_.run(1000);
  for (unsigned n = 0; n < 5; ++n) engine_.run(1);
  const std::uint64_t before = engine_.entered_compiled();
  engine_.run(1000);
  EXPECT_EQ(engine_.entered_compiled(), before + 1) << "once, for all of them";
}

// The bytes of each instruction before it runs, from the second round on; and never those that stood there before.
TEST_F(OneByOne, KnowsTheNextInstruction) {
  const std::vector<std::size_t> lengths{3, 1, 1, 2, 2};
  begin(X86("1: mov (%rbx), %rax; push %rax; pop %rcx; test %ecx, %ecx; je 1b"));
  EXPECT_TRUE(engine_.next_code().empty()) << "nothing has been decoded";
  const std::span<const std::byte> page{ram_.bytes().data() + page_size, page_size};
  for (unsigned n = 0; n < 50; ++n) {
    if (n >= lengths.size()) {
      const auto expected = page.subspan(engine_.state().rip - ram_.address() - page_size, lengths[n % lengths.size()]);
      EXPECT_TRUE(std::ranges::equal(engine_.next_code(), expected)) << n;
    }
    ASSERT_EQ(engine_.run(1), Stop::budget);
  }
  ram_.bytes()[page_size + 1] = std::byte{0x89};  // mov %rax, (%rbx)
  engine_.written(GuestPhysical{ram_.address() + page_size});
  EXPECT_TRUE(engine_.next_code().empty());
  ASSERT_EQ(engine_.run(1), Stop::budget);
  EXPECT_EQ(engine_.passed().stores, 11U) << "the new instruction and ten times the PUSH";
}

}  // namespace
}  // namespace vpmu::exec::test
