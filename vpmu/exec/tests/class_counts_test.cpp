// Instructions by their class: interpreted, compiled and one by one. SDM 3B tables 19-3, 19-13.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "exec/decode/instruction_class.hpp"
#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/vector_platform.hpp"

namespace vpmu::exec::test {
namespace {

using enum InstructionClass;

InstructionClass class_of(const std::vector<unsigned>& code) {
  std::vector<std::byte> bytes;
  for (const unsigned b : code) bytes.push_back(static_cast<std::byte>(b));
  return instruction_class(bytes, CodeMode::bits64);
}

TEST(InstructionClasses, GoByWhatTheInstructionComputesIn) {
  struct Case {
    const char* what;
    std::vector<unsigned> code;
    InstructionClass of;
  };
  for (const Case& c : {
           Case{"nop", X86("nop"), nop},
           Case{"nopw", X86("nopl (%rax)"), nop},
           Case{"prefetchnta", X86("prefetchnta (%rbx)"), prefetch_nta},
           Case{"prefetcht0", X86("prefetcht0 (%rbx)"), prefetch_t0},
           Case{"prefetcht1", X86("prefetcht1 (%rbx)"), prefetch_t1_t2},
           Case{"prefetcht2", X86("prefetcht2 (%rbx)"), prefetch_t1_t2},
           Case{"prefetchw", X86("prefetchw (%rbx)"), prefetch_w},
           Case{"mov", X86("mov (%rbx), %eax"), other},
           Case{"movsd (string)", X86("movsl"), other},
           Case{"imul", X86("imul %ecx, %eax"), integer_product},
           Case{"div", X86("div %rcx"), integer_product},
           Case{"fld1", X86("fld1"), x87_other},
           Case{"faddp", X86("faddp %st, %st(1)"), x87_arithmetic},
           Case{"fucomip", X86("fucomip %st(1), %st"), x87_arithmetic},
           Case{"fyl2x", X86("fyl2x"), x87_transcendental},
           Case{"fabs", X86("fabs"), x87_operation},
           Case{"fnstcw", X86("fnstcw (%rsp)"), x87_other},
           Case{"paddd mm", X86("paddd %mm1, %mm0"), mmx_arithmetic},
           Case{"pmullw mm", X86("pmullw %mm1, %mm0"), mmx_multiply},
           Case{"movq mm, memory", X86("movq (%rbx), %mm0"), mmx},
           Case{"emms", X86("emms"), mmx},
           Case{"paddd xmm", X86("paddd %xmm1, %xmm0"), sse_integer_arithmetic},
           Case{"pmaxsd", X86("pmaxsd %xmm1, %xmm0"), sse_integer_arithmetic},
           Case{"pslld", X86("pslld $3, %xmm1"), sse_integer_shift},
           Case{"packuswb", X86("packuswb %xmm1, %xmm0"), sse_integer_pack},
           Case{"punpcklbw", X86("punpcklbw %xmm1, %xmm0"), sse_integer_unpack},
           Case{"pxor", X86("pxor %xmm1, %xmm0"), sse_integer_logical},
           Case{"pshufd", X86("pshufd $0, %xmm1, %xmm0"), sse_integer_shuffle},
           Case{"movdqa xmm, xmm", X86("movdqa %xmm1, %xmm0"), sse_integer_shuffle},
           Case{"movdqa xmm, memory", X86("movdqa (%rbx), %xmm0"), sse_integer},
           Case{"mulps", X86("mulps %xmm1, %xmm0"), sse_packed_single_arithmetic},
           Case{"mulss", X86("mulss %xmm1, %xmm0"), sse_scalar_single_arithmetic},
           Case{"mulpd", X86("mulpd %xmm1, %xmm0"), sse_packed_double_arithmetic},
           Case{"sqrtsd", X86("sqrtsd %xmm1, %xmm0"), sse_scalar_double_arithmetic},
           Case{"minps", X86("minps %xmm1, %xmm0"), sse_packed_single_arithmetic},
           Case{"rcpss", X86("rcpss %xmm1, %xmm0"), sse_scalar_single_arithmetic},
           Case{"rsqrtps", X86("rsqrtps %xmm1, %xmm0"), sse_packed_single_arithmetic},
           Case{"haddpd", X86("haddpd %xmm1, %xmm0"), sse_packed_double_arithmetic},
           Case{"addsubps", X86("addsubps %xmm1, %xmm0"), sse_packed_single_arithmetic},
           Case{"dpps", X86("dpps $0xFF, %xmm1, %xmm0"), sse_packed_single_twice},
           Case{"dppd", X86("dppd $0xFF, %xmm1, %xmm0"), sse_packed_double_twice},
           // Moves, conversions, comparisons, logic, blends and rounding are no arithmetic.
           Case{"movsd xmm", X86("movsd (%rbx), %xmm0"), sse_scalar_double},
           Case{"cvtsi2ss", X86("cvtsi2ss %eax, %xmm0"), sse_scalar_single},
           Case{"cvttsd2si", X86("cvttsd2si %xmm0, %eax"), sse_scalar_double},
           Case{"movddup", X86("movddup %xmm1, %xmm0"), sse_packed_double},
           Case{"cmpps", X86("cmpeqps %xmm1, %xmm0"), sse_packed_single},
           Case{"comisd", X86("comisd %xmm1, %xmm0"), sse_scalar_double},
           Case{"xorps", X86("xorps %xmm1, %xmm0"), sse_packed_single},
           Case{"blendpd", X86("blendpd $1, %xmm1, %xmm0"), sse_packed_double},
           Case{"roundss", X86("roundss $1, %xmm1, %xmm0"), sse_scalar_single},
           Case{"vmulps xmm", X86("vmulps %xmm2, %xmm1, %xmm0"), avx_packed_single_arithmetic},
           Case{"vaddsd", X86("vaddsd %xmm2, %xmm1, %xmm0"), avx_scalar_double_arithmetic},
           Case{"vmulps ymm", X86("vmulps %ymm2, %ymm1, %ymm0"), avx_256_single_arithmetic},
           Case{"vdivpd ymm", X86("vdivpd %ymm2, %ymm1, %ymm0"), avx_256_double_arithmetic},
           Case{"vmovaps ymm", X86("vmovaps %ymm1, %ymm0"), avx_256},
           Case{"vpaddd ymm", X86("vpaddd %ymm2, %ymm1, %ymm0"), avx_256},
           Case{"vpaddd xmm", X86("vpaddd %xmm2, %xmm1, %xmm0"), other},
           Case{"vdpps ymm", X86("vdpps $0xFF, %ymm2, %ymm1, %ymm0"), avx_256_single_twice},
           Case{"vfmadd231sd", X86("vfmadd231sd %xmm2, %xmm1, %xmm0"), avx_scalar_double_twice},
           Case{"vfmadd231ss", X86("vfmadd231ss %xmm2, %xmm1, %xmm0"), avx_scalar_single_twice},
           Case{"vfnmsub213ps xmm", X86("vfnmsub213ps %xmm2, %xmm1, %xmm0"), avx_packed_single_twice},
           Case{"vfmaddsub132pd ymm", X86("vfmaddsub132pd %ymm2, %ymm1, %ymm0"), avx_256_double_twice},
       })
    EXPECT_EQ(class_of(c.code), c.of) << c.what;
}

/// Code on the second page, data on the first.
class ClassCounting : public testing::Test {
 protected:
  // A loop of 100 rounds of 7 instructions.
  static constexpr std::uint64_t rounds = 100, per_round = 7;
  ClassCounting() {
    write(
        X86("1: addsd %xmm1, %xmm0; mulps %xmm1, %xmm2; mulps %xmm1, %xmm2; movaps %xmm0, %xmm3; "
            "imul %edx, %eax; sub $1, %ecx; jne 1b"));
    state_.paging.cr4 = 1U << 9;
    state_.gpr[rbx] = ram_.address();
    state_.gpr[rcx] = rounds;
    state_.rip = ram_.address() + page_size;
    state_.rflags = 2;
  }
  void write(const std::vector<unsigned>& code) {
    std::size_t at = page_size;
    for (const unsigned b : code) ram_.bytes()[at++] = static_cast<std::byte>(b);
  }
  static std::uint64_t of(const Engine& engine, InstructionClass c) {
    return engine.classes()[static_cast<unsigned>(c)];
  }

  FlatRam ram_{2 * page_size};
  VectorPlatform platform_;
  CpuState state_;
  TestCode code_;
};

TEST_F(ClassCounting, IsTheSameInterpretedCompiledAndOneByOne) {
  for (const std::uint32_t compile_after : {0U, 1U, 20U})
    for (const std::uint64_t piece : {std::uint64_t{1}, std::uint64_t{5}, rounds * per_round}) {
      Engine engine{ram_, platform_, &code_, Compiling{.after = compile_after}};
      engine.count_classes(true);
      engine.load(state_);
      for (std::uint64_t n = 0; n < rounds * per_round; n += piece) ASSERT_EQ(engine.run(piece), Stop::budget);
      const std::string how = std::to_string(compile_after) + ", " + std::to_string(piece);
      EXPECT_EQ(of(engine, sse_scalar_double_arithmetic), rounds) << how;
      EXPECT_EQ(of(engine, sse_packed_single_arithmetic), 2 * rounds) << how;
      EXPECT_EQ(of(engine, sse_packed_single), rounds) << how;
      EXPECT_EQ(of(engine, integer_product), rounds) << how;
      EXPECT_EQ(of(engine, sse_scalar_single_arithmetic), 0U) << how;
      if (piece > per_round) {
        EXPECT_EQ(engine.compiled_blocks() > 0, compile_after > 0) << how;
      }
    }
}

TEST_F(ClassCounting, CountsOnlyWhileItIsWanted) {
  Engine engine{ram_, platform_, &code_, Compiling{.after = 1}};
  engine.load(state_);
  ASSERT_EQ(engine.run(10 * per_round), Stop::budget);
  EXPECT_EQ(engine.classes(), ClassCounts{});
  engine.count_classes(true);
  ASSERT_EQ(engine.run(10 * per_round), Stop::budget);
  engine.count_classes(false);
  ASSERT_EQ(engine.run(10 * per_round), Stop::budget);
  EXPECT_EQ(of(engine, sse_packed_single_arithmetic), 20U);
}

// The operand of the MULPS with memory is not aligned, and it faults.
TEST_F(ClassCounting, WhatDidNotRunIsNotCounted) {
  write(X86("1: addps %xmm1, %xmm0; mulps (%rbx), %xmm2; addps %xmm1, %xmm0; jmp 1b"));
  for (const std::uint32_t compile_after : {0U, 1U}) {
    Engine engine{ram_, platform_, &code_, Compiling{.after = compile_after}};
    engine.count_classes(true);
    state_.gpr[rbx] = ram_.address();
    engine.load(state_);
    ASSERT_EQ(engine.run(40), Stop::budget);
    EXPECT_EQ(of(engine, sse_packed_single_arithmetic), 30U);
    state_.gpr[rbx] = ram_.address() + 1;
    engine.resume(state_);
    EXPECT_NE(engine.run(40), Stop::budget);
    EXPECT_EQ(of(engine, sse_packed_single_arithmetic), 31U) << "only the ADDPS before it";
  }
}

}  // namespace
}  // namespace vpmu::exec::test
