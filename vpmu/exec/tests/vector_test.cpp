// x87 and vector instructions: how the engine runs them. oracle/vector_oracle_test.cpp tests their results.
#include <gtest/gtest.h>

#include <limits>
#include <thread>
#include <vector>

#include "exec/engine.hpp"
#include "exec/host/host_form.hpp"
#include "exec/state/vector_state.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec::test {
namespace {

using Code = std::vector<unsigned>;

class Vectors final : public NoPlatform {
 public:
  VectorState* vectors() override {
    ++asked;
    return missing ? nullptr : &state;
  }
  VectorState state;
  bool missing{};
  unsigned asked{};
};

class NoCode final : public HostCode {
 public:
  const std::byte* add(std::span<const std::byte>) override {
    ++refused;
    return nullptr;
  }
  bool change(const std::byte*, std::uint32_t) override { return false; }
  void clear() override {}
  unsigned refused{};
};

/// Data on the first page, code on the second; there is no memory after the third.
class EngineRunsVectors : public testing::Test {
 protected:
  EngineRunsVectors() {
    state_.paging.cr4 = x86::cr4::OSFXSR::mask | x86::cr4::OSXSAVE::mask;
    platform_.state.xcr0 = 7;
    for (std::size_t i = 0; i < 64; ++i) xmm(0)[i] = static_cast<std::byte>(i);
  }
  std::byte* xmm(std::size_t n) { return platform_.state.legacy.data() + VectorState::xmm_at + 16 * n; }
  void begin(Engine& engine, const Code& code) {
    for (std::size_t i = 0; i < code.size(); ++i) ram_.bytes()[page_size + i] = static_cast<std::byte>(code[i]);
    state_.rip = code_at_;
    state_.rflags = 2;
    engine.load(state_);
  }
  /// Runs the code's first instruction; must end with `stop`, and change nothing unless that is Stop::budget.
  void expect_stop(const Code& code, Stop stop) {
    const VectorState before = platform_.state;
    begin(engine_, code);
    EXPECT_EQ(engine_.run(1), stop);
    EXPECT_EQ(engine_.passed().instructions, stop == Stop::budget ? 1U : 0U);
    if (stop == Stop::budget) return;
    EXPECT_EQ(engine_.state().rip, state_.rip);
    EXPECT_EQ(before.legacy, platform_.state.legacy);
    EXPECT_EQ(before.upper, platform_.state.upper);
  }

  FlatRam ram_{3 * page_size};
  std::uint64_t data_at_{ram_.address()};
  std::uint64_t code_at_{ram_.address() + page_size};
  CpuState state_;
  Vectors platform_;
  TestCode code_;
  Engine engine_{ram_, platform_, &code_};
};

const Code paddd = X86("paddd %xmm1, %xmm0");
const Code addps = X86("addps %xmm1, %xmm0");
const Code movaps = X86("movaps %xmm1, %xmm0");
const Code vmovaps = X86("vmovaps %ymm1, %ymm0");
const Code fld1 = X86("fld1");
const Code fninit = X86("fninit");
const Code emms = X86("emms");
const Code blsr = X86("blsr %ecx, %eax");
const Code ldmxcsr = X86("ldmxcsr (%rbx)");
const Code fxrstor = X86("fxrstor (%rbx)");

TEST_F(EngineRunsVectors, NotWithoutExecutableMemory) {
  Engine without{ram_, platform_};
  NoCode none;
  Engine refused{ram_, platform_, &none};
  for (Engine* const engine : {&without, &refused}) {
    begin(*engine, X86("nop; paddd %xmm1, %xmm0; nop"));
    EXPECT_EQ(engine->run(10), Stop::unsupported);
    EXPECT_EQ(engine->passed().instructions, 1U) << "what needs none goes on";
    EXPECT_EQ(engine->state().rip, code_at_ + 1);
  }
  EXPECT_GT(none.refused, 0U);
}

TEST_F(EngineRunsVectors, NotWhereTheOwnerHasNoState) {
  platform_.missing = true;
  expect_stop(paddd, Stop::unsupported);
  expect_stop(fld1, Stop::unsupported);
  EXPECT_EQ(platform_.asked, 2U);
  platform_.state.set_mxcsr(~0U);
  platform_.missing = false;
  expect_stop(paddd, Stop::unsupported);  // that is no state which a CPU can have
}

TEST_F(EngineRunsVectors, AsksForTheStateOnce) {
  begin(engine_, X86("paddd %xmm1, %xmm0; paddd %xmm1, %xmm0; nop"));
  EXPECT_EQ(engine_.run(3), Stop::budget);
  EXPECT_EQ(platform_.asked, 1U);
  engine_.resume(engine_.state());
  EXPECT_EQ(engine_.run(0), Stop::budget);
  EXPECT_EQ(platform_.asked, 1U) << "nothing that needs it";
}

// SDM 3A 2.5: TS and EM; SDM 2A tables 2-15 to 2-28: the conditions of #UD.
TEST_F(EngineRunsVectors, OnlyWhatTheGuestHasEnabled) {
  struct Row {
    Code code;
    std::uint64_t cr0, cr4, xcr0;
    Stop stop;
  };
  const Stop avx = host_has(CpuFeature::avx) ? Stop::budget : Stop::unsupported;
  const Stop bmi = host_has(CpuFeature::bmi1) ? Stop::budget : Stop::unsupported;
  const std::vector<Row> rows{{paddd, 0, x86::cr4::OSFXSR::mask, 3, Stop::budget},
                              {paddd, 0, 0, 3, Stop::unsupported},
                              {paddd, x86::cr0::TS::mask, x86::cr4::OSFXSR::mask, 3, Stop::unsupported},
                              {paddd, x86::cr0::EM::mask, x86::cr4::OSFXSR::mask, 3, Stop::unsupported},
                              {fld1, 0, 0, 1, Stop::budget},
                              {fld1, x86::cr0::TS::mask, 0, 1, Stop::unsupported},
                              {fld1, x86::cr0::EM::mask, 0, 1, Stop::unsupported},
                              {emms, 0, 0, 1, Stop::budget},
                              {emms, x86::cr0::TS::mask, 0, 1, Stop::unsupported},
                              {emms, x86::cr0::EM::mask, 0, 1, Stop::unsupported},
                              {vmovaps, 0, x86::cr4::OSXSAVE::mask, 7, avx},
                              {vmovaps, x86::cr0::TS::mask, x86::cr4::OSXSAVE::mask, 7, Stop::unsupported},
                              {vmovaps, 0, x86::cr4::OSFXSR::mask, 7, Stop::unsupported},
                              {vmovaps, 0, x86::cr4::OSXSAVE::mask, 3, Stop::unsupported},
                              {blsr, x86::cr0::EM::mask | x86::cr0::TS::mask, 0, 1, bmi}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    state_.paging.cr0 = rows[i].cr0;
    state_.paging.cr4 = rows[i].cr4;
    platform_.state = VectorState{};
    platform_.state.xcr0 = rows[i].xcr0;
    expect_stop(rows[i].code, rows[i].stop);
  }
}

// SDM 1 11.5.2, 11.5.3: the first of two numbers raises one before the computation, the other one after it.
TEST_F(EngineRunsVectors, StopsAtAnSseExceptionThatIsUnmasked) {
  struct Row {
    std::array<float, 2> a, b;
    unsigned flags;
  };
  constexpr float none = 1, huge = 3e38F, infinite = std::numeric_limits<float>::infinity();
  constexpr unsigned ie = 1, de = 2, oe = 8, pe = 0x20;
  constexpr float denormal = std::numeric_limits<float>::denorm_min();
  const std::vector<Row> rows{{{none, none}, {none, none}, 0},
                              {{none, none}, {1e-20F, none}, pe},
                              {{denormal, none}, {none, none}, de | pe},
                              {{none, huge}, {none, huge}, oe | pe},
                              {{-infinite, huge}, {infinite, huge}, ie | oe | pe}};
  for (const Row& row : rows)
    for (unsigned unmasked = 0; unmasked < 0x40; ++unmasked) {
      SCOPED_TRACE(testing::Message() << row.flags << " with " << unmasked << " unmasked");
      std::memset(xmm(0), 0, 16);
      std::memset(xmm(1), 0, 16);
      std::memcpy(xmm(0), row.a.data(), sizeof row.a);
      std::memcpy(xmm(1), row.b.data(), sizeof row.b);
      const std::uint32_t before = 0x1F80 & ~(unmasked << 7);
      platform_.state.set_mxcsr(before);
      const bool raises = (row.flags & unmasked) != 0;
      expect_stop(addps, raises ? Stop::float_error : Stop::budget);
      const bool early = (row.flags & unmasked & (ie | de)) != 0;
      EXPECT_EQ(engine_.raised(), !raises ? 0 : early ? row.flags & (ie | de) : row.flags);
      EXPECT_EQ(platform_.state.mxcsr(), before | (raises ? 0 : row.flags));
      expect_stop(movaps, Stop::budget);
      expect_stop(paddd, Stop::budget);
    }
}

// SDM 1 4.9.1.5: a tiny result that is exact, and FZ, which counts only while underflow is masked.
TEST_F(EngineRunsVectors, UnderflowThatIsUnmaskedIsAnyTinyResult) {
  const Code mulss = X86("mulss %xmm1, %xmm0");
  constexpr std::uint32_t unmasked = 0x800, flushes = 0x8000, underflow = 0x10, inexact = 0x20;
  const auto put = [&](float a, float b) {
    std::memcpy(xmm(0), &a, sizeof a);
    std::memcpy(xmm(1), &b, sizeof b);
  };
  constexpr float smallest = std::numeric_limits<float>::min();
  put(smallest, 0.5F);
  expect_stop(mulss, Stop::budget);
  EXPECT_EQ(platform_.state.mxcsr(), 0x1F80U);
  for (const std::uint32_t fz : {0U, flushes}) {
    put(smallest, 0.5F);
    platform_.state.set_mxcsr((0x1F80 & ~unmasked) | fz);
    expect_stop(mulss, Stop::float_error);
    EXPECT_EQ(engine_.raised(), underflow);
    put(1, 3);
    expect_stop(mulss, Stop::budget);
    EXPECT_EQ(platform_.state.mxcsr(), (0x1F80 & ~unmasked) | fz);
  }
  constexpr std::uint32_t other = 0x80;
  put(smallest, 0.5F);
  platform_.state.set_mxcsr((0x1F80 & ~other) | flushes);
  expect_stop(mulss, Stop::budget);
  EXPECT_EQ(platform_.state.mxcsr(), (0x1F80 & ~other) | flushes | underflow | inexact);
}

// SDM 2C VCVTPS2PH: FZ makes nothing 0 here.
TEST_F(EngineRunsVectors, UnderflowOfHalves) {
  if (!host_has(CpuFeature::f16c)) GTEST_SKIP() << "this CPU has no VCVTPS2PH";
  const Code to_register = X86("vcvtps2ph $4, %xmm0, %xmm1"), to_memory = X86("vcvtps2ph $4, %xmm0, (%rbx)");
  state_.gpr[rbx] = data_at_;
  for (const Code& code : {to_register, to_memory})
    for (const std::uint32_t fz : {0U, 0x8000U})
      for (const float value : {0x1p-20F, 0x1p-30F, 0x1p-14F, 0.F}) {
        std::memset(xmm(0), 0, 16);
        std::memcpy(xmm(0), &value, sizeof value);
        const bool is_tiny = value != 0 && value < 0x1p-14F, is_exact = value != 0x1p-30F;
        platform_.state.set_mxcsr(0x1F80 | fz);
        expect_stop(code, Stop::budget);
        EXPECT_EQ(platform_.state.mxcsr() & 0x3F, is_exact ? 0U : 0x30U);
        platform_.state.set_mxcsr(0x1780 | fz);
        expect_stop(code, is_tiny ? Stop::float_error : Stop::budget);
        EXPECT_EQ(engine_.raised() & 0x10, is_tiny ? 0x10 : 0);
      }
}

// SDM 1 8.6, 8.7: x87 notes the exception, and the next instruction that waits gets #MF.
TEST_F(EngineRunsVectors, StopsBeforeWhatWaitsForAnX87Exception) {
  const Code fsqrt = X86("fsqrt"), fchs = X86("fchs"), fwait = X86("fwait"), fnstsw = X86("fnstsw %ax"),
             fnclex = X86("fnclex"), fnop = X86("fnop");
  constexpr std::uint16_t unmasks_invalid = 0x37E, summary_and_busy = 0x8080, invalid = 1;
  platform_.state.set_fcw(unmasks_invalid);
  for (const Code& code : {fld1, fchs, emms, fld1, fchs, fwait}) expect_stop(code, Stop::budget);
  expect_stop(fsqrt, Stop::budget);
  EXPECT_EQ(platform_.state.fsw() & 0x80FF, summary_and_busy | invalid);
  for (const Code& code : {fwait, fld1, fnop, emms, Code{X86("paddd %mm1, %mm0")}}) {
    expect_stop(code, Stop::float_error);
    EXPECT_EQ(engine_.raised(), 0U);
  }
  expect_stop(addps, Stop::budget);
  expect_stop(fnstsw, Stop::budget);
  EXPECT_EQ(engine_.state().gpr[rax] & 0x80FF, std::uint64_t{summary_and_busy | invalid});
  expect_stop(fnclex, Stop::budget);
  expect_stop(fwait, Stop::budget);
  expect_stop(fninit, Stop::budget);
  EXPECT_EQ(platform_.state.fcw(), 0x37F);
  expect_stop(fld1, Stop::budget);
}

TEST_F(EngineRunsVectors, LoadsNoControlRegisterThatWouldFault) {
  state_.gpr[rbx] = data_at_;
  const auto put = [&](std::size_t at, std::uint32_t value) {
    std::memcpy(ram_.bytes().data() + at, &value, sizeof value);
  };
  put(0, 0x8000'1F80);
  expect_stop(ldmxcsr, Stop::fault);
  put(0, 0x1FA0);
  expect_stop(ldmxcsr, Stop::budget);
  EXPECT_EQ(platform_.state.mxcsr(), 0x1FA0U);
  put(0, 0x37F);
  put(VectorState::mxcsr_at, 0x8000'1F80);
  expect_stop(fxrstor, Stop::fault);
  put(VectorState::mxcsr_at, 0x1F81);
  expect_stop(fxrstor, Stop::budget);
  EXPECT_EQ(platform_.state.mxcsr(), 0x1F81U);
  state_.gpr[rbx] = data_at_ + 8;
  expect_stop(fxrstor, Stop::fault);  // not aligned
}

TEST_F(EngineRunsVectors, OperandsThatAreRelativeToRipAndSegments) {
  for (std::size_t i = 0; i < 64; ++i) ram_.bytes()[i] = static_cast<std::byte>(0x80 + i);
  state_.fs_base = data_at_ + 16;
  begin(engine_, X86("movups -4096 - 7(%rip), %xmm1; movups %xmm1, %fs:(%rax); nop"));
  EXPECT_EQ(engine_.run(3), Stop::budget);
  EXPECT_EQ(xmm(1)[0], std::byte{0x80});
  EXPECT_EQ(xmm(1)[15], std::byte{0x8F});
  EXPECT_EQ(ram_.bytes()[16], std::byte{0x80});
  EXPECT_EQ(ram_.bytes()[31], std::byte{0x8F});
  EXPECT_EQ(engine_.passed().loads, 1U);
  EXPECT_EQ(engine_.passed().stores, 1U);
}

TEST_F(EngineRunsVectors, AStoreThatCannotBeAllOfItDoesNothing) {
  state_.gpr[rbx] = data_at_ + 3 * page_size - 8;
  const std::byte before = ram_.bytes().back();
  expect_stop(X86("movups %xmm1, (%rbx)"), Stop::fault);
  EXPECT_EQ(ram_.bytes().back(), before);
}

// A store to the running code: the engine stops, and continues with the new code.
TEST_F(EngineRunsVectors, NoticesAStoreToCode) {
  state_.gpr[rbx] = code_at_ + 3;
  std::memset(xmm(1), 0x90, 16);
  begin(engine_, X86("movups %xmm1, (%rbx); ud2; ud2; ud2; ud2; ud2; ud2; ud2; ud2; nop"));
  EXPECT_EQ(engine_.run(10), Stop::budget);
  EXPECT_EQ(engine_.passed().instructions, 10U);
}

// SDM 1 8.1.8: the x87 instruction pointer would tell the guest addresses of the host's code.
TEST_F(EngineRunsVectors, TellsNoPointersOfTheHost) {
  state_.gpr[rbx] = data_at_;
  std::memset(ram_.bytes().data(), 0xFF, 1024);
  begin(engine_, X86("fld1; fnstenv (%rbx); fxsave 64(%rbx); nop"));
  EXPECT_EQ(engine_.run(4), Stop::budget);
  EXPECT_EQ(ram_.bytes()[0], std::byte{0x7F}) << "FCW";
  for (std::size_t i = 12; i < 24; ++i) EXPECT_EQ(ram_.bytes()[i], std::byte{0}) << "FNSTENV " << i;
  EXPECT_EQ(ram_.bytes()[64], std::byte{0x7F});
  for (std::size_t i = 70; i < 64 + 24; ++i) EXPECT_EQ(ram_.bytes()[i], std::byte{0}) << "FXSAVE " << i - 64;
}

// The guest's rounding and precision must not stay in the host's control registers.
TEST_F(EngineRunsVectors, LeavesTheHostsControlWordsAlone) {
  platform_.state.set_mxcsr(0xFF80);  // towards zero, denormals are zero
  platform_.state.set_fcw(0xC7F);
  Code code = addps;
  code.insert(code.end(), fld1.begin(), fld1.end());
  code.insert(code.end(), emms.begin(), emms.end());
  code.push_back(0x90);
  begin(engine_, code);
  EXPECT_EQ(engine_.run(4), Stop::budget);
  // NOLINTBEGIN(misc-const-correctness): the asm writes them.
  std::uint32_t mxcsr{};
  std::uint16_t fcw{};
  // NOLINTEND(misc-const-correctness)
  __asm__ volatile("stmxcsr %0; fnstcw %1" : "=m"(mxcsr), "=m"(fcw));
  EXPECT_EQ(mxcsr & ~0x3FU, 0x1F80U);
  EXPECT_EQ(fcw, 0x37F);
  EXPECT_EQ(platform_.state.fcw(), 0xC7F);
}

TEST_F(EngineRunsVectors, MakesEachRoutineOnce) {
  Code code;
  for (unsigned i = 0; i < 20; ++i) code.insert(code.end(), paddd.begin(), paddd.end());
  code.push_back(0x90);
  begin(engine_, code);
  EXPECT_EQ(engine_.run(21), Stop::budget);
  EXPECT_EQ(code_.added, 1U);
  // The same with memory elsewhere.
  state_.gpr[rbx] = data_at_;
  begin(engine_, X86("movups (%rbx), %xmm1; movups 8(%rbx,%rax), %xmm1; ud2"));
  EXPECT_EQ(engine_.run(2), Stop::budget);
  EXPECT_EQ(code_.added, 2U);
}

// More different instructions than there is room for: older routines are discarded.
TEST_F(EngineRunsVectors, MakesRoomForMore) {
  TestCode little{512};
  Engine engine{ram_, platform_, &little};
  for (unsigned round = 0; round < 3; ++round) {
    for (unsigned n = 0; n < 64; ++n) {
      begin(engine, {0x66, 0x0F, 0xFE, 0xC0 | n, 0x90});  // paddd between XMM0 to XMM7
      ASSERT_EQ(engine.run(1), Stop::budget);
    }
  }
  EXPECT_GT(little.cleared, 2U);
}

TEST_F(EngineRunsVectors, ReadsXcr0) {
  begin(engine_, X86("xgetbv; nop"));
  EXPECT_EQ(engine_.run(2), Stop::budget);
  EXPECT_EQ(engine_.state().gpr[rax], 7U);
  state_.gpr[rcx] = 1;
  expect_stop(X86("xgetbv"), Stop::budget);
  EXPECT_EQ(engine_.state().gpr[rax], 2U) << "in use: SSE alone";
  state_.gpr[rcx] = 2;
  expect_stop(X86("xgetbv"), Stop::unsupported);
  state_.gpr[rcx] = 0;
  state_.paging.cr4 = x86::cr4::OSFXSR::mask;
  expect_stop(X86("xgetbv"), Stop::unsupported);
}

TEST_F(EngineRunsVectors, ZeroesUpperHalvesAndAll) {
  if (!host_has(CpuFeature::avx)) GTEST_SKIP() << "no AVX here";
  platform_.state.upper[15].fill(std::byte{1});
  expect_stop(X86("vzeroupper"), Stop::budget);
  EXPECT_EQ(platform_.state.upper[15], (std::array<std::byte, 16>{}));
  EXPECT_EQ(xmm(1)[1], std::byte{17});
  expect_stop(X86("vzeroall"), Stop::budget);
  EXPECT_EQ(xmm(1)[1], std::byte{0});
}

// CVTPD2PI and similar instructions from memory have no XMM operand, but obey MXCSR all the same.
TEST_F(EngineRunsVectors, ConversionsToMmxRegistersObeyMxcsr) {
  state_.gpr[rbx] = data_at_;
  const std::vector<Code> conversions{X86("cvtpd2pi (%rbx), %mm0"), X86("cvttpd2pi (%rbx), %mm0"),
                                      X86("cvtps2pi (%rbx), %mm0"), X86("cvttps2pi (%rbx), %mm0")};
  const double too_large = 1e300;
  std::memcpy(ram_.bytes().data(), &too_large, sizeof too_large);
  for (const Code& code : conversions) {
    platform_.state.set_mxcsr(0);
    expect_stop(code, Stop::float_error);
    platform_.state.set_mxcsr(0x1F80);
    expect_stop(code, Stop::budget);
    state_.paging.cr4 = 0;
    expect_stop(code, Stop::unsupported);
    state_.paging.cr4 = x86::cr4::OSFXSR::mask;
  }
}

// Each vCPU has an engine of its own, on its own thread.
TEST(TwoEngines, RunVectorsAtTheSameTime) {
  const auto run = [](std::uint64_t start, std::uint64_t& sum) {
    FlatRam ram{2 * page_size};
    Vectors platform;
    TestCode code;
    Engine engine{ram, platform, &code};
    const Code program =
        X86("movq %rax, %xmm0; movq %rbx, %xmm1; 1: paddq %xmm1, %xmm0; dec %rcx; jne 1b; movq %xmm0, %rax; ud2");
    for (std::size_t i = 0; i < program.size(); ++i) ram.bytes()[i] = static_cast<std::byte>(program[i]);
    CpuState s;
    s.rip = ram.address();
    s.rflags = 2;
    s.paging.cr4 = x86::cr4::OSFXSR::mask;
    s.gpr[rax] = start;
    s.gpr[rbx] = 3;
    s.gpr[rcx] = 100'000;
    engine.load(s);
    EXPECT_EQ(engine.run(~0ULL), Stop::unsupported);
    EXPECT_EQ(engine.passed().instructions, 2U + 3 * 100'000 + 1);
    sum = engine.state().gpr[rax];
  };
  std::uint64_t one{};
  std::uint64_t two{};
  std::thread other{run, 7, std::ref(one)};
  run(1ULL << 40, two);
  other.join();
  EXPECT_EQ(one, 300'007U);
  EXPECT_EQ(two, (1ULL << 40) + 300'000);
}

}  // namespace
}  // namespace vpmu::exec::test
