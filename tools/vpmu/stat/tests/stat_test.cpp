#include "model/model.hpp"
#include "sources/delivery.hpp"
#include "stat/comparison.hpp"
#include "stat/counts.hpp"
#include "stat/events.hpp"
#include "stat/kernel_events.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

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
          .set = "l3=16M",
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
      EXPECT_FALSE(e.quality.starts_with("not counted")) << generation->name << ' ' << e.name;
      // An event that has a meaning only with PEBS is "<not supported>" for perf stat: PRECISE_STORE of Sandy Bridge.
      EXPECT_FALSE(e.perf.ends_with("/p") || e.perf.ends_with("/pu")) << generation->name << ' ' << e.perf;
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
  const auto events = choose_events("hw_interrupts.received,instructions", skylake(), "exact");
  ASSERT_TRUE(events.has_value());
  const auto counts = read_perf_counts("0\t\tlsd.uops\t1\t100.00\n7\t\tinstructions\t1\t100.00\n", *events);
  ASSERT_TRUE(counts.has_value());
  const std::string table = to_table(document(*counts));
  EXPECT_NE(table.find("<not counted>  hw_interrupts.received  not counted"), std::string::npos) << table;
  EXPECT_NE(table.find(" 7  instructions"), std::string::npos) << table;
}

// The kernel's own names say as much as the codes that it programs for them.
TEST(StatEvents, NamesOfLinuxAreRatedByWhatItProgramsForThem) {
  for (const auto& [model, name, raw] :
       {std::array{"haswell", "L1-dcache-loads:u", "r81d0:u"}, std::array{"haswell", "l1d-read", "r81d0"},
        std::array{"nehalem", "branch-load-misses", "r03e8"}, std::array{"skylake", "iTLB-load-misses", "r0e85"},
        std::array{"skylake", "L1-dcache-stores", "cpu/event=0xd0,umask=0x82/"},
        std::array{"sandybridge", "stalled-cycles-frontend", "r180010e"},
        std::array{"sandybridge", "topdown-recovery-bubbles", "cpu/event=0xd,umask=0x3,cmask=1/"}}) {
    const auto& generation = vpmu::describe(*vpmu::find_generation(model));
    const auto events = choose_events(std::string{name} + "," + raw, generation, "exact");
    ASSERT_TRUE(events.has_value());
    EXPECT_NE(events->at(0).quality, "unknown") << name;
    EXPECT_EQ(events->at(0).quality, events->at(1).quality) << model << ' ' << name;
    EXPECT_EQ(events->at(0).perf, name);
  }
  for (const char* other : {"L1-dcache-stores-loads", "sched:sched_switch", "cpu/what=1/", "r1", "LLC-x"})
    EXPECT_EQ(choose_events(other, skylake(), "exact")->front().quality == "unknown", std::string_view{other} != "r1");
}

/// Why the exact source does not count what Linux programs for a name; empty: it does.
std::string_view reason_for(const KernelEvent& event, vpmu::Generation generation) {
  constexpr std::string_view no_prefetches = "there are no hardware prefetches";
  struct Reason {
    std::uint8_t code, umask;
    std::string_view why;
  };
  constexpr std::array reasons{Reason{0x4E, 0x01, no_prefetches},
                               Reason{0x4E, 0x02, no_prefetches},
                               Reason{0x51, 0x02, "the model of the L1D does not tell in which state lines are"},
                               Reason{0x51, 0x08, "the model of the L1D does not tell what it evicts"},
                               Reason{0x9C, 0x01, "the slots that the front end leaves empty are not told"},
                               Reason{0x0D, 0x03, "nothing runs on a wrong path, so nothing recovers from one"},
                               Reason{0xE8, 0x03, "the model predicts all branches at one place of the pipeline"}};
  if (event.offcore != 0) {
    if (event.name.find("prefetch") != std::string_view::npos) return no_prefetches;
    // Of Linux's bits for remote memory, Westmere's client has one for local memory. SDM 3B table 18-27.
    const bool remote = event.name.starts_with("node-") && event.name.ends_with("-misses");
    return remote && generation != vpmu::Generation::westmere ? "there is one package" : std::string_view{};
  }
  const auto* const row = std::ranges::find_if(
      reasons, [&event](const Reason& r) { return r.code == event.code && r.umask == event.umask; });
  return row == reasons.end() ? std::string_view{} : row->why;
}

// On each of the 24 models, each of Linux's names counts, or is listed with the reason why it does not.
TEST(KernelEvents, EachCountsOrHasAReason) {
  const DeliveryRule deliver = delivery_rule("exact");
  ASSERT_NE(deliver, nullptr);
  unsigned counted = 0, listed = 0;
  for (const MachineModel& model : all_machine_models()) {
    const auto& generation = vpmu::describe(model.generation);
    for (const KernelEvent& event : kernel_events(model.generation)) {
      const bool counts = deliver(generation, row_of(event, generation)).delivery != Delivery::none;
      const std::string_view why = reason_for(event, model.generation);
      ++(counts ? counted : listed);
      EXPECT_EQ(counts, why.empty()) << model.name << ' ' << event.name << std::hex << " r" << unsigned{event.umask}
                                     << ' ' << unsigned{event.code} << ' ' << event.offcore << ' ' << why;
    }
  }
  EXPECT_EQ(all_machine_models().size(), 24U);
  EXPECT_GT(counted, 24U * 25);
  EXPECT_GT(listed, 0U);
}

TEST(StatEvents, ThePipelineCountsWhatOnlyItTells) {
  const auto quality = [](TimeModel time) {
    const auto events = choose_events("idq_uops_not_delivered.core", skylake(), "exact", time);
    return events ? events->front().quality : std::string{};
  };
  EXPECT_EQ(quality(TimeModel::instructions), "not counted: only a model of the pipeline tells it");
  EXPECT_EQ(quality(TimeModel::pipeline), "estimated: a model of the pipeline");
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
  EXPECT_NE(to_table(made).find(" skylake with l3=16M, source exact"), std::string::npos) << to_table(made);
  // What version 0.3 wrote.
  std::string old = to_json(made);
  const std::string set = R"( "set": "l3=16M",)";
  old.erase(old.find(set), set.size());
  const auto without = read_stat_document(old, "base.json");
  ASSERT_TRUE(without.has_value()) << describe(without.error());
  EXPECT_EQ(without->set, "");
  EXPECT_NE(to_table(*without).find(" skylake, source exact"), std::string::npos);
}

TEST(StatDocument, HasNoNumberForWhatTheSourceCannotCount) {
  const auto events = choose_events("branch-load-misses", vpmu::describe(vpmu::Generation::nehalem), "exact");
  const auto counts = read_perf_counts("0\t\tbranch-load-misses\t1\t100.00\n", *events);
  ASSERT_TRUE(counts.has_value());
  EXPECT_FALSE(counts->front().value.has_value());
  const std::string text = to_json(document(*counts));
  EXPECT_NE(text.find("\"value\": \"<not counted>\""), std::string::npos) << text;
  const auto read = read_stat_document(text, "base.json");
  ASSERT_TRUE(read.has_value()) << describe(read.error());
  EXPECT_FALSE(read->events.front().value.has_value());
  // What version 0.2 wrote.
  std::string old = text;
  old.replace(old.find("\"<not counted>\""), 15, "0");
  EXPECT_FALSE(read_stat_document(old, "base.json")->events.front().value.has_value());
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
  none.value.reset();
  const auto done = compare(document({none}), document({none, count("b", 5)}), {});
  StatCount lost = count("c", 0);
  lost.value.reset();
  for (const auto& other : {compare(document({lost}), document({count("c", 9)}), {}),
                            compare(document({count("c", 9)}), document({lost}), {})}) {
    EXPECT_FALSE(other.rose) << "there is no number to compare with";
    EXPECT_NE(other.report.find("<not counted>"), std::string::npos) << other.report;
  }
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
  for (auto member : {&StatDocument::model, &StatDocument::accel, &StatDocument::source, &StatDocument::time,
                      &StatDocument::set, &StatDocument::kernel}) {
    StatDocument other = base;
    other.*member = "other";
    const auto done = check_comparable(base, other);
    ASSERT_FALSE(done.has_value());
    EXPECT_NE(describe(done.error()).find("not other"), std::string::npos);
  }
  StatDocument without = base;
  without.set.clear();
  EXPECT_EQ(describe(check_comparable(base, without).error()),
            "the base has another --set: l3=16M, not none; make a new base with --json");
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
