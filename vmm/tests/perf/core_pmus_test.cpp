#include "perf/core_pmus.hpp"

#include <gtest/gtest.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "kvm/kick.hpp"
#include "perf/linux_perf_host.hpp"

// Hosts with several kinds of cores, such as Alder Lake. None was at hand: the tests make a directory in place of
// sysfs.

namespace vmm::test {
namespace {

using Cpus = std::set<unsigned>;

const std::vector<CorePmu> alder_lake{{.name = "cpu_core", .type = 4, .cpus = {0, 1, 2, 3}},
                                      {.name = "cpu_atom", .type = 10, .cpus = {4, 5}}};

TEST(CorePmus, ListsOfCpusAreRead) {
  EXPECT_EQ(parse_cpu_list(""), Cpus{});
  EXPECT_EQ(parse_cpu_list("7"), Cpus{7});
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (Cpus{0, 1, 2, 3, 8, 10, 11}));
  for (const char* const bad : {"x", "1-", "-1", "3-2", "1,,2", "0-4294967295", "99999999999", "1 2"})
    EXPECT_FALSE(parse_cpu_list(bad)) << bad;
}

TEST(CorePmus, AreThoseThatSysfsHas) {
  const std::filesystem::path devices{testing::TempDir() + "core_pmus_" + std::to_string(::getpid())};
  const auto put = [&](const char* name, const char* type, const char* cpus) {
    std::filesystem::create_directories(devices / name);
    std::ofstream{devices / name / "type"} << type << '\n';
    std::ofstream{devices / name / "cpus"} << cpus << '\n';
  };
  put("cpu", "4", "0-3");
  EXPECT_TRUE(read_core_pmus(devices).empty()) << "all cores are alike";
  put("cpu_core", "4", "0-3");
  put("cpu_atom", "10", "4-5");
  put("cpu_lowpower", "what", "6");
  EXPECT_EQ(read_core_pmus(devices), alder_lake) << "what makes no sense is none";
  std::filesystem::remove_all(devices);
  EXPECT_TRUE(read_core_pmus(devices).empty());
}

TEST(CorePmus, OneMustHaveAllCpusOfTheThread) {
  EXPECT_EQ((*choose_core_pmu(alder_lake, {1, 2}))->name, "cpu_core");
  EXPECT_EQ((*choose_core_pmu(alder_lake, {5}))->name, "cpu_atom");
  for (const Cpus& allowed : {Cpus{0, 1, 2, 3, 4, 5}, Cpus{3, 4}, Cpus{7}, Cpus{}}) {
    const auto none = choose_core_pmu(alder_lake, allowed);
    ASSERT_FALSE(none);
    const std::string line = describe(none.error());
    for (const std::string_view part : {"cpu_core on CPUs 0-3", "cpu_atom on CPUs 4-5", "taskset -c 0-3"})
      EXPECT_NE(line.find(part), std::string::npos) << line;
  }
  EXPECT_NE(describe(choose_core_pmu(alder_lake, {0, 1, 4}).error()).find("run on CPUs 0-1,4"), std::string::npos);
}

// Without a PMU's type, PERF_TYPE_RAW and PERF_TYPE_HARDWARE mean the first kind of core.
TEST(CorePmus, EventsNameTheirPmu) {
  const PerfEventSpec raw{.event = {PERF_TYPE_RAW, 0xC0}, .usr = true, .guest_only = true};
  const PerfEventSpec clock{.event = {PERF_TYPE_HARDWARE, PERF_COUNT_HW_REF_CPU_CYCLES}, .usr = true};
  EXPECT_EQ(attributes_of(raw, 10).type, 10U);
  EXPECT_EQ(attributes_of(raw, 10).config, 0xC0U);
  EXPECT_EQ(attributes_of(raw).type, std::uint32_t{PERF_TYPE_RAW});
  EXPECT_EQ(attributes_of(clock, 10).type, std::uint32_t{PERF_TYPE_HARDWARE});
  EXPECT_EQ(attributes_of(clock, 10).config, 10ULL << 32 | PERF_COUNT_HW_REF_CPU_CYCLES);
  EXPECT_EQ(attributes_of(clock).config, std::uint64_t{PERF_COUNT_HW_REF_CPU_CYCLES});
}

/// Runs on this machine: software events stand for a PMU that all of its CPUs have, or none of them.
class HybridHost : public testing::Test {
 protected:
  static constexpr PerfEventSpec event{.event = {PERF_TYPE_RAW, PERF_COUNT_SW_CPU_CLOCK}, .usr = true};
  static std::vector<CorePmu> pmus(bool split) {
    Cpus all;
    for (unsigned cpu = 0; cpu < 65'536; ++cpu) all.insert(cpu);
    if (!split) return {{.name = "cpu_core", .type = PERF_TYPE_SOFTWARE, .cpus = all}};
    return {{.name = "cpu_core", .type = PERF_TYPE_SOFTWARE, .cpus = {70'000}}};
  }
};

TEST_F(HybridHost, CountsByThePmuOfTheThreadsCores) {
  ASSERT_TRUE(install_kick_handler());
  const auto host = make_linux_perf_host_of(pmus(false));
  const auto opened = host->open(event);
  if (!opened && (opened.error().system_errno == EACCES || opened.error().system_errno == EPERM))
    GTEST_SKIP() << "cannot run here: " << describe(opened.error());
  ASSERT_TRUE(opened) << describe(opened.error());
  ASSERT_TRUE((*opened)->enable());
  host->run_loop(1'000'000);
  const auto reading = (*opened)->read();
  ASSERT_TRUE(reading);
  EXPECT_GT(reading->value, 0U);
}

TEST_F(HybridHost, RefusesAThreadThatMayRunElsewhere) {
  const auto host = make_linux_perf_host_of(pmus(true));
  const auto refused = host->open(event);
  ASSERT_FALSE(refused);
  EXPECT_NE(describe(refused.error()).find("each kind of core of this host has its own PMU"), std::string::npos);
}

}  // namespace
}  // namespace vmm::test
