// 16- and 32-bit code: segments, modes, and what oracle/narrow_oracle_test.cpp cannot compare with QEMU.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <initializer_list>

#include "exec/engine.hpp"
#include "exec/host/host_form.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/flat_ram.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/vector_platform.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec::test {
namespace {

/// Data on the first page, code on the second, then the stack; each is at the base of its segment.
class NarrowCode : public testing::Test {
 protected:
  NarrowCode() {
    const std::uint64_t at = ram_.address();
    state_.segment_bases = {at + 0x80, at + page_size, at + 2 * page_size, at};  // ES, CS, SS, DS
    state_.mode = CodeMode::bits16;
    state_.stack_is_32_bit = false;
    state_.rflags = 2;
    state_.gpr[rsp] = 0xABCD'0100;  // 16-bit code sees 100H
  }
  void put(const std::vector<unsigned>& code, std::size_t at = 0) {
    for (const unsigned b : code) ram_.bytes()[page_size + at++] = static_cast<std::byte>(b);
  }
  template <class T>
  T at(std::size_t offset) {
    T value{};
    std::memcpy(&value, ram_.bytes().data() + offset, sizeof value);
    return value;
  }
  template <class T>
  void set(std::size_t offset, T value) {
    std::memcpy(ram_.bytes().data() + offset, &value, sizeof value);
  }
  static constexpr std::size_t stack = 2 * page_size;
  CpuState run(std::uint64_t instructions, Stop expected = Stop::budget) {
    engine_.load(state_);
    return resume(instructions, expected);
  }
  CpuState resume(std::uint64_t instructions, Stop expected = Stop::budget) {
    engine_.resume(state_);
    EXPECT_EQ(engine_.run(instructions), expected);
    return engine_.state();
  }

  FlatRam ram_{2 * page_size + 0x1'0000};
  CpuState state_;
  VectorPlatform platform_;
  TestCode code_;
  Engine engine_{ram_, platform_, &code_, Compiling{.after = 1}};
};

// SDM 1 3.7.5: the segment is DS, or SS for addresses with BP; SDM 1 3.6: addresses are 16-bit sums.
TEST_F(NarrowCode, AddsTheBasesOfSegments) {
  set<std::uint16_t>(0x10, 0x1234);
  set<std::uint16_t>(stack + 0x20, 0x5678);
  set<std::uint16_t>(0x80 + 6, 0x9ABC);
  state_.gpr[rbx] = 0xFFF0;
  state_.gpr[rsi] = 0x20;
  state_.gpr[rbp] = 0xFFFF'0018;
  // FFF0H + 20H is 10H; the last is a sum of 32 bits.
  put(
      X86_16("mov (%bx,%si), %ax; "
             "mov 8(%bp), %cx; "
             "mov %es:6, %dx; "
             "mov %cs:0, %di; "
             ".byte 0x66, 0x67, 0x8B, 0x04, 0x1E"));  // mov (%esi,%ebx), %eax, the prefixes in the other order
  state_.gpr[rdx] = 0xFFFF'0000;
  const CpuState s = run(4);
  EXPECT_EQ(s.gpr[rax], 0x1234U);
  EXPECT_EQ(s.gpr[rcx], 0x5678U);
  EXPECT_EQ(s.gpr[rdx], 0xFFFF'9ABCU);
  EXPECT_EQ(s.gpr[rdi], 0x008BU);
  EXPECT_EQ(s.rip, 15U);
  set<std::uint32_t>(0x1'0010, 0x1357'9BDF);
  EXPECT_EQ(run(5).gpr[rax], 0x1357'9BDFU);
}

// SDM 3A 5.3.3: SS.B determines the width of the stack pointer; its upper half stays unchanged.
TEST_F(NarrowCode, PushesBySixteenBits) {
  put(
      X86_16("push $-2; "
             "pushl $0x04030201; "
             "pop %bx; "
             "call 1f; "
             "inc %ax; inc %ax; "
             "1: ret"));
  CpuState s = run(3);
  EXPECT_EQ(at<std::uint16_t>(stack + 0xFE), 0xFFFEU);
  EXPECT_EQ(at<std::uint32_t>(stack + 0xFA), 0x0403'0201U);
  EXPECT_EQ(s.gpr[rbx], 0x0201U);
  EXPECT_EQ(s.gpr[rsp], 0xABCD'00FCU);
  s = run(4);
  EXPECT_EQ(at<std::uint16_t>(stack + 0xFA), 12U) << "an offset in the code segment";
  EXPECT_EQ(s.rip, 14U);
  state_.gpr[rsp] = 0;
  s = run(1);
  EXPECT_EQ(s.gpr[rsp], 0xFFFEU);
}

// SDM 2B MOVS: the source is in DS or the segment of a prefix, the destination always in ES.
TEST_F(NarrowCode, MovesStringsFromDsToEs) {
  set<std::uint32_t>(0x10, 0x4433'2211);
  state_.gpr[rcx] = 0xFFFF'0002;
  state_.gpr[rsi] = 0x7777'0010;
  state_.gpr[rdi] = 0x8888'0004;
  put(X86_16("rep movsw"));
  const CpuState s = run(1);
  EXPECT_EQ(at<std::uint32_t>(0x84), 0x4433'2211U);
  EXPECT_EQ(s.gpr[rcx], 0xFFFF'0000U);
  EXPECT_EQ(s.gpr[rsi], 0x7777'0014U);
  EXPECT_EQ(s.gpr[rdi], 0x8888'0008U);
}

// SDM 1 3.6.1: the same bytes are other instructions in other modes.
TEST_F(NarrowCode, ReadsTheSameBytesByTheMode) {
  put({0x48, 0x05, 1, 0, 0,
       0});  // 64 bits: add rax, 1; 32: dec eax; add eax, 1; 16: dec ax; add ax, 1; add [bx+si], al
  state_.gpr[rax] = 0x1'0000'0000;
  run(0);
  for (unsigned n = 0; n < 3; ++n) {
    state_.mode = CodeMode::bits32;
    EXPECT_EQ(resume(1).rip, 1U);
    EXPECT_EQ(resume(2).rip, 6U);
    EXPECT_EQ(resume(1).gpr[rax], 0xFFFF'FFFFU);
    state_.mode = CodeMode::bits16;
    EXPECT_EQ(resume(2).rip, 4U);
    EXPECT_EQ(resume(1).gpr[rax], 0x1'0000'FFFFU);
    state_.mode = CodeMode::bits64;
    state_.rip = ram_.address() + page_size;
    EXPECT_EQ(resume(1).gpr[rax], 0x1'0000'0001U);
    EXPECT_EQ(resume(1).rip, state_.rip + 6);
    state_.rip = 0;
  }
}

// The bytes of the loop are one instruction of 64-bit code.
TEST_F(NarrowCode, IsNotCompiledAs64BitCode) {
  state_.mode = CodeMode::bits32;
  state_.gpr[rax] = 1000;
  put(X86_32("1: dec %eax; jne 1b; 2: jmp 2b"));
  const CpuState s = run(2100);
  EXPECT_EQ(s.gpr[rax], 0U);
  EXPECT_EQ(s.rip, 3U);
  EXPECT_EQ(engine_.compiled_blocks(), 0U);
}

// SDM 3A 3.4.2: linear addresses have 32 bits.
TEST_F(NarrowCode, WrapsAtFourGigabytes) {
  state_.mode = CodeMode::bits32;
  state_.segment_bases[3] = 0xFFFF'FFF0;  // DS
  set<std::uint32_t>(8, 0x1357'9BDF);
  put({0xA1});
  set<std::uint32_t>(page_size + 1, static_cast<std::uint32_t>(ram_.address() + 8 + 0x10));
  EXPECT_EQ(run(1).gpr[rax], 0x1357'9BDFU);
}

// With the address-size prefix, 64-bit code has 32-bit addresses. SDM 1 3.6.1.
TEST_F(NarrowCode, HasAddressesOf32BitsIn64BitCode) {
  state_.mode = CodeMode::bits64;
  state_.rip = ram_.address() + page_size;
  set<std::uint32_t>(8, 0x1122'3344);
  state_.gpr[rbx] = (7ULL << 32) | (ram_.address() + 24);
  state_.gpr[rcx] = (5ULL << 32) | 2;
  state_.fs_base = 0;
  put(
      X86("mov -16(%ebx), %eax; "
          ".byte 0x67; loop 1f; "
          "1: jecxz 2f; 2:"));
  const CpuState s = run(2);
  EXPECT_EQ(s.gpr[rax], 0x1122'3344U);
  EXPECT_EQ(s.gpr[rcx], 1U);
  state_.gpr[rcx] = 9ULL << 32;
  put(X86("jecxz .+4"));
  EXPECT_EQ(run(1).rip, state_.rip + 4);
}

// What all processors have: AL from CF, and no flag changes.
TEST_F(NarrowCode, SalcFillsAlFromTheCarry) {
  state_.mode = CodeMode::bits32;
  state_.gpr[rax] = 0x1234'5678;
  put(X86_32("stc; .byte 0xD6"));  // salc
  CpuState s = run(2);
  EXPECT_EQ(s.gpr[rax], 0x1234'56FFU);
  EXPECT_EQ(s.rflags & x86::rflags::status, x86::rflags::CF::mask);
  put(X86_32("clc; .byte 0xD6"));  // salc
  EXPECT_EQ(run(2).gpr[rax], 0x1234'5600U);
}

// SDM 2A 2.3.12: offsets of a gather's elements are as wide as addresses are.
TEST_F(NarrowCode, GathersByOffsetsOf32Bits) {
  if (!host_has(CpuFeature::avx2)) GTEST_SKIP() << "no AVX2 here";
  state_.mode = CodeMode::bits32;
  state_.paging.cr4 = bit(9) | bit(18);
  state_.gpr[rbx] = 0x20;
  const std::array<std::uint32_t, 4> indices{0xFFFF'FFFF, 0, 0x4000'0001, 0xBFFF'FFFE}, mask{~0U, ~0U, ~0U, 0};
  const auto xmm = [&](unsigned n) { return platform_.state.legacy.data() + VectorState::xmm_at + 16UL * n; };
  std::memcpy(xmm(1), indices.data(), sizeof indices);
  std::memcpy(xmm(3), mask.data(), sizeof mask);
  for (std::uint32_t n = 0; n < 4; ++n) set<std::uint32_t>(0x1C + 4UL * n, 0x1111 * (n + 1));
  put(X86_32("vpgatherdd %xmm3, (%ebx,%xmm1,4), %xmm0"));
  run(1);
  std::array<std::uint32_t, 4> loaded{};
  std::memcpy(loaded.data(), xmm(0), sizeof loaded);
  EXPECT_EQ(loaded, (std::array<std::uint32_t, 4>{0x1111, 0x2222, 0x3333, 0}));
}

// The engine leaves far branches and changes of segment registers to its owner.
TEST_F(NarrowCode, LeavesWhatChangesSegments) {
  for (const auto& code : std::initializer_list<std::initializer_list<unsigned>>{
           {0xEA, 0, 0, 8, 0, 0, 0}, {0x8E, 0xD8}, {0x1E}, {0x1F}, {0xCB}, {0xCF}, {0xC5, 0x06, 0, 0}}) {
    put(code);
    EXPECT_EQ(run(1, Stop::unsupported).rip, 0U);
  }
}

// LDS EAX, [EAX] in 32-bit code; with the bytes behind it VADDPS in 64-bit code. SDM 2A 2.3.5.
TEST(NeedsOfCode, DependOnItsMode) {
  const std::array code{std::byte{0xC5}, std::byte{0x00}, std::byte{0x58}, std::byte{0xC0}};
  EXPECT_EQ(feature_needed(code, CodeMode::bits64), CpuFeature::avx);
  EXPECT_EQ(unit_needed(code, CodeMode::bits64), VectorUnit::avx);
  for (const CodeMode mode : {CodeMode::bits32, CodeMode::bits16}) {
    EXPECT_FALSE(feature_needed(code, mode));
    EXPECT_EQ(unit_needed(code, mode), VectorUnit::none);
  }
  // ADDPS is the same in each.
  const std::array sse{std::byte{0x0F}, std::byte{0x58}, std::byte{0xC1}};
  for (const CodeMode mode : {CodeMode::bits64, CodeMode::bits32, CodeMode::bits16})
    EXPECT_EQ(unit_needed(sse, mode), VectorUnit::sse);
}

}  // namespace
}  // namespace vpmu::exec::test
