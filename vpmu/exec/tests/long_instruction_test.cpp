// Instructions with more prefixes than they need. An instruction may have up to 15 bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"

namespace vpmu::exec::test {
namespace {

using Code = std::vector<unsigned>;

class Vectors final : public NoPlatform {
 public:
  VectorState* vectors() override { return &state; }
  VectorState state;
};

/// Instructions of many encodings, made longer by repeated or meaningless prefixes.
class EngineRunsLongInstructions : public testing::Test {
 protected:
  EngineRunsLongInstructions() { state_.paging.cr4 = 1U << 9 | 1U << 10 | 1U << 18; }  // OSFXSR, OSXMMEXCPT, OSXSAVE

  static constexpr std::size_t longest = 15;
  const std::vector<Code> instructions_{{0xF3, 0x0F, 0x52, 0xF4},              // rsqrtss %xmm4, %xmm6
                                        {0xF3, 0x0F, 0xC2, 0xC1, 0x02},        // cmpless %xmm1, %xmm0
                                        {0xF2, 0x0F, 0x51, 0xD3},              // sqrtsd %xmm3, %xmm2
                                        {0x0F, 0x58, 0xC1},                    // addps %xmm1, %xmm0
                                        {0x66, 0x0F, 0xFE, 0xC1},              // paddd %xmm1, %xmm0
                                        {0x66, 0x44, 0x0F, 0xFE, 0xC1},        // paddd %xmm1, %xmm8
                                        {0xF3, 0x48, 0x0F, 0x2A, 0xC0},        // cvtsi2ss %rax, %xmm0
                                        {0xF2, 0x0F, 0x2C, 0xC1},              // cvttsd2si %xmm1, %eax
                                        {0x66, 0x0F, 0x3A, 0x63, 0xC1, 0x0C},  // pcmpistri $12, %xmm1, %xmm0
                                        {0x66, 0x0F, 0xC4, 0xC0, 0x03},        // pinsrw $3, %eax, %xmm0
                                        {0xF2, 0x0F, 0x38, 0xF1, 0xC1},        // crc32l %ecx, %eax
                                        {0x66, 0xF2, 0x0F, 0x38, 0xF1, 0xC1},  // crc32w %cx, %eax
                                        {0x0F, 0xFE, 0xC1},                    // paddd %mm1, %mm0
                                        {0xD9, 0xE8},                          // fld1
                                        {0x0F, 0x77}};                         // emms

  /// Calls `run` for each instruction with each number of copies of a prefix that 15 bytes can hold.
  template <class Do>
  void each(Do run) {
    for (const unsigned prefix : {0x66U, 0xF2U, 0xF3U, 0x2EU, 0x3EU, 0x48U})
      for (Code code : instructions_)
        for (; code.size() <= longest; code.insert(code.begin(), prefix)) run(code);
  }
  void start(Engine& engine, const Code& code) {
    platform_.state = VectorState{};
    platform_.state.xcr0 = 7;
    for (std::size_t i = 0; i < 256; ++i)
      platform_.state.legacy[VectorState::xmm_at + i] = static_cast<std::byte>(i * 37);
    std::ranges::transform(code, ram_.bytes().begin(), [](unsigned b) { return static_cast<std::byte>(b); });
    state_.gpr = {0x1234'5678, 0x9ABC, 0x11};
    state_.rip = ram_.address();
    state_.rflags = 2;
    engine.load(state_);
  }
  struct End {
    CpuState state;
    VectorState vectors;
  };
  static void expect_same(const End& a, const End& b) {
    EXPECT_EQ(a.state.gpr, b.state.gpr);
    EXPECT_EQ(a.state.rip, b.state.rip);
    EXPECT_EQ(a.state.rflags & rflags::status, b.state.rflags & rflags::status);
    EXPECT_EQ(a.vectors.legacy, b.vectors.legacy);
    EXPECT_EQ(a.vectors.upper, b.vectors.upper);
  }

  FlatRam ram_{page_size};
  CpuState state_;
  Vectors platform_;
  TestCode code_;
  Engine engine_{ram_, platform_, &code_};
};

TEST_F(EngineRunsLongInstructions, AsTheCpuDoes) {
  HostCpu host;
  unsigned ran = 0;
  unsigned of_15_bytes = 0;
  each([&](const Code& code) {
    start(engine_, code);
    std::vector<std::byte> bytes;
    for (const unsigned b : code) bytes.push_back(static_cast<std::byte>(b));
    VectorState vectors = platform_.state;
    const Stop stop = engine_.run(1);
    if (stop == Stop::unsupported) return;  // no such instruction
    ASSERT_EQ(stop, Stop::budget);
    ++ran;
    if (code.size() == longest) ++of_15_bytes;
    const auto after = host.run(bytes, {.gpr = state_.gpr, .flags = state_.rflags}, &vectors);
    ASSERT_TRUE(after);
    vectors.forget_pointers();
    // The host's FXSAVE stores its own MXCSR_MASK, which on AMD includes the misaligned exception mask (bit 17).
    constexpr auto mask = VectorState::mxcsr_mask_at;
    std::copy_n(platform_.state.legacy.begin() + mask, sizeof(std::uint32_t), vectors.legacy.begin() + mask);
    CpuState there = engine_.state();
    EXPECT_EQ(there.rip, state_.rip + code.size());
    there.gpr = after->gpr;
    there.rflags = after->flags;
    expect_same({engine_.state(), platform_.state}, {there, vectors});
  });
  EXPECT_GT(ran, 500U);
  EXPECT_GT(of_15_bytes, 40U);
}

TEST_F(EngineRunsLongInstructions, CompiledAsInterpreted) {
  TestCode other_code;
  Engine interpreting{ram_, platform_, &other_code, never_compiling};
  Engine compiling{ram_, platform_, &code_, Compiling{.after = 1}};
  unsigned ran = 0;
  each([&](Code code) {
    // Enough around it that the block is worth compiling: add %rcx, %r8 seven times; jmp back
    for (unsigned n = 0; n < 7; ++n) code.insert(code.end(), {0x49, 0x01, 0xC8});
    code.insert(code.end(), {0xEB, static_cast<unsigned>(0x100 - (code.size() + 2))});
    std::array<End, 2> ends;
    std::array<Stop, 2> stops{};
    for (std::size_t n = 0; n < 2; ++n) {
      Engine& engine = n == 0 ? interpreting : compiling;
      start(engine, code);
      stops[n] = engine.run(30);
      ends[n] = {engine.state(), platform_.state};
    }
    EXPECT_EQ(stops[0], stops[1]);
    expect_same(ends[0], ends[1]);
    if (stops[0] == Stop::budget) ++ran;
  });
  EXPECT_GT(ran, 500U);
  EXPECT_EQ(interpreting.compiled_blocks(), 0U);
  EXPECT_GT(compiling.compiled_blocks(), 500U);
}

}  // namespace
}  // namespace vpmu::exec::test
