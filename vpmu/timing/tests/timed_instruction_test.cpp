#include "timing/timed_instruction.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "exec/tests/fixtures/assembled.hpp"

namespace vpmu::timing {
namespace {

using exec::test::Assembled;

std::vector<TimedInstruction> timed(Assembled code, const Microarchitecture& on = skylake) {
  const auto block = timed_block(std::as_bytes(code), on);
  EXPECT_TRUE(block);
  return block ? *block : std::vector<TimedInstruction>{};
}

TEST(TimedInstruction, AccessesBecomeMicroOpsAndJoinTheirInstruction) {
  const auto block = timed(X86("add (%rbx), %rax; mov %rax, (%rbx); add %rax, (%rbx); push %rax; pop %rax"));
  ASSERT_EQ(block.size(), 5U);
  const std::array micro_ops{2, 2, 4, 2, 1}, slots{1, 1, 2, 1, 1};
  for (std::size_t at = 0; at < block.size(); ++at) {
    EXPECT_EQ(block[at].micro_ops, micro_ops[at]) << at;
    EXPECT_EQ(block[at].slots, slots[at]) << at;
    EXPECT_TRUE(block[at].has_row) << at;
  }
}

// 248966, micro-op queue: Sandy Bridge and Ivy Bridge split each indexed one; Haswell on only those that do not read
// their destination.
TEST(TimedInstruction, AnIndexedAddressSplitsTheMicroOp) {
  const auto slots = [](Assembled code, const Microarchitecture& on) { return timed(code, on).at(0).slots; };
  EXPECT_EQ(slots(X86("add (%rbx,%rcx,8), %rax"), nehalem), 1);
  EXPECT_EQ(slots(X86("add (%rbx,%rcx,8), %rax"), ivy_bridge), 2);
  EXPECT_EQ(slots(X86("add (%rbx,%rcx,8), %rax"), haswell), 1);
  EXPECT_EQ(slots(X86("vaddps (%rbx,%rcx,8), %ymm0, %ymm1"), haswell), 2);
  EXPECT_EQ(slots(X86("addps (%rbx,%rcx,8), %xmm1"), haswell), 1);
}

// 248966, macro-fusion.
TEST(TimedInstruction, ACompareFusesWithTheBranchesThatItMay) {
  const auto fuses = [](Assembled code, const Microarchitecture& on = skylake) { return timed(code, on).at(1).fuses; };
  EXPECT_TRUE(fuses(X86("cmp %rax, %rbx; 1: jne 1b")));
  EXPECT_TRUE(fuses(X86("cmp %rax, %rbx; 1: jb 1b")));
  EXPECT_TRUE(fuses(X86("test %rax, %rbx; 1: js 1b")));
  EXPECT_TRUE(fuses(X86("dec %rax; 1: jnz 1b")));
  EXPECT_TRUE(fuses(X86("cmp %rax, %rbx; 1: jne 1b"), nehalem));
  EXPECT_FALSE(fuses(X86("dec %rax; 1: jnz 1b"), nehalem)) << "before Sandy Bridge only CMP and TEST";
  EXPECT_FALSE(fuses(X86("dec %rax; 1: jb 1b"))) << "INC and DEC leave the carry";
  EXPECT_FALSE(fuses(X86("cmp %rax, %rbx; 1: js 1b")));
  EXPECT_FALSE(fuses(X86("cmpl $1, (%rbx); 1: jne 1b"))) << "memory and an immediate";
  EXPECT_FALSE(fuses(X86("mov %rax, %rbx; 1: jne 1b")));
  const auto pair = timed(X86("cmp %rax, %rbx; 1: jne 1b"));
  EXPECT_EQ(pair[0].slots + pair[1].slots, 1);
}

TEST(TimedInstruction, IdiomsTakeNoPortFromSandyBridgeOn) {
  for (const TimedInstruction& i : timed(X86("xor %eax, %eax; nop"), nehalem)) {
    EXPECT_TRUE(std::ranges::any_of(i.ports, [](std::uint16_t busy) { return busy != 0; }));
    EXPECT_TRUE(i.sources.empty());
  }
  const auto block = timed(X86("xor %eax, %eax; vpxor %xmm1, %xmm1, %xmm2; mov %rbx, %rax; movaps %xmm1, %xmm2; nop"));
  ASSERT_EQ(block.size(), 5U);
  for (const TimedInstruction& i : block) {
    EXPECT_EQ(i.slots, 1);
    for (const std::uint16_t busy : i.ports) EXPECT_EQ(busy, 0);
  }
  EXPECT_TRUE(block[0].is_free && block[1].is_free);
  EXPECT_FALSE(block[2].sources.empty()) << "an eliminated move waits for its source, without a latency";
  EXPECT_EQ(block[2].latency, 0);
}

// 248966, stack pointer tracker.
TEST(TimedInstruction, AReadOfTheStackPointerAfterAPushTakesAMicroOpMore) {
  const auto block = timed(X86("push %rax; mov 8(%rsp), %rbx; mov 8(%rsp), %rcx"));
  ASSERT_EQ(block.size(), 3U);
  EXPECT_EQ(block[1].slots, 2);
  EXPECT_EQ(block[2].slots, 1);
}

TEST(TimedInstruction, PartOfARegisterWaitsForTheRest) {
  EXPECT_TRUE(timed(X86("mov %bl, %al")).at(0).sources.has(0));
  EXPECT_FALSE(timed(X86("mov %ebx, %eax")).at(0).sources.has(0));
  EXPECT_TRUE(timed(X86("cvtsi2sd %rax, %xmm3")).at(0).sources.has(first_vector_node + 3));
  EXPECT_TRUE(timed(X86("tzcnt %rax, %rbx"), haswell).at(0).sources.has(3));
  EXPECT_FALSE(timed(X86("tzcnt %rax, %rbx"), skylake).at(0).sources.has(3));
}

TEST(TimedInstruction, APrefixThatChangesTheLengthIsSeen) {
  EXPECT_TRUE(timed(X86("add $0x1234, %ax")).at(0).has_length_prefix);
  EXPECT_FALSE(timed(X86("add $0x12345678, %eax")).at(0).has_length_prefix);
  EXPECT_FALSE(timed(X86("add %bx, %ax")).at(0).has_length_prefix);
}

// Bytes of a guest may be of instructions that its CPU has not.
TEST(TimedInstruction, RegistersThatOnlyEvexHasAreNoNodes) {
  for (const TimedInstruction& i : timed(X86("vaddps %xmm29, %xmm17, %xmm31; vmovups %ymm30, (%rax)")))
    for (const auto& nodes :
         {std::vector(i.sources.begin(), i.sources.end()), std::vector(i.results.begin(), i.results.end())})
      for (const Node node : nodes) EXPECT_LT(node, node_count);
}

TEST(TimedInstruction, CodeThatIsNoneGivesNoBlock) {
  EXPECT_FALSE(timed_block(std::as_bytes(Assembled{X86(".byte 0x0f, 0x0b, 0x06")}), skylake)) << "06H in 64-bit code";
  EXPECT_FALSE(timed_block(std::as_bytes(Assembled{X86(".byte 0x48, 0x8b")}), skylake)) << "cut";
}

}  // namespace
}  // namespace vpmu::timing
