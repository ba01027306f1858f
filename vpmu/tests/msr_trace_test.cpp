#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "vpmu/pmu.hpp"

// What an unmodified Linux guest does to the PMU's registers, replayed: every access is legal, and a register reads what was written.

namespace vpmu::test {
namespace {

struct MsrLine {
  unsigned line{};
  bool is_write{};
  MsrIndex index;
  std::uint64_t value{};
};

std::vector<MsrLine> read_trace(const std::string& name) {
  std::ifstream file{std::string{VPMU_GOLDEN_DIR} + "/" + name};
  EXPECT_TRUE(file) << name;
  std::vector<MsrLine> trace;
  unsigned line = 0;
  for (std::string text; std::getline(file, text);) {
    ++line;
    if (text.starts_with('#')) continue;
    std::istringstream fields{text};
    char kind = 0;
    char equals = 0;
    std::uint32_t index = 0;
    std::uint64_t value = 0;
    fields >> kind >> std::hex >> index >> equals >> value;
    EXPECT_TRUE(fields && (kind == 'R' || kind == 'W') && equals == '=') << name << ":" << line << ": " << text;
    trace.push_back({line, kind == 'W', MsrIndex{index}, value});
  }
  return trace;
}

bool is_one_of(MsrIndex m, MsrIndex first, std::uint32_t count) { return m.value() - first.value() < count; }

/// Registers that events change; the recording made their values up.
bool is_count(MsrIndex m) {
  return is_one_of(m, msr::IA32_PMC0, 8) || is_one_of(m, msr::IA32_A_PMC0, 8) || is_one_of(m, msr::IA32_FIXED_CTR0, 3) ||
         m == msr::IA32_PERF_GLOBAL_STATUS;
}
/// Registers that branches change once the LBR has been on.
bool is_lbr(MsrIndex m) {
  return m == msr::MSR_LASTBRANCH_TOS || is_one_of(m, msr::MSR_LASTBRANCH_0_FROM_IP, 32) ||
         is_one_of(m, msr::MSR_LASTBRANCH_0_TO_IP, 32) || is_one_of(m, msr::MSR_LBR_INFO_0, 32);
}

TEST(LinuxTrace, EveryAccessIsLegalAndReadsWhatWasWritten) {
  Pmu pmu{PmuConfig{.misc_enable = 0x81'0089}};  // the recorded machine had MWAIT off
  const std::vector<MsrLine> trace = read_trace("linux_6_1_skylake.msr");
  ASSERT_GT(trace.size(), 2000U);
  std::map<std::uint32_t, std::uint64_t> written;
  bool lbr_has_been_on = false;
  unsigned compared = 0;
  for (const MsrLine& access : trace) {
    SCOPED_TRACE(access.line);
    if (access.is_write) {
      ASSERT_EQ(pmu.wrmsr(access.index, access.value), MsrStatus::ok);
      if (access.index != msr::IA32_PERF_GLOBAL_OVF_CTRL) written[access.index.value()] = access.value;  // reads 0
      lbr_has_been_on = lbr_has_been_on || (access.index == msr::IA32_DEBUGCTL && (access.value & 1) != 0);
      continue;
    }
    const MsrReadResult read = pmu.rdmsr(access.index);
    ASSERT_EQ(read.status, MsrStatus::ok);
    if (is_count(access.index) || (lbr_has_been_on && is_lbr(access.index))) continue;
    ASSERT_EQ(read.value, access.value) << "recorded";
    const auto last = written.find(access.index.value());
    if (last != written.end()) { ASSERT_EQ(read.value, last->second) << "last written"; }
    ++compared;
  }
  EXPECT_GT(compared, 150U);
  EXPECT_EQ(pmu.statistics().msr_faults, 0U);
}

}  // namespace
}  // namespace vpmu::test
