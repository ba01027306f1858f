#include "machine/statistics.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace vmm {
namespace {

TEST(StatisticsJson, HasMachineAndVcpuCountersByName) {
  const MachineStatistics statistics{
      .machine = {{"uptime_ms", 12}},
      .vcpus = {{.id = 0, .counters = {{"exits.mmio_read", 3}}}, {.id = 1, .counters = {}}}};
  const auto json = nlohmann::json::parse(to_json(statistics));
  EXPECT_EQ(json["machine"]["uptime_ms"], 12);
  ASSERT_EQ(json["vcpus"].size(), 2U);
  EXPECT_EQ(json["vcpus"][0]["exits.mmio_read"], 3);
  EXPECT_EQ(json["vcpus"][1]["id"], 1);
}

TEST(StatisticsJson, IsOneLineInTheOrderOfTheCounters) {
  const MachineStatistics statistics{.machine = {{"uptime_ms", 12}, {"a", UINT64_MAX}},
                                     .vcpus = {{.id = 0, .counters = {{"b", 3}, {"a", 4}}}}};
  EXPECT_EQ(to_json(statistics),
            R"({"machine":{"uptime_ms":12,"a":18446744073709551615},"vcpus":[{"id":0,"b":3,"a":4}]})");
  EXPECT_EQ(to_json({}), R"({"machine":{},"vcpus":[]})");
}

}  // namespace
}  // namespace vmm
