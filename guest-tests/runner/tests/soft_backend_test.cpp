// Every guest test on a vCPU without KVM, by each counting source.
#include <gtest/gtest.h>

#include <algorithm>

#include "gt/protocol.hpp"
#include "pmu/registry.hpp"
#include "report.hpp"
#include "test_kernel.hpp"
#include "test_run.hpp"

namespace gt_runner {
namespace {

struct Case {
  Test test;
  std::string source;
  vmm::TimeModel time{};
  [[nodiscard]] bool is_in_pipeline_time() const { return time == vmm::TimeModel::pipeline; }
  [[nodiscard]] RunOptions options() const {
    return {.source = source, .soft = true, .source_options = {.time = time}};
  }
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << c.test.name << " with " << c.source << (c.is_in_pipeline_time() ? " in a pipeline's time" : "");
  }
};

const TestKernel& kernel() {
  static const TestKernel it = [] {
    auto opened = TestKernel::open(PMU_TESTS_KERNEL);
    if (!opened) {
      ADD_FAILURE() << opened.error().what;
      std::abort();
    }
    return *opened;
  }();
  return it;
}

/// The host's PMU does not see what the engine runs.
bool counts_without_kvm(const vmm::SourceRow& source) { return !source.traits.needs_host_pmu; }

/// Single steps are too slow for tests that wait for something not to happen; those that need exact counts do not wait.
bool is_fit(std::string_view source, const Test& test, vmm::TimeModel time = {}) {
  return unmet_need(test, source, Port::soft, time).empty() &&
         (source != "step" || (test.needs & gt::need_exact_counts) != 0);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const vmm::SourceRow& source : vmm::all_sources()) {
    if (!counts_without_kvm(source)) continue;
    for (const Test& test : kernel().tests())
      if (is_fit(source.traits.name, test)) cases.push_back({.test = test, .source = std::string{source.traits.name}});
  }
  constexpr auto pipeline = vmm::TimeModel::pipeline;
  for (const Test& test : kernel().tests())
    if (is_fit("exact", test, pipeline)) cases.push_back({.test = test, .source = "exact", .time = pipeline});
  return cases;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  std::string name =
      info.param.source + (info.param.is_in_pipeline_time() ? "_in_pipeline_time_" : "_") + info.param.test.name;
  std::ranges::replace(name, '.', '_');
  return name;
}

class SoftBackend : public testing::TestWithParam<Case> {};

TEST_P(SoftBackend, Runs) {
  const auto result = run_test(kernel(), GetParam().test, GetParam().options());
  ASSERT_TRUE(result) << result.error().what;
  if (result->verdict == Verdict::skipped) GTEST_SKIP() << result->reason;
  EXPECT_EQ(result->verdict, Verdict::passed) << gt_runner::describe(*result);
}

INSTANTIATE_TEST_SUITE_P(Guest, SoftBackend, testing::ValuesIn(all_cases()), name_of);

// Without KVM there is only virtual time: a second run must count exactly the same. The next test has those runs that
// may be compiled.
TEST(SoftBackendIsDeterministic, TwoRunsAreTheSame) {
  unsigned cases = 0;
  for (const Case& c : all_cases()) {
    if (c.source != "step") continue;
    ++cases;
    RunOptions options = c.options();
    options.statistics = true;
    const auto first = run_test(kernel(), c.test, options);
    const auto second = run_test(kernel(), c.test, options);
    ASSERT_TRUE(first && second) << c.test.name;
    EXPECT_EQ(first->log, second->log) << c.test.name << " with " << c.source;
    EXPECT_FALSE(first->log.empty()) << "the machine's statistics";
  }
  EXPECT_GT(cases, 10U);
}

/// The log without the counts of compiled blocks, which are added to `compiled`.
std::vector<std::string> without_compiled(const std::vector<std::string>& log, std::uint64_t& compiled) {
  std::vector<std::string> rest;
  for (const std::string& line : log) {
    const bool of_compiling = line.starts_with("soft.compiled_blocks ") || line.starts_with("pmu.exact.compiled ");
    if (of_compiling)
      compiled += std::stoull(line.substr(line.find(' ') + 1));
    else
      rest.push_back(line);
  }
  return rest;
}

/// The value of "NAME VALUE" in a run's log; 0 if it is not there.
std::uint64_t statistic(const std::vector<std::string>& log, const std::string& name) {
  for (const std::string& line : log)
    if (line.starts_with(name + " ")) return std::stoull(line.substr(name.size() + 1));
  return 0;
}

// --no-jit is slower, and otherwise the same. The exact source itself runs STI, IRET and accesses to the PMU's MSRs;
// only devices, HLT and the like go to the back end.
TEST(SoftBackendIsDeterministic, CompiledCodeCountsWhatInterpretedCodeDoes) {
  std::uint64_t interpreted_blocks = 0;
  std::uint64_t compiled_blocks = 0;
  std::uint64_t in_place = 0, left = 0;
  for (const Case& c : all_cases()) {
    if (c.source == "step") continue;
    RunOptions options = c.options();
    options.statistics = true;
    options.source_options.compiling = vpmu::exec::never_compiling;
    const auto interpreted = run_test(kernel(), c.test, options);
    options.source_options.compiling = {.after = 1};
    const auto compiled = run_test(kernel(), c.test, options);
    ASSERT_TRUE(interpreted && compiled) << c.test.name;
    EXPECT_EQ(without_compiled(interpreted->log, interpreted_blocks), without_compiled(compiled->log, compiled_blocks))
        << c.test.name << " with " << c.source;
    if (c.source != "exact") continue;
    in_place += statistic(compiled->log, "pmu.exact.in_place");
    for (const char* const mnemonic : {"sti", "cli", "iretq", "rdmsr", "wrmsr", "rdpmc", "swapgs", "syscall", "verw"})
      left += statistic(compiled->log, std::string{"pmu.exact.left."} + mnemonic);
  }
  EXPECT_EQ(interpreted_blocks, 0U);
  EXPECT_GT(compiled_blocks, 10'000U);
  EXPECT_GT(in_place, 500U);
  EXPECT_EQ(left, 2U) << "only the WRMSR that faults on purpose, in each time";
}

}  // namespace
}  // namespace gt_runner
