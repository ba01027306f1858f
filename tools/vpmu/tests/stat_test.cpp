#include "stat/comparison.hpp"
#include "stat/counts.hpp"
#include "stat/events.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace vmm::tool {
namespace {

const vpmu::GenerationDesc& skylake() { return vpmu::describe(vpmu::Generation::skylake); }

StatEvent event(const std::string& name) { return {.name = name, .perf = name, .quality = "exact"}; }

StatCount count(const std::string& name, std::uint64_t value) {
  return {.name = name, .quality = "exact", .unit = "", .value = value};
}

StatDocument document(std::vector<StatCount> events) {
  return {.version = "1",
          .model = "skylake",
          .accel = "soft",
          .source = "exact",
          .kernel = "6.1",
          .memory_bytes = 1U << 30U,
          .environment = "0123",
          .command = {"./prog", "a b"},
          .exit_code = 0,
          .events = std::move(events)};
}

TEST(StatEvents, EveryGenerationHasTheDefaultOnes) {
  for (const vpmu::GenerationDesc* generation : vpmu::all_generations()) {
    const auto events = choose_events(default_stat_events, *generation, "exact");
    ASSERT_TRUE(events.has_value());
    for (const StatEvent& e : *events) {
      EXPECT_NE(e.quality, "unknown") << generation->name << ' ' << e.name;
      EXPECT_FALSE(e.quality.starts_with("not at all")) << generation->name << ' ' << e.name;
    }
    EXPECT_EQ(events->at(0).quality, "exact") << generation->name;
  }
}

TEST(StatEvents, ACommaBetweenSlashesBelongsToTheEvent) {
  const auto events = choose_events("cpu/event=0xc0,umask=1/u,r00c4:u", skylake(), "exact");
  ASSERT_TRUE(events.has_value());
  ASSERT_EQ(events->size(), 2U);
  EXPECT_EQ(events->at(0).perf, "cpu/event=0xc0,umask=1/u");
  EXPECT_EQ(events->at(1).quality, "exact");
}

TEST(StatEvents, NamesAreFoundInSmallLettersToo) {
  const auto events = choose_events("mem_inst_retired.all_loads:u,MEM_INST_RETIRED.ALL_LOADS", skylake(), "exact");
  ASSERT_TRUE(events.has_value());
  EXPECT_EQ(events->at(0).quality, "exact");
  EXPECT_EQ(events->at(1).quality, "exact");
  EXPECT_EQ(events->at(0).perf, events->at(1).perf + "u");
}

// "0" would be a number that nobody has counted.
TEST(StatCounts, TheTableTellsWhatTheSourceCannotCount) {
  const auto events = choose_events("baclears.any,instructions", skylake(), "exact");
  ASSERT_TRUE(events.has_value());
  const auto counts = read_perf_counts("0\t\tbaclears.any\t1\t100.00\n7\t\tinstructions\t1\t100.00\n", *events);
  ASSERT_TRUE(counts.has_value());
  const std::string table = to_table(document(*counts));
  EXPECT_NE(table.find("<not counted>  baclears.any  not at all"), std::string::npos) << table;
  EXPECT_NE(table.find(" 7  instructions"), std::string::npos) << table;
}

TEST(StatEvents, WhatIsNoEventIsRefused) {
  for (const char* list : {"", "a,", "{a,b}", "a,a", "a b"})
    EXPECT_FALSE(choose_events(list, skylake(), "exact").has_value()) << list;
}

TEST(StatEvents, AsManyAtOnceAsThereAreCounters) {
  const auto events = choose_events("instructions:u,a,b,c,d,e", skylake(), "exact");
  ASSERT_TRUE(events.has_value());
  const auto passes = split_into_passes(*events, skylake());
  ASSERT_EQ(passes.size(), 2U);
  EXPECT_EQ(passes[0].size(), 5U);
}

TEST(StatCounts, ReadsWhatPerfWrites) {
  const std::vector events{event("instructions:u"), event("branches:u")};
  const auto counts = read_perf_counts(
      "# started on Wed\n\n500005\t\tinstructions:u\t1145500\t100.00\t\tinsn per "
      "cycle\n7\t\tbranches:u\t500\t50.00\t\t\n",
      events);
  ASSERT_TRUE(counts.has_value());
  EXPECT_EQ(counts->at(0).value, 500005U);
  EXPECT_EQ(counts->at(0).quality, "exact");
  EXPECT_EQ(counts->at(1).enabled_ns, 1000U);
  EXPECT_TRUE(counts->at(1).quality.starts_with("not exact")) << "it took turns on a counter";
}

TEST(StatCounts, RefusesWhatPerfDoesNotWrite) {
  const std::vector events{event("a")};
  for (const char* text :
       {"", "<not supported>\t\ta\t0\t100.00\n", "1.5\t\ta\t1\t100\n", "1\t\ta\n", "1\t\ta\t1\tnan\n",
        "1\t\ta\t1\t100\n1\t\ta\t1\t100\n", "99999999999999999999\t\ta\t1\t100\n"})
    EXPECT_FALSE(read_perf_counts(text, events).has_value()) << text;
}

TEST(StatDocument, ReadsBackWhatItWrites) {
  const StatDocument made = document({count("instructions:u", UINT64_MAX), count("b", 0)});
  const auto read = read_stat_document(to_json(made), "base.json");
  ASSERT_TRUE(read.has_value()) << describe(read.error());
  EXPECT_EQ(*read, made);
}

TEST(StatDocument, RefusesWhatIsNone) {
  const std::string good = to_json(document({count("a", 5)}));
  const auto with = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string{}, std::string{"[]"}, std::string{"{}"}, std::string(100000, '['), std::string(2 << 20, ' '),
        good.substr(0, good.size() / 2), with("\"value\": 5", "\"value\": 5.5"), with("\"value\": 5", "\"value\": -5"),
        with("\"value\": 5", "\"value\": 1e30"), with("\"format\": 1", "\"format\": 2"), with("\"skylake\"", "7")}) {
    const auto read = read_stat_document(text, "base.json");
    ASSERT_FALSE(read.has_value()) << text.substr(0, 200);
    EXPECT_EQ(describe(read.error()).find('\n'), std::string::npos);
  }
}

TEST(StatComparison, ARiseOverItsLimitIsSaid) {
  const auto limits = read_limits({"1", "a=10"});
  ASSERT_TRUE(limits.has_value());
  const auto base = document({count("a", 100), count("b", 100)});
  EXPECT_FALSE(compare(base, document({count("a", 110), count("b", 101)}), *limits).rose);
  EXPECT_TRUE(compare(base, document({count("a", 111), count("b", 101)}), *limits).rose);
  EXPECT_TRUE(compare(base, document({count("a", 110), count("b", 102)}), *limits).rose);
  EXPECT_FALSE(compare(base, document({count("a", 1), count("b", 1)}), *limits).rose);
}

TEST(StatComparison, WithoutALimitOneMoreIsARise) {
  const std::uint64_t large = std::uint64_t{1} << 62U;
  EXPECT_TRUE(compare(document({count("a", large)}), document({count("a", large + 1)}), {}).rose);
  EXPECT_TRUE(compare(document({count("a", 0)}), document({count("a", 1)}), {}).rose);
}

TEST(StatComparison, SaysWhichEventsAreNewAndMissing) {
  const auto done = compare(document({count("old", 1)}), document({count("fresh", 1)}), {});
  EXPECT_FALSE(done.rose);
  EXPECT_NE(done.report.find("new"), std::string::npos);
  EXPECT_NE(done.report.find("missing"), std::string::npos);
  EXPECT_NE(done.report.find("other events"), std::string::npos);
  EXPECT_EQ(done.report.find("environment"), std::string::npos);
}

TEST(StatComparison, HasNoNumberForWhatTheSourceCannotCount) {
  StatCount none = count("a", 0);
  none.quality = "not at all";
  const auto done = compare(document({none}), document({none, count("b", 5)}), {});
  EXPECT_FALSE(done.rose);
  EXPECT_NE(done.report.find("<not counted>      <not counted>  \n"), std::string::npos) << done.report;
  EXPECT_EQ(done.report.find("same"), std::string::npos) << done.report;
}

TEST(StatComparison, SaysThatTheEnvironmentWasAnother) {
  StatDocument now = document({});
  now.environment = "other";
  EXPECT_NE(compare(document({}), now, {}).report.find("another environment"), std::string::npos);
}

TEST(StatComparison, AnotherMachineOrCommandIsRefused) {
  const StatDocument base = document({});
  for (auto member : {&StatDocument::model, &StatDocument::accel, &StatDocument::source, &StatDocument::kernel}) {
    StatDocument other = base;
    other.*member = "other";
    const auto done = check_comparable(base, other);
    ASSERT_FALSE(done.has_value());
    EXPECT_NE(describe(done.error()).find("not other"), std::string::npos);
  }
  StatDocument larger = base;
  larger.memory_bytes *= 2;
  EXPECT_FALSE(check_comparable(base, larger).has_value());
  StatDocument other = base;
  other.command.emplace_back("more");
  EXPECT_FALSE(check_comparable(base, other).has_value());
}

TEST(StatLimits, WhatIsNoPercentageIsRefused) {
  for (const char* text : {"", "a=", "x", "-1", "nan", "inf", "1e9", "a=1x"})
    EXPECT_FALSE(read_limits({text}).has_value()) << text;
}

TEST(StatLimits, OneOfAnEventThatIsNotCountedIsRefused) {
  const std::vector<StatEvent> events{event("a")};
  EXPECT_TRUE(check_limits(*read_limits({"1", "a=2"}), events).has_value());
  EXPECT_FALSE(check_limits(*read_limits({"b=2"}), events).has_value());
}

}  // namespace
}  // namespace vmm::tool
