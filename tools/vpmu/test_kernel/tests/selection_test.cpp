#include "test_kernel/selection.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "test_kernel/expectations.hpp"

namespace vmm::tool {
namespace {

std::vector<std::string_view> names(const std::string& models, const std::string& shard = {}) {
  const auto selected = select_models(models, shard);
  EXPECT_TRUE(selected) << describe(selected.error());
  std::vector<std::string_view> all;
  if (selected)
    for (const MachineModel* const model : selected->own) all.push_back(model->name);
  return all;
}

TEST(SelectedModels, AreOneForEachKindWithoutAList) {
  EXPECT_EQ(names(""), (std::vector<std::string_view>{"nehalem", "westmere", "sandybridge", "ivybridge", "haswell",
                                                      "broadwell", "skylake"}));
}

TEST(SelectedModels, AreAllOrThoseOfTheListOnce) {
  EXPECT_EQ(names("all").size(), all_machine_models().size());
  EXPECT_EQ(names("skylake,nehalem,skylake"), (std::vector<std::string_view>{"skylake", "nehalem"}));
}

TEST(SelectedModels, OfAllShardsAreEachModelOnce) {
  std::multiset<std::string_view> seen;
  for (const char* const shard : {"1/5", "2/5", "3/5", "4/5", "5/5"})
    for (const std::string_view name : names("all", shard)) seen.insert(name);
  EXPECT_EQ(seen.size(), all_machine_models().size());
  EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), seen.size());
  EXPECT_EQ(names("nehalem,westmere,haswell", "2/2"), std::vector<std::string_view>{"westmere"});
}

TEST(SelectedModels, ThatAreNoneAreRefused) {
  for (const char* const models : {"pentium", "nehalem,", ",", "ALL"}) {
    const auto selected = select_models(models, "");
    ASSERT_FALSE(selected) << models;
    EXPECT_EQ(selected.error().kind, ErrorKind::usage);
  }
}

TEST(SelectedModels, OfAShardThatIsNoneAreRefused) {
  for (const char* const shard : {"0/2", "3/2", "1", "1/", "/2", "1/0", "a/b", "1/2x", "1/1001", "-1/2", "1/2/3"})
    EXPECT_FALSE(select_models("all", shard)) << shard;
  EXPECT_FALSE(select_models("nehalem", "2/2"));
}

bool is_told(std::string_view model, const std::string& argument) {
  const auto all = checker_arguments(*find_machine_model(model), 2);
  return std::ranges::find(all, argument) != all.end();
}

TEST(CheckerArguments, AreThoseOfTheProcessor) {
  for (const char* const argument : {"driver=Skylake events", "version=4", "pebs-format=3", "branches=32", "frontend=1",
                                     "precise=3", "full-width=1", "stores=33488", "loads=461"})
    EXPECT_TRUE(is_told("kabylake", argument)) << argument;
  for (const char* const argument : {"driver=Nehalem events", "version=3", "branches=16", "frontend=0", "precise=2",
                                     "stores=0", "branch-trace=0", "offcore=65281"})
    EXPECT_TRUE(is_told("nehalem-ex", argument)) << argument;
  EXPECT_TRUE(is_told("nehalem-havendale", "known=0"));
}

TEST(CheckerArguments, HaveAllCountersOfACoreThatHasOneThread) {
  const auto alone = checker_arguments(*find_machine_model("haswell"), 1);
  EXPECT_NE(std::ranges::find(alone, "counters=8"), alone.end());
  EXPECT_TRUE(is_told("haswell", "counters=4"));
}

}  // namespace
}  // namespace vmm::tool
