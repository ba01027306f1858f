#include <gtest/gtest.h>

#include <array>

#include "generation_name.hpp"
#include "recording_env.hpp"
#include "select.hpp"
#include "vpmu/pmu.hpp"

// Last branch records as each generation has them. SDM 3B 17.4.7, 17.4.8, 17.6 to 17.10; rules Z2 to Z5, Z11, Z12.

namespace vpmu::test {
namespace {

namespace dbg = reg::debugctl;

constexpr GuestLinear ds_area{0xFFFF'8000'0001'0000};
constexpr GuestLinear buffer{0xFFFF'8000'0002'0000};
constexpr std::uint64_t mispredicted_bit = bit(63);

class LbrOf : public ::testing::TestWithParam<const GenerationDesc*> {
 protected:
  RecordingEnv env;
  const GenerationDesc& desc{*GetParam()};
  Pmu pmu{PmuConfig{.generation = desc.generation}};

  void SetUp() override { write(msr::IA32_DEBUGCTL, dbg::LBR::mask); }

  void write(MsrIndex index, std::uint64_t value) {
    ASSERT_EQ(pmu.wrmsr(index, value), MsrStatus::ok) << "MSR " << std::hex << index.value() << " = " << value;
  }
  [[nodiscard]] std::uint64_t read(MsrIndex index) const {
    const MsrReadResult result = pmu.rdmsr(index);
    EXPECT_EQ(result.status, MsrStatus::ok) << "MSR " << std::hex << index.value();
    return result.value;
  }
  void branch(GuestLinear from, BranchOutcome b = {.kind = BranchKind::near_rel_jmp, .taken = true},
              std::uint64_t cycles = 1) {
    pmu.retire({.ip = from, .next_ip = to_of(from), .branch = b, .cycles = cycles}, env);
  }
  static GuestLinear to_of(GuestLinear from) { return from + 0x100; }
  static GuestLinear at(unsigned k) { return GuestLinear{0xFFFF'FFFF'8100'0000 + 16ULL * k}; }
  [[nodiscard]] std::uint32_t tos() const { return static_cast<std::uint32_t>(read(msr::MSR_LASTBRANCH_TOS)); }
  [[nodiscard]] std::uint64_t from(std::uint32_t i) const { return read(msr::MSR_LASTBRANCH_0_FROM_IP + i); }
  [[nodiscard]] bool has_info() const { return desc.lbr_format == LbrFormat::eip_with_info; }
  /// The address in FROM. SDM 3B 17.4.8.1.
  [[nodiscard]] std::uint64_t address(std::uint32_t i) const {
    return has_info() ? from(i) : static_cast<std::uint64_t>(static_cast<std::int64_t>(from(i) << 1) >> 1);
  }
};

TEST_P(LbrOf, StackHasTheDepthOfTheGeneration) {
  const std::uint32_t depth = desc.lbr_depth;  // generations_test.cpp has the manual's
  for (unsigned k = 1; k <= depth + 3; ++k) branch(at(k));
  EXPECT_EQ(tos(), 3U);
  for (std::uint32_t i = 0; i < depth; ++i) EXPECT_EQ(address(i), at(i <= 3 ? depth + i : i).value()) << i;
  for (const MsrIndex first : {msr::MSR_LASTBRANCH_0_FROM_IP, msr::MSR_LASTBRANCH_0_TO_IP})
    EXPECT_EQ(pmu.rdmsr(first + depth).status == MsrStatus::ok, false);
  EXPECT_EQ(pmu.wrmsr(msr::MSR_LASTBRANCH_TOS, depth), MsrStatus::gp);
  EXPECT_EQ(pmu.rdmsr(msr::MSR_LBR_INFO_0).status == MsrStatus::ok, has_info());
}

// SDM 3B 17.4.8.1: FROM[63] or MSR_LBR_INFO_i[63]; the address keeps its sign below the flag.
TEST_P(LbrOf, MispredictionIsWhereTheFormatHasIt) {
  for (const std::uint64_t ip : {0x40'1000ULL, 0xFFFF'FFFF'8100'0000ULL}) {
    branch(GuestLinear{ip});
    branch(GuestLinear{ip}, {.kind = BranchKind::conditional, .taken = true, .mispredicted = true});
    const std::uint32_t missed = tos(), hit = missed - 1;
    if (has_info()) {
      EXPECT_EQ(from(missed), ip);
      EXPECT_EQ(read(msr::MSR_LBR_INFO_0 + missed), mispredicted_bit | 1);
      EXPECT_EQ(read(msr::MSR_LBR_INFO_0 + hit), 1U);
    } else {
      EXPECT_EQ(from(missed), ip | mispredicted_bit);
      EXPECT_EQ(from(hit), ip & ~mispredicted_bit);
    }
    EXPECT_EQ(address(missed), ip);
  }
}

// A guest saves and restores recorded entries. They have flags, or copies of the address' sign in their place, as with
// TSX off.
TEST_P(LbrOf, RecordedEntriesCanBeWrittenBack) {
  branch(at(1), {.kind = BranchKind::conditional, .taken = true, .mispredicted = true});
  branch(at(2));
  for (std::uint32_t i = 1; i <= 2; ++i) {
    const std::uint64_t saved = from(i);
    write(msr::MSR_LASTBRANCH_0_FROM_IP + i, 0);
    write(msr::MSR_LASTBRANCH_0_FROM_IP + i, saved);
    EXPECT_EQ(from(i), saved);
  }
  if (desc.lbr_format != LbrFormat::eip_flags_tsx) return;
  for (const std::uint64_t flags : {0ULL, 1ULL, 2ULL, 3ULL})
    write(msr::MSR_LASTBRANCH_0_FROM_IP, (at(1).value() & ~(3ULL << 61)) | (flags << 61));
}

TEST_P(LbrOf, SelectKeepsEachKindOutAndNoOther) {
  constexpr std::array kinds{BranchKind::conditional, BranchKind::near_rel_call, BranchKind::near_ind_call,
                             BranchKind::near_ret,    BranchKind::near_ind_jmp,  BranchKind::near_rel_jmp,
                             BranchKind::far};
  for (unsigned filter = 0; filter < kinds.size(); ++filter)
    for (unsigned i = 0; i < kinds.size(); ++i) {
      write(msr::MSR_LBR_SELECT, bit(2 + filter));
      const std::uint32_t before = tos();
      branch(at(1), {.kind = kinds[i], .taken = true});
      EXPECT_EQ(tos() == before, i == filter) << "kind " << i << " filter " << filter;
    }
}

// SDM 3B 17.9: from Haswell on.
TEST_P(LbrOf, CallStackIsWhereTheGenerationHasIt) {
  const bool has = desc.features.lbr_callstack;
  EXPECT_EQ(has, desc.pebs_format >= 2);
  ASSERT_EQ(pmu.wrmsr(msr::MSR_LBR_SELECT, 0x3C4), has ? MsrStatus::ok : MsrStatus::gp);
  if (!has) return;
  const auto last = static_cast<std::uint32_t>(desc.lbr_depth - 1);
  branch(at(1), {.kind = BranchKind::near_ret, .taken = true});
  EXPECT_EQ(tos(), last);
  branch(at(2), {.kind = BranchKind::near_rel_call, .taken = true, .to_next = true});
  EXPECT_EQ(tos(), last) << "a call to the next instruction is never returned from";
  branch(at(3), {.kind = BranchKind::near_rel_call, .taken = true});
  branch(at(4), {.kind = BranchKind::near_ind_call, .taken = true});
  EXPECT_EQ(tos(), 1U);
  EXPECT_EQ(address(1), at(4).value());
  branch(at(5), {.kind = BranchKind::near_ret, .taken = true});
  EXPECT_EQ(tos(), 0U);
  EXPECT_EQ(from(1), 0U);
  EXPECT_EQ(address(0), at(3).value());
}

// Rules Z2, Z3, Z4, Z5: a PMI with DEBUGCTL[11] ends the recording, in the way of the generation, and software resumes
// it.
TEST_P(LbrOf, FreezesOnAPmi) {
  write(msr::IA32_DEBUGCTL, dbg::LBR::mask | dbg::FREEZE_LBRS_ON_PMI::mask | dbg::FREEZE_PERFMON_ON_PMI::mask);
  write(msr::IA32_PERF_GLOBAL_CTRL, 1);
  write(msr::IA32_PERFEVTSEL0, Select{.event = 0xC0, .interrupt = true}.raw());
  write(msr::IA32_PMC0, 0xFFFF'FFFE);
  for (unsigned k = 1; k <= 4; ++k) branch(at(k));
  EXPECT_EQ(tos(), 2U) << "the branch that overflows is recorded, the next one is not";
  EXPECT_EQ(read(msr::IA32_PMC0), 0U);
  if (desc.freeze == FreezeKind::legacy) {
    EXPECT_FALSE(dbg::LBR::test(read(msr::IA32_DEBUGCTL)));
    EXPECT_EQ(read(msr::IA32_PERF_GLOBAL_CTRL), 0U);
    write(msr::IA32_DEBUGCTL, dbg::LBR::mask);
  } else {
    EXPECT_TRUE(dbg::LBR::test(read(msr::IA32_DEBUGCTL)));
    EXPECT_EQ(read(msr::IA32_PERF_GLOBAL_CTRL), 1U);
    write(msr::IA32_PERF_GLOBAL_OVF_CTRL, reg::global_status::LBR_FRZ::mask);
  }
  branch(at(5));
  EXPECT_EQ(tos(), 3U);
}

// Rule Z12: the top of the stack is the last branch before the record's RIP, or the one that led there.
TEST_P(LbrOf, FreezesAtTheRecordWithTheLastBranchOnTop) {
  env.map(ds_area, page_size);
  env.map(buffer, page_size);
  for (const auto& [offset, value] :
       std::array{std::pair{0x20U, buffer.value()}, std::pair{0x28U, buffer.value()},
                  std::pair{0x30U, (buffer + page_size).value()}, std::pair{0x38U, buffer.value()}})
    env.poke(ds_area + offset, value);
  write(msr::IA32_DS_AREA, ds_area.value());
  for (const bool trigger_is_branch : {false, true}) {
    write(msr::IA32_PERF_GLOBAL_OVF_CTRL, read(msr::IA32_PERF_GLOBAL_STATUS));
    write(msr::IA32_DEBUGCTL, dbg::LBR::mask | dbg::FREEZE_LBRS_ON_PMI::mask);
    write(msr::IA32_PERF_GLOBAL_CTRL, 1);
    write(msr::IA32_PERFEVTSEL0, Select{.event = 0xC0}.raw());
    write(msr::IA32_PMC0, 0xFFFF'FFFE);
    write(msr::IA32_PEBS_ENABLE, 1);
    const std::uint64_t record = env.peek(ds_area + 0x28);
    const GuestLinear target = to_of(at(1));
    branch(at(1));
    pmu.retire({.ip = target, .next_ip = target + 2, .cycles = 1}, env);  // overflows
    if (trigger_is_branch)
      branch(target + 2);
    else
      pmu.retire({.ip = target + 2, .next_ip = target + 4, .cycles = 1}, env);
    branch(at(8));  // after the record: must not show
    const std::uint64_t rip = env.peek(GuestLinear{record} + 8);
    EXPECT_EQ(rip, (trigger_is_branch ? to_of(target + 2) : target + 4).value());
    EXPECT_EQ(address(tos()), (trigger_is_branch ? target + 2 : at(1)).value());
    EXPECT_EQ(read(msr::MSR_LASTBRANCH_0_TO_IP + tos()), (trigger_is_branch ? GuestLinear{rip} : target).value());
  }
}

// Rule Z11.
TEST_P(LbrOf, DebugExceptionClearsLbrAndBtf) {
  write(msr::IA32_DEBUGCTL, dbg::LBR::mask | dbg::BTF::mask | dbg::TR::mask);
  pmu.on_debug_exception();
  EXPECT_EQ(read(msr::IA32_DEBUGCTL), dbg::TR::mask);
  branch(at(1));
  EXPECT_EQ(tos(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Generation, LbrOf, ::testing::ValuesIn(all_generations().begin(), all_generations().end()),
                         generation_name);

}  // namespace
}  // namespace vpmu::test
