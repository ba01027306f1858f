// Instructions with more prefixes than they need. An instruction may have up to 15 bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec::test {
namespace {

using Code = std::vector<unsigned>;

class HeldVectors final : public NoPlatform {
 public:
  VectorState* vectors() override { return &state; }
  VectorState state;
};

/// Instructions of many encodings, made longer by repeated or meaningless prefixes.
class EngineRunsLongInstructions : public testing::Test {
 protected:
  EngineRunsLongInstructions() { state_.paging.cr4 = 1U << 9 | 1U << 10 | 1U << 18; }  // OSFXSR, OSXMMEXCPT, OSXSAVE

  static constexpr std::size_t max = 15;
  const std::vector<Code> instructions_{X86("rsqrtss %xmm4, %xmm6"),
                                        X86("cmpless %xmm1, %xmm0"),
                                        X86("sqrtsd %xmm3, %xmm2"),
                                        X86("addps %xmm1, %xmm0"),
                                        X86("paddd %xmm1, %xmm0"),
                                        X86("paddd %xmm1, %xmm8"),
                                        X86("cvtsi2ss %rax, %xmm0"),
                                        X86("cvttsd2si %xmm1, %eax"),
                                        X86("pcmpistri $12, %xmm1, %xmm0"),
                                        X86("pinsrw $3, %eax, %xmm0"),
                                        X86("crc32l %ecx, %eax"),
                                        X86("crc32w %cx, %eax"),
                                        X86("paddd %mm1, %mm0"),
                                        X86("fld1"),
                                        X86("emms")};

  /// Calls `run` for each instruction with each number of copies of a prefix that 15 bytes can hold.
  template <class Do>
  void each(Do run) {
    for (const unsigned prefix : {0x66U, 0xF2U, 0xF3U, 0x2EU, 0x3EU, 0x48U})
      for (Code code : instructions_)
        for (; code.size() <= max; code.insert(code.begin(), prefix)) run(code);
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
    EXPECT_EQ(a.state.rflags & x86::rflags::status, b.state.rflags & x86::rflags::status);
    EXPECT_EQ(a.vectors.legacy, b.vectors.legacy);
    EXPECT_EQ(a.vectors.upper, b.vectors.upper);
  }

  FlatRam ram_{page_size};
  CpuState state_;
  HeldVectors platform_;
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
    if (code.size() == max) ++of_15_bytes;
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
    // Enough around it that the block is worth compiling.
    for (unsigned n = 0; n < 7; ++n) append(code, X86("add %rcx, %r8"));
    code.insert(code.end(), {0xEB, static_cast<unsigned>(0x100 - (code.size() + 2))});  // jmp back
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
