// SSE in compiled code: cases that random programs seldom reach. oracle/vector_oracle_test.cpp tests the instructions
// themselves.
#include <gtest/gtest.h>
#include <immintrin.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/vector_platform.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec::test {
namespace {

/// Code on the second page, data on the first.
class CompiledSse : public testing::Test {
 protected:
  CompiledSse() {
    state_.paging.cr4 = 1U << 9;
    state_.gpr[rbx] = ram_.address();
    state_.rip = ram_.address() + page_size;
    state_.rflags = 2;
  }
  void add(const std::vector<unsigned>& code) {
    for (const unsigned b : code) ram_.bytes()[page_size + size_++] = static_cast<std::byte>(b);
    ++instructions_;
  }
  void put(std::uint32_t value) { std::memcpy(ram_.bytes().data(), &value, sizeof value); }
  std::byte* xmm(std::size_t n) { return platform_.state.legacy.data() + VectorState::xmm_at + 16 * n; }
  /// Runs all of the code; the first time it is interpreted.
  Stop run() {
    engine_.resume(state_);
    return engine_.run(instructions_);
  }

  FlatRam ram_{2 * page_size};
  VectorPlatform platform_;
  CpuState state_;
  TestCode code_;
  Engine engine_{ram_, platform_, &code_, Compiling{.after = 1}};
  std::size_t size_{};
  std::uint64_t instructions_{};
};

// The host has no register left for the guest's XMM15.
TEST_F(CompiledSse, UsesAllSixteenRegistersInOneBlock) {
  for (unsigned n = 0; n < 16; ++n) {
    add({0x66, 0x40U | (n >= 8 ? 5U : 0U), 0x0F, 0xFE, 0xC0U | (n % 8) << 3U | n % 8});  // paddd %xmm, %xmm
    xmm(n)[0] = static_cast<std::byte>(n + 1);
  }
  add(X86("jmp 1f; 1:"));
  constexpr unsigned times = 3;
  for (unsigned n = 0; n < times; ++n) ASSERT_EQ(run(), Stop::budget);
  EXPECT_EQ(engine_.compiled_blocks(), 1U);
  for (unsigned n = 0; n < 16; ++n) EXPECT_EQ(xmm(n)[0], static_cast<std::byte>((n + 1) << times)) << n;
}

// SDM 1 11.5: behind an instruction that unmasks an exception compiled code runs nothing that might raise it: not the
// first such instruction, which the interpreter runs without one, nor the next, which raises it.
TEST_F(CompiledSse, RaisesWhatLdmxcsrHasUnmasked) {
  add(X86("addps %xmm3, %xmm2"));
  add(X86("ldmxcsr (%rbx)"));
  for (unsigned n = 0; n < 9; ++n) add(X86("nop"));
  add(X86("addps %xmm3, %xmm2"));
  add(X86("addps %xmm3, %xmm2"));
  const std::uint64_t before = instructions_;
  add(X86("divps %xmm1, %xmm0"));
  add(X86("jmp 1f; 1:"));
  const std::uint32_t host = _mm_getcsr();
  constexpr std::uint32_t rounds_up = 0x4000, masked = 0x1F80 | rounds_up, unmasked = 0x1C00 | rounds_up;
  put(masked);
  constexpr float one = 1, third = 1.F / 3;
  std::memcpy(xmm(3), &third, sizeof third);
  for (unsigned n = 0; n < 3; ++n) {
    std::memcpy(xmm(0), &one, sizeof one);
    ASSERT_EQ(run(), Stop::budget);
  }
  EXPECT_EQ(engine_.compiled_blocks(), 1U);
  EXPECT_EQ(platform_.state.mxcsr(), masked | 0x24) << "ZE and PE";
  const std::uint64_t entered = engine_.entered_compiled();
  put(unmasked);
  std::memcpy(xmm(0), &one, sizeof one);
  const VectorState started = platform_.state;
  std::array<float, 2> sums{};
  for (Compiling compiling : {Compiling{.after = 0}, Compiling{.after = 1}}) {
    Engine interpreter{ram_, platform_, &code_, compiling};
    Engine& engine = compiling.after == 0 ? interpreter : engine_;
    platform_.state = started;
    engine.load(state_);
    EXPECT_EQ(engine.run(instructions_), Stop::float_error);
    EXPECT_EQ(engine.passed().instructions, before);
    EXPECT_EQ(engine.raised(), 4U);
    EXPECT_EQ(platform_.state.mxcsr(), unmasked | 0x20) << "PE of the two additions";
    EXPECT_EQ(_mm_getcsr(), host);
    sums[compiling.after] =
        std::bit_cast<std::array<float, 4>>(*reinterpret_cast<std::array<std::byte, 16>*>(xmm(2)))[0];
  }
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_GT(sums[0], 1);
  EXPECT_GT(engine_.entered_compiled(), entered);
}

// SDM 1 13.8: the same with XRSTOR, which loads MXCSR.
TEST_F(CompiledSse, RaisesWhatXrstorHasUnmasked) {
  const auto put_mxcsr = [&](std::uint32_t value) {
    std::memcpy(ram_.bytes().data() + VectorState::mxcsr_at, &value, sizeof value);
  };
  state_.paging.cr4 |= 1U << 18;
  state_.gpr[rax] = x86::xcr0::SSE::mask;
  add(X86("addps %xmm1, %xmm0"));
  add(X86("xrstor (%rbx)"));
  for (unsigned n = 0; n < 6; ++n) add(X86("nop"));
  const std::uint64_t before = instructions_;
  add(X86("addps %xmm1, %xmm0"));
  add(X86("jmp 1f; 1:"));
  put_mxcsr(0x1F80);
  for (unsigned n = 0; n < 3; ++n) ASSERT_EQ(run(), Stop::budget);
  EXPECT_EQ(engine_.compiled_blocks(), 1U);
  put_mxcsr(0x1F00);
  engine_.load(state_);
  std::memcpy(ram_.bytes().data() + 512, &x86::xcr0::SSE::mask, 8);
  constexpr float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(ram_.bytes().data() + VectorState::xmm_at, &infinite, sizeof infinite);
  const float negative = -infinite;
  std::memcpy(ram_.bytes().data() + VectorState::xmm_at + 16, &negative, sizeof negative);
  EXPECT_EQ(engine_.run(instructions_), Stop::float_error);
  EXPECT_EQ(engine_.passed().instructions, before);
  EXPECT_EQ(engine_.raised(), 1U);
}

// SDM 1 10.2.3: the guest runs with its own rounding, and the caller gets its own back; sticky flags stay.
TEST_F(CompiledSse, RoundsAsTheGuestWantsIt) {
  add(X86("divss %xmm1, %xmm0"));
  add(X86("stmxcsr (%rbx)"));
  for (unsigned n = 0; n < 6; ++n) add(X86("nop"));
  add(X86("jmp 1f; 1:"));
  const auto third_of_one = [&](std::uint32_t rounding) {
    const float one = 1;
    const float three = 3;
    std::memcpy(xmm(0), &one, sizeof one);
    std::memcpy(xmm(1), &three, sizeof three);
    platform_.state.set_mxcsr(0x1F80U | rounding);
    EXPECT_EQ(run(), Stop::budget);
    std::uint32_t bits{};
    std::memcpy(&bits, xmm(0), sizeof bits);
    return bits;
  };
  const std::uint32_t host = _mm_getcsr();
  constexpr std::uint32_t down = 0x2000, up = 0x4000, precision = 0x20;
  for (unsigned n = 0; n < 3; ++n) {
    EXPECT_EQ(third_of_one(down), 0x3EAA'AAAAU);
    EXPECT_EQ(third_of_one(up), 0x3EAA'AAABU);
    EXPECT_EQ(_mm_getcsr(), host);
    std::uint32_t stored{};
    std::memcpy(&stored, ram_.bytes().data(), sizeof stored);
    EXPECT_EQ(stored, 0x1F80U | up | precision);
    EXPECT_EQ(platform_.state.mxcsr(), stored);
  }
  EXPECT_EQ(engine_.compiled_blocks(), 1U);
}

// SDM 2B TZCNT: a CPU without it runs BSF, which leaves its destination as it is for 0.
TEST(CompiledScan, IgnoresThePrefixAsTheGuestsCpuDoes) {
  class Old final : public NoPlatform {
   public:
    bool has(CpuFeature feature) override { return feature != CpuFeature::bmi1 && feature != CpuFeature::lzcnt; }
  };
  FlatRam ram{page_size};
  Old old;
  NoPlatform recent;
  TestCode code;
  const Assembled program = X86("tzcnt %ecx, %eax; lzcnt %ecx, %edx; jmp 1f; 1:");
  std::memcpy(ram.bytes().data(), program.data(), program.size());
  CpuState before;
  before.rip = ram.address();
  before.rflags = 2;
  before.gpr[rax] = before.gpr[rdx] = 77;
  const auto run = [&](Platform& platform, std::uint64_t source) {
    Engine engine{ram, platform, &code, Compiling{.after = 1}};
    before.gpr[rcx] = source;
    for (unsigned n = 0; n < 3; ++n) {
      engine.load(before);
      EXPECT_EQ(engine.run(3), Stop::budget);
    }
    EXPECT_EQ(engine.compiled_blocks(), 1U);
    return engine.state();
  };
  EXPECT_EQ(run(old, 0).gpr[rax], 77U);
  EXPECT_EQ(run(old, 0).gpr[rdx], 77U);
  EXPECT_EQ(run(old, 0x100).gpr[rdx], 8U);
  EXPECT_EQ(run(recent, 0).gpr[rax], 32U);
  EXPECT_EQ(run(recent, 0).gpr[rdx], 32U);
  EXPECT_EQ(run(recent, 0x100).gpr[rdx], 23U);
}

}  // namespace
}  // namespace vpmu::exec::test
