#include "test_kernel/merge.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "test_kernel/report.hpp"

namespace vmm::tool {
namespace {

ModelResult passed(const std::string& model) {
  return {.model = model,
          .checks = {{std::string{run_check}, Outcome::pass, "", "exit code 0"}, {"bts", Outcome::pass, "1", "1"}}};
}

/// The report of one of two shards that share three models.
ShardReport shard(std::size_t number) {
  ShardReport part{.file = "shard" + std::to_string(number) + ".json",
                   .report = {.kernel = "bzImage",
                              .version = "6.1",
                              .checksum = "0123456789abcdef",
                              .suite = "quick",
                              .shard = {.number = number, .count = 2},
                              .asked = {"nehalem", "haswell", "skylake"},
                              .models = {}}};
  for (std::size_t i = 0; i < part.report.asked.size(); ++i)
    if (shard_of(i, 2) == number) part.report.models.push_back(passed(part.report.asked[i]));
  return part;
}

std::string refusal(const std::vector<ShardReport>& parts) {
  const auto whole = merge(parts);
  if (whole) return "merged";
  EXPECT_EQ(whole.error().kind, ErrorKind::usage);
  return describe(whole.error());
}

TEST(MergedReport, HasAllModelsInTheOrderInWhichTheyWereAskedFor) {
  const auto whole = merge(std::vector{shard(2), shard(1)});
  ASSERT_TRUE(whole) << describe(whole.error());
  EXPECT_EQ(whole->models, (std::vector{passed("nehalem"), passed("haswell"), passed("skylake")}));
  EXPECT_EQ(whole->shard, Shard{});
  EXPECT_EQ(read_report(report_as_json(*whole), "whole.json"), *whole);
}

TEST(MergedReport, OfAMissingShardFailsWithItsName) {
  const auto whole = merge(std::vector{shard(1)});
  ASSERT_TRUE(whole) << describe(whole.error());
  EXPECT_EQ(count(*whole, Outcome::fail), 1U);
  EXPECT_EQ(whole->models[1].model, "haswell");
  EXPECT_EQ(whole->models[1].checks.front().seen, "no report of shard 2/2");
  EXPECT_TRUE(has_run(*whole));
}

TEST(MergedReport, TakesTheSameShardTwiceWhereItFoundTheSame) {
  EXPECT_EQ(*merge(std::vector{shard(1), shard(2), shard(1)}), *merge(std::vector{shard(1), shard(2)}));
  ShardReport other = shard(1);
  other.file = "other.json";
  other.report.models[1].checks[1].outcome = Outcome::fail;
  EXPECT_EQ(refusal({shard(1), shard(2), other}),
            "shard1.json and other.json differ in skylake bts: pass, and bts fail; give the reports of one run, each "
            "shard once");
  other.report.models[1].checks.pop_back();
  EXPECT_EQ(refusal({shard(1), shard(2), other}),
            "shard1.json and other.json differ in skylake: 2 checks, and 1; give the reports of one run, each shard "
            "once");
}

TEST(MergedReport, IsOfOneRun) {
  const auto with = [](auto change) {
    ShardReport other = shard(2);
    change(other.report);
    return refusal({shard(1), other});
  };
  EXPECT_EQ(with([](KernelReport& report) { report.checksum = "f"; }),
            "shard2.json has another kernel than shard1.json: Linux 6.1 of checksum f, not Linux 6.1 of checksum "
            "0123456789abcdef; give the reports of one run's shards");
  EXPECT_NE(with([](KernelReport& report) { report.version = "6.2"; }).find("another kernel"), std::string::npos);
  EXPECT_NE(with([](KernelReport& report) { report.suite = "full"; }).find("another suite"), std::string::npos);
  EXPECT_NE(with([](KernelReport& report) { report.time = "pipeline"; }).find("another time"), std::string::npos);
  EXPECT_NE(with([](KernelReport& report) {
              report.set = "l3=16M";
            }).find("another --set than shard1.json: l3=16M, not none"),
            std::string::npos);
  EXPECT_NE(with([](KernelReport& report) { report.shard.count = 3; }).find("another number of shards"),
            std::string::npos);
  EXPECT_NE(with([](KernelReport& report) { report.asked.pop_back(); }).find("another list of models"),
            std::string::npos);
  EXPECT_NE(refusal({}).find("no report"), std::string::npos);
}

}  // namespace
}  // namespace vmm::tool
