// XSAVE, XRSTOR and their variants, and instructions that a guest may lack. oracle/vector_oracle_test.cpp tests those
// that programs can run.
#include <gtest/gtest.h>

#include <vector>

#include "exec/engine.hpp"
#include "exec/state/vector_state.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec::test {
namespace {

using Code = std::vector<unsigned>;

constexpr std::uint64_t compacted = 1ULL << 63;
constexpr std::size_t header_at = 512, upper_at = 576, area_bytes = 832;

class Guest final : public NoPlatform {
 public:
  Guest() { state.xcr0 = 7; }
  VectorState* vectors() override { return &state; }
  bool has(CpuFeature feature) override { return feature != lacks; }
  VectorState state;
  std::optional<CpuFeature> lacks;
};

/// Data on the first two pages, code on the third; there is no memory after the fourth. The operand is at RBX.
class Xsave : public testing::Test {
 protected:
  Xsave() {
    state_.paging.cr4 = x86::cr4::OSFXSR::mask | x86::cr4::OSXSAVE::mask;
    state_.gpr[rbx] = ram_.address();
    state_.gpr[rax] = 7;
    for (std::size_t i = 0; i < 256; ++i) {
      guest_.state.legacy[VectorState::xmm_at + i] = static_cast<std::byte>(i + 1);
      guest_.state.upper[i / 16][i % 16] = static_cast<std::byte>(i + 2);
    }
  }
  Stop run(const Code& code) {
    for (std::size_t i = 0; i < code.size(); ++i) ram_.bytes()[2 * page_size + i] = static_cast<std::byte>(code[i]);
    state_.rip = ram_.address() + 2 * page_size;
    state_.rflags = 2;
    engine_.emplace(ram_, guest_, &code_);
    engine_->load(state_);
    const Stop stop = engine_->run(1);
    EXPECT_EQ(engine_->passed().instructions, stop == Stop::budget ? 1U : 0U);
    return stop;
  }
  [[nodiscard]] std::byte* area() { return ram_.bytes().data() + (state_.gpr[rbx] - ram_.address()); }
  template <class T>
  void put(std::size_t at, T value) {
    std::memcpy(area() + at, &value, sizeof value);
  }
  [[nodiscard]] std::uint64_t word(std::size_t at) {
    std::uint64_t value{};
    std::memcpy(&value, area() + at, sizeof value);
    return value;
  }

  FlatRam ram_{4 * page_size};
  CpuState state_;
  Guest guest_;
  TestCode code_;
  std::optional<Engine> engine_;
};

const Code xsave = X86("xsave (%rbx)"), xsaveopt = X86("xsaveopt (%rbx)"), xsavec = X86("xsavec (%rbx)"),
           xsaves = X86("xsaves (%rbx)");
const Code xrstor = X86("xrstor (%rbx)"), xrstors = X86("xrstors (%rbx)");

// SDM 1 13.11, 13.12. Privileged, so that the host cannot serve as an oracle.
TEST_F(Xsave, XsavesAndXrstorsUseTheCompactedFormat) {
  std::fill_n(area(), area_bytes, std::byte{0xEE});
  const VectorState before = guest_.state;
  ASSERT_EQ(run(xsaves), Stop::budget);
  EXPECT_EQ(word(header_at), 6U) << "x87 is as FNINIT leaves it";
  EXPECT_EQ(word(header_at + 8), compacted | 7);
  EXPECT_EQ(word(0), 0xEEEE'EEEE'EEEE'EEEEU) << "and so it is not saved";
  EXPECT_EQ(std::memcmp(area() + upper_at, before.upper.data(), sizeof before.upper), 0);
  for (std::size_t at = header_at + 16; at < upper_at; at += 8) put(at, std::uint64_t{0});
  guest_.state = VectorState{};
  guest_.state.xcr0 = 7;
  ASSERT_EQ(run(xrstors), Stop::budget);
  EXPECT_EQ(guest_.state.legacy, before.legacy);
  EXPECT_EQ(guest_.state.upper, before.upper);
  put(header_at + 8, std::uint64_t{0});
  EXPECT_EQ(run(xrstors), Stop::fault) << "it knows no standard format";
  state_.cpl = 3;
  EXPECT_EQ(run(xsaves), Stop::unsupported);
  EXPECT_EQ(run(xrstors), Stop::unsupported);
  EXPECT_EQ(run(xsave), Stop::budget);
}

// SDM 1 13.7: XSAVE stores initial components, too, and keeps XSTATE_BV's bits of components that were not requested.
TEST_F(Xsave, XsaveKeepsWhatItWasNotAskedFor) {
  std::fill_n(area(), area_bytes, std::byte{0});
  put(header_at, ~0ULL);
  state_.gpr[rax] = 5;
  guest_.state.upper = {};
  ASSERT_EQ(run(xsave), Stop::budget);
  EXPECT_EQ(word(header_at), ~5ULL);
  EXPECT_EQ(word(0), 0x37FU);
  EXPECT_EQ(word(VectorState::xmm_at), 0U);
  EXPECT_EQ(word(VectorState::mxcsr_at) & 0xFFFF'FFFF, 0x1F80U) << "with AVX, too";
}

// SDM 1 13.7, 13.10: MXCSR belongs to the SSE component, and is restored even if all XMM registers are 0.
TEST_F(Xsave, AnMxcsrOfItsOwnIsSseInUse) {
  guest_.state.initialize(x86::xcr0::SSE::mask);
  for (const Code& code : {xsave, xsaveopt, xsavec, xsaves}) {
    guest_.state.set_mxcsr(0x3F80);
    std::fill_n(area(), area_bytes, std::byte{0});
    ASSERT_EQ(run(code), Stop::budget);
    EXPECT_EQ(word(header_at) & 2, 2U);
    guest_.state.set_mxcsr(VectorState::initial_mxcsr);
    ASSERT_EQ(run(code == xsaves ? xrstors : xrstor), Stop::budget);
    EXPECT_EQ(guest_.state.mxcsr(), 0x3F80U);
  }
}

// SDM 1 13.8: an area that XRSTOR refuses raises #GP and changes nothing.
TEST_F(Xsave, HeadersThatXrstorRefuses) {
  struct Row {
    std::size_t at;
    std::uint64_t value, xcomp_bv;
  };
  const std::array rows{Row{header_at, 8, 0},
                        Row{header_at + 8, 1, 0},
                        Row{header_at + 16, 1, 0},
                        Row{header_at, 4, compacted | 3},
                        Row{header_at + 8, compacted | 8, 0},
                        Row{header_at + 56, 1, compacted | 7},
                        Row{VectorState::mxcsr_at, 0xFFFF'FFFF, 0}};
  const VectorState before = guest_.state;
  for (const Row& row : rows) {
    std::fill_n(area(), area_bytes, std::byte{0});
    put(VectorState::mxcsr_at, std::uint32_t{0x1F80});
    put(header_at + 8, row.xcomp_bv);
    if (row.at == VectorState::mxcsr_at) put(header_at, std::uint64_t{2});
    ASSERT_EQ(run(xrstor), Stop::budget) << "before " << row.at;
    guest_.state = before;
    put(row.at, row.value);
    EXPECT_EQ(run(xrstor), Stop::fault) << row.at;
    EXPECT_EQ(guest_.state.legacy, before.legacy);
    EXPECT_EQ(guest_.state.upper, before.upper);
  }
  put(VectorState::mxcsr_at, std::uint32_t{0x1F80});
  put(header_at, std::uint64_t{0});
  put(header_at + 8, compacted | 7);
  EXPECT_EQ(run(xrstor), Stop::budget);
  guest_.lacks = CpuFeature::xsavec;
  EXPECT_EQ(run(xrstor), Stop::fault) << "without XSAVEC there is one format";
}

TEST_F(Xsave, OnlyWhereItIsEnabledAndAligned) {
  for (const Code& code : {xsave, xsaveopt, xsavec, xsaves, xrstor, xrstors}) {
    std::fill_n(area(), area_bytes, std::byte{0});
    put(VectorState::mxcsr_at, std::uint32_t{0x1F80});
    if (code == xrstors) put(header_at + 8, compacted);
    EXPECT_EQ(run(code), Stop::budget);
    state_.paging.cr4 = x86::cr4::OSFXSR::mask;
    EXPECT_EQ(run(code), Stop::unsupported);
    state_.paging.cr4 = x86::cr4::OSFXSR::mask | x86::cr4::OSXSAVE::mask;
    state_.paging.cr0 = x86::cr0::TS::mask;
    EXPECT_EQ(run(code), Stop::unsupported);
    state_.paging.cr0 = 0;
    guest_.state.xcr0 = 0xE7;
    EXPECT_EQ(run(code), Stop::unsupported) << "components that are not kept";
    guest_.state.xcr0 = 7;
    state_.gpr[rbx] += 32;
    EXPECT_EQ(run(code), Stop::fault);
    EXPECT_FALSE(engine_->missing());
    state_.gpr[rbx] -= 32;
  }
}

// SDM 1 13.5: only the area of the requested components must be memory.
TEST_F(Xsave, AnAreaThatEndsWhereMemoryDoes) {
  const std::uint64_t end = ram_.address() + 4 * page_size;
  for (const Code& code : {xsave, xrstor}) {
    state_.gpr[rbx] = end - area_bytes;
    std::fill_n(area(), area_bytes, std::byte{0});
    put(VectorState::mxcsr_at, std::uint32_t{0x1F80});
    EXPECT_EQ(run(code), Stop::budget);
    state_.gpr[rbx] = end - upper_at;
    std::fill_n(area(), upper_at, std::byte{0});
    put(VectorState::mxcsr_at, std::uint32_t{0x1F80});
    EXPECT_EQ(run(code), Stop::fault);
    ASSERT_TRUE(engine_->missing());
    EXPECT_EQ(engine_->missing()->at, end);
    EXPECT_EQ(engine_->missing()->write, code == xsave);
    state_.gpr[rbx] -= 8;
    engine_->resume(state_);
    EXPECT_EQ(engine_->run(1), Stop::fault) << "it is not aligned";
    EXPECT_FALSE(engine_->missing());
    state_.gpr[rbx] += 8;
    state_.gpr[rax] = 3;
    EXPECT_EQ(run(code), Stop::budget);
    state_.gpr[rax] = 7;
  }
}

// An area that crosses two pages.
TEST_F(Xsave, AcrossAPageBoundary) {
  const VectorState before = guest_.state;
  for (std::uint64_t before_end = 64; before_end < area_bytes; before_end += 64) {
    state_.gpr[rbx] = ram_.address() + page_size - before_end;
    guest_.state = before;
    ASSERT_EQ(run(xsavec), Stop::budget);
    EXPECT_EQ(std::memcmp(area() + VectorState::xmm_at, before.legacy.data() + VectorState::xmm_at, 256), 0);
    EXPECT_EQ(std::memcmp(area() + upper_at, before.upper.data(), 256), 0);
    for (std::size_t at = header_at + 16; at < upper_at; at += 8) put(at, std::uint64_t{0});
    guest_.state.initialize(x86::xcr0::SSE::mask);
    guest_.state.initialize(x86::xcr0::AVX::mask);
    ASSERT_EQ(run(xrstor), Stop::budget);
    EXPECT_EQ(guest_.state.legacy, before.legacy) << before_end;
    EXPECT_EQ(guest_.state.upper, before.upper) << before_end;
  }
}

// The engine does not run an instruction that the guest's CPU lacks.
TEST_F(Xsave, AnInstructionThatTheGuestLacksIsNone) {
  struct Row {
    Code code;
    CpuFeature feature;
    bool host{true};
  };
  const std::array rows{
      Row{xsave, CpuFeature::xsave},
      Row{xrstor, CpuFeature::xsave},
      Row{X86("xgetbv"), CpuFeature::xsave},
      Row{xsaveopt, CpuFeature::xsaveopt},
      Row{xsavec, CpuFeature::xsavec},
      Row{xsaves, CpuFeature::xsaves},
      Row{X86("stac"), CpuFeature::smap},
      Row{X86("clflushopt (%rbx)"), CpuFeature::clflushopt},
      Row{X86("aesimc %xmm1, %xmm0"), CpuFeature::aes, host_has(CpuFeature::aes)},
      Row{X86("vaesimc %xmm1, %xmm0"), CpuFeature::vex_aes, host_has(CpuFeature::vex_aes)},
      Row{X86("vxorps %xmm1, %xmm0, %xmm0"), CpuFeature::avx, host_has(CpuFeature::avx)},
      Row{X86("vmaskmovps (%rbx), %ymm1, %ymm0"), CpuFeature::avx, host_has(CpuFeature::avx)},
      Row{X86("vpmaskmovd (%rbx), %ymm1, %ymm0"), CpuFeature::avx2, host_has(CpuFeature::avx2)},
      Row{X86("vpgatherdd %ymm2, (%rbx,%ymm1), %ymm0"), CpuFeature::avx2, host_has(CpuFeature::avx2)},
  };
  state_.gpr[rcx] = 0;
  for (const Row& row : rows) {
    guest_.state.initialize(x86::xcr0::SSE::mask);  // no element is gathered
    guest_.state.initialize(x86::xcr0::AVX::mask);
    std::fill_n(area(), area_bytes, std::byte{0});
    put(VectorState::mxcsr_at, std::uint32_t{0x1F80});
    guest_.lacks.reset();
    EXPECT_EQ(run(row.code), row.host ? Stop::budget : Stop::unsupported) << &row - rows.data();
    guest_.lacks = row.feature;
    EXPECT_EQ(run(row.code), Stop::unsupported) << &row - rows.data();
  }
}

}  // namespace
}  // namespace vpmu::exec::test
