#include "model/model.hpp"
#include "sources/delivery.hpp"
#include "stat/comparison.hpp"
#include "stat/counts.hpp"
#include "stat/event_list.hpp"
#include "stat/events.hpp"
#include "stat/formats.hpp"
#include "stat/kernel_events.hpp"
#include "stat/metrics.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
  for (const char* other : {"sched:sched_switch", "cpu/what=1/", "msr/tsc/", "duration_time", "r1"})
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
  for (const char* list : {"", "cycles,", "{cycles", "{cycles}u", "{{cycles},loads}", "{}", "cycles,cycles",
                           "cycles loads", "L1-dcache-stores-loads", "LLC-x", "nothing*", "{a,b}"})
    EXPECT_FALSE(choose_events(list, skylake(), "exact").has_value()) << list;
  EXPECT_EQ(describe(choose_events("instruction:u", skylake(), "exact").error()),
            "skylake has no event instruction:u; do you mean instructions?");
  EXPECT_EQ(describe(choose_events("something", skylake(), "exact").error()),
            "skylake has no event something; see `vpmu events`");
}

std::string names_of(std::string_view list) {
  const auto names = split_event_list(list, skylake());
  return names ? fmt::format("{}", fmt::join(*names, " ")) : describe(names.error());
}

TEST(StatEvents, AGroupsModifierIsThatOfEach) {
  EXPECT_EQ(names_of("{instructions,branches}:u,loads"), "instructions:u branches:u loads");
  EXPECT_EQ(names_of("{cpu/event=0xc0,umask=1/,r00c4:k}:u"), "cpu/event=0xc0,umask=1/u r00c4:ku");
  EXPECT_EQ(names_of("{cycles}"), "cycles");
}

TEST(StatEvents, APatternStandsForAllThatMatch) {
  EXPECT_EQ(names_of("br_inst_retired.near_*:u"),
            "br_inst_retired.near_call:u br_inst_retired.near_return:u br_inst_retired.near_taken:u");
  EXPECT_EQ(names_of("l1-DCACHE-load*"), "L1-dcache-loads L1-dcache-load-misses");
  EXPECT_EQ(names_of("{l1-dcache-load?}:k"), "L1-dcache-loads:k");
}

/// What the VMM programs for it: PERFEVTSEL, or "perf" if only the guest's can count it.
std::string programmed(const std::string& name, const vpmu::GenerationDesc& generation = skylake()) {
  const auto events = choose_events(name, generation, "exact");
  if (!events) return describe(events.error());
  const auto* const counted = std::get_if<TaskEvent>(&events->front().beside);
  if (counted == nullptr) return std::holds_alternative<SoftwareEvent>(events->front().beside) ? "software" : "perf";
  return fmt::format("{:x}{}{}", counted->select, counted->offcore ? fmt::format(" {:x}", *counted->offcore) : "",
                     counted->frontend ? fmt::format(" frontend {:x}", *counted->frontend) : "");
}

// IA32_PERFEVTSELx: USR is bit 16, OS bit 17. SDM 3B figure 18-6.
TEST(StatEvents, TheVmmProgramsWhatLinuxWould) {
  EXPECT_EQ(programmed("instructions"), "300c0");
  EXPECT_EQ(programmed("instructions:u"), "100c0");
  EXPECT_EQ(programmed("instructions:k"), "200c0");
  EXPECT_EQ(programmed("instructions:ppu"), "100c0");
  EXPECT_EQ(programmed("cpu/event=0xc2,umask=1,cmask=16,inv/k"), "108201c2");
  EXPECT_EQ(programmed("cpu/cache-misses/u"), "1412e");
  EXPECT_EQ(programmed("ref-cycles:u"), "10000") << "a fixed counter's";
  EXPECT_EQ(programmed("inst_retired.any"), "300c0") << "of a general-purpose counter, too";
  EXPECT_EQ(programmed("offcore_response.demand_data_rd.any_response:u"), "101b7 10001");
  EXPECT_EQ(programmed("frontend_retired.dsb_miss"), "301c6 frontend 11");
  EXPECT_EQ(programmed("context-switches"), "software");
  for (const char* name :
       {"page-faults", "sched:sched_switch", "mem_trans_retired.load_latency_gt_4", "instructions:H"})
    EXPECT_EQ(programmed(name), "perf") << name;
  EXPECT_EQ(programmed("mem_trans_retired.precise_store", vpmu::describe(vpmu::Generation::sandy_bridge)), "perf");
}

TEST(StatMetrics, AreThoseOfTheModel) {
  const auto& nehalem = vpmu::describe(vpmu::Generation::nehalem);
  EXPECT_EQ(choose_metrics("ipc,topdownl1", skylake())->size(), 5U);
  EXPECT_EQ(choose_metrics("TMA_retiring,TopdownL1", skylake())->size(), 4U);
  EXPECT_FALSE(choose_metrics("topdownl1", nehalem).has_value());
  EXPECT_FALSE(choose_metrics("GHz", skylake()).has_value());
  for (const vpmu::GenerationDesc* generation : vpmu::all_generations()) {
    const auto metrics = choose_metrics("IPC,CPI", *generation);
    ASSERT_TRUE(metrics.has_value());
    EXPECT_EQ(events_of(*metrics, std::vector<std::string>{"cycles"}), std::vector<std::string>{"instructions"});
  }
}

// 4 slots a cycle: 400, of which 100 are not filled, 120 are of micro-operations that retire, 30 and 4 * 5 are lost.
TEST(StatMetrics, FollowFromTheCounts) {
  StatDocument made = document({count("cycles", 100), count("instructions", 150), count("uops_issued.any", 150),
                                count("uops_retired.retire_slots", 120), count("idq_uops_not_delivered.core", 100),
                                count("int_misc.recovery_cycles", 5)});
  const auto names = choose_metrics("IPC,CPI,TopdownL1", skylake());
  made.time = "pipeline";
  std::string text;
  for (const StatMetric& metric : compute_metrics(*names, made)) text += value_of(metric) + metric.unit + ' ';
  EXPECT_EQ(text, "1.50 0.67 25.00% 12.50% 30.00% 32.50% ");
  made.time = "instructions";
  EXPECT_EQ(value_of(compute_metrics(*names, made).front()), "<not counted>") << "a cycle is an instruction";
  made.time = "pipeline";
  made.events[0].value = 0;
  EXPECT_EQ(value_of(compute_metrics(*names, made).front()), "<not counted>");
}

TEST(StatFormats, AreThoseOfPerf) {
  StatDocument made = document({count("cycles:u", 100), count("lost", 0)});
  made.events[0].running_ns = made.events[0].enabled_ns = 5000;
  made.events[1].value.reset();
  made.metrics = {{.name = "tma_retiring", .unit = "%", .value = 12.345}, {.name = "IPC", .unit = "", .value = 2}};
  EXPECT_EQ(to_fields(made, ";"),
            "100;;cycles:u;5000;100.00;;\n<not counted>;;lost;0;100.00;;\n;;;;;12.35;% tma_retiring\n;;;;;2.00;IPC\n");
  EXPECT_EQ(
      to_json_lines(made),
      "{\"counter-value\":\"100\",\"unit\":\"\",\"event\":\"cycles:u\",\"event-runtime\":5000,\"pcnt-running\":100.0}\n"
      "{\"counter-value\":\"<not "
      "counted>\",\"unit\":\"\",\"event\":\"lost\",\"event-runtime\":0,\"pcnt-running\":100.0}\n"
      "{\"metric-value\":\"12.35\",\"metric-unit\":\"% tma_retiring\"}\n"
      "{\"metric-value\":\"2.00\",\"metric-unit\":\"IPC\"}\n");
  made.runs = 3;
  made.events[0].deviation = 1.5;
  EXPECT_EQ(to_fields(made, ",").substr(0, 34), "100,,cycles:u,1.50%,5000,100.00,,\n");
  EXPECT_NE(to_table(made).find("( +-  1.50% )"), std::string::npos) << to_table(made);
}

TEST(StatCounts, TheMeanOfRunsHasItsDeviation) {
  const auto mean = mean_of(std::vector<std::vector<StatCount>>{{count("a", 10)}, {count("a", 20)}, {count("a", 30)}});
  EXPECT_EQ(mean.front().value, 20U);
  EXPECT_NEAR(mean.front().deviation, 28.87, 0.01) << "10 / sqrt(3) of 20";
  EXPECT_EQ(mean_of(std::vector<std::vector<StatCount>>{{count("a", 7)}}).front().deviation, 0);
}

TEST(StatCounts, TimeIsInNanoseconds) {
  const auto events = choose_events("task-clock,cycles,cs", skylake(), "exact");
  const auto counts = counts_of({.events = {77}, .switches = 3, .ticks = 2'500'001}, *events, 2'500'000);
  EXPECT_EQ(counts.at(0).value, 1'000'000U);
  EXPECT_EQ(counts.at(0).unit, "ns");
  EXPECT_EQ(counts.at(1).value, 77U);
  EXPECT_EQ(counts.at(1).running_ns, 1'000'000U);
  EXPECT_EQ(counts.at(2).value, 3U);
  const auto of_perf = read_perf_counts("0.22\tmsec\ttask-clock\t1\t100.00\n", std::vector{events->front()});
  ASSERT_TRUE(of_perf.has_value());
  EXPECT_EQ(of_perf->front().value, 220'000U);
  EXPECT_EQ(of_perf->front().unit, "ns");
}

TEST(StatEvents, AsManyAtOnceAsThereAreCounters) {
  const auto events = choose_events("instructions:u,branches,loads,stores,cycles,cache-misses", skylake(), "exact");
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
  EXPECT_NE(to_text(done).find("new"), std::string::npos);
  EXPECT_NE(to_text(done).find("missing"), std::string::npos);
  EXPECT_EQ(to_text(done).find("environment"), std::string::npos);
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
    EXPECT_NE(to_text(other).find("<not counted>"), std::string::npos) << to_text(other);
  }
  EXPECT_FALSE(done.rose);
  EXPECT_NE(to_text(done).find("<not counted>      <not counted>  \n"), std::string::npos) << to_text(done);
  EXPECT_EQ(to_text(done).find("same"), std::string::npos) << to_text(done);
}

// What perf does in the guest for each event is the kernel's work; what the VMM does is nobody's.
TEST(StatComparison, OtherEventsMatterToPerfAlone) {
  for (const auto& [counter, matters] : {std::pair{"perf", true}, std::pair{"vmm", false}}) {
    StatDocument now = document({count("fresh", 1)});
    now.counter = counter;
    EXPECT_EQ(to_text(compare(document({count("old", 1)}), now, {})).find("other events") != std::string::npos,
              matters);
  }
}

TEST(StatComparison, IsATableForPeopleAndADocumentForPrograms) {
  const auto done =
      compare(document({count("a|b", 100), count("old", 1)}), document({count("a|b", 111)}), *read_limits({"10"}));
  EXPECT_EQ(to_markdown(done),
            "- The base has other events. What perf itself does for them is in the kernel's counts, too.\n\n"
            "| event | base | now | change |\n|---|---:|---:|---|\n"
            "| a\\|b | 100 | 111 | **+11 (+11 %), over the limit of 10 %** |\n| old | 1 |  | missing |\n");
  const auto json = nlohmann::json::parse(to_json(done));
  EXPECT_TRUE(json.at("rose"));
  EXPECT_EQ(json.at("events").at(0).at("now"), 111);
  EXPECT_EQ(json.at("events").at(0).at("over_limit_percent"), 10);
  EXPECT_TRUE(json.at("events").at(1).at("now").is_null());
}

StatDocument recorded(std::vector<StatFunction> functions, std::vector<StatFile> files = {}) {
  StatDocument of = document({count("a", 100), count("b", 7)});
  of.functions = std::move(functions);
  of.files = std::move(files);
  return of;
}

TEST(StatComparison, SaysWhichFunctionsHaveChanged) {
  const StatDocument base = recorded({{"same", "/1/prog", {{"a", 50}}},
                                      {"f<int>", "/1/prog", {{"a", 10}, {"b", 3}}},
                                      {"gone", "/lib/l.so", {{"a", 9}}}});
  const StatDocument now = recorded({{"same", "/2/prog", {{"a", 50}}},
                                     {"f<int>", "/2/prog", {{"a", 15}, {"b", 4}}},
                                     {"come", "[kernel]", {{"a", 1}}}});
  const auto done = compare(base, now, {});
  ASSERT_EQ(done.functions.size(), 4U);
  const auto is = [&done](std::size_t n, const char* event, const char* function, std::uint64_t old,
                          std::uint64_t fresh) {
    const ComparedFunction& f = done.functions[n];
    EXPECT_EQ(std::tuple(f.event, f.function, f.base, f.now), std::tuple(event, function, old, fresh)) << n;
  };
  is(0, "a", "gone", 9, 0);
  is(1, "a", "f<int>", 10, 15);
  is(2, "a", "come", 0, 1);
  is(3, "b", "f<int>", 3, 4);
  EXPECT_NE(to_text(done).find("+5 (+50 %)                    f<int>  /2/prog\n"), std::string::npos) << to_text(done);
  EXPECT_NE(to_markdown(done).find("| f\\<int\\> (/2/prog) | 10 | 15 | +5 (+50 %) |"), std::string::npos)
      << to_markdown(done);
  EXPECT_EQ(nlohmann::json::parse(to_json(done)).at("functions").at(1).at("now"), 15);
  EXPECT_TRUE(compare(base, recorded({}), {}).functions.empty()) << "one of them has none";
}

TEST(StatComparison, OfManyFunctionsTheTextsHaveTheFirst) {
  std::vector<StatFunction> before, after;
  for (std::size_t i = 0; i < most_functions + 3; ++i) {
    before.push_back({fmt::format("f{:02}", i), "prog", {{"a", 10}}});
    after.push_back({fmt::format("f{:02}", i), "prog", {{"a", 50 - i}}});
  }
  const std::string text = to_text(compare(recorded(before), recorded(after), {}));
  EXPECT_NE(text.find("f11"), std::string::npos) << text;
  EXPECT_EQ(text.find("f12"), std::string::npos) << text;
  EXPECT_NE(text.find("30                111  +81 (+270 %)                  3 more\n"), std::string::npos) << text;
}

TEST(StatComparison, SaysFirstWhichFilesDiffer) {
  const auto with = [](std::vector<StatFile> files) { return recorded({}, std::move(files)); };
  const StatFile same{"/lib/a", 5, "1"};
  const auto notes = compare(with({same, {"/lib/b", 6, "2"}, {"/old", 1, "3"}}),
                             with({same, {"/lib/b", 7, "4"}, {"/new", 1, "5"}}), {})
                         .notes;
  EXPECT_EQ(notes,
            (std::vector<std::string>{"/lib/b is another file than in the base: 7 bytes, checksum 4, not 6 and 2.",
                                      "/new was not opened in the base.", "/old was opened in the base only."}));
  EXPECT_TRUE(compare(with({same}), with({same}), {}).notes.empty());
}

// Two builds of a program, or two kernels, are compared on purpose.
TEST(StatComparison, CircumstancesAreNotesWhereTheyMayDiffer) {
  StatDocument base = document({}), now = document({});
  EXPECT_TRUE(other_circumstances(base, now).empty());
  now.kernel = "6.2";
  now.command = {"./other"};
  EXPECT_TRUE(check_same_machine(base, now).has_value());
  EXPECT_FALSE(check_comparable(base, now).has_value());
  EXPECT_EQ(other_circumstances(base, now).size(), 2U);
}

TEST(StatDocument, RecordedFunctionsComeBack) {
  StatDocument written = recorded({{"f", "/bin/p", {{"a", 1}}}, {"g", "[kernel]", {}}}, {{"/bin/p", 9, "ab"}});
  written.lost_files = 2;
  const auto read = read_stat_document(to_json(written), "x");
  ASSERT_TRUE(read.has_value()) << describe(read.error());
  EXPECT_EQ(*read, written);
  for (const char* wrong : {R"("functions": [{"function": "f", "file": "p"}])", R"("functions": [1])",
                            R"("functions": [{"function": "f", "file": "p", "counts": {"a": -1}}])",
                            R"("files": [{"path": "p", "bytes": "9", "checksum": ""}])"}) {
    std::string text = to_json(document({}));
    text.insert(1, std::string{wrong} + ",");
    EXPECT_FALSE(read_stat_document(text, "x").has_value()) << wrong;
  }
}

TEST(StatComparison, SaysThatTheEnvironmentWasAnother) {
  StatDocument now = document({});
  now.environment = "other";
  EXPECT_NE(to_text(compare(document({}), now, {})).find("another environment"), std::string::npos);
}

TEST(StatComparison, AnotherMachineOrCommandIsRefused) {
  const StatDocument base = document({});
  for (auto member : {&StatDocument::model, &StatDocument::accel, &StatDocument::source, &StatDocument::time,
                      &StatDocument::set, &StatDocument::counter, &StatDocument::kernel}) {
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
