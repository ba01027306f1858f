#include "tables/event_listing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "pmu/registry.hpp"
#include "sources/delivery.hpp"
#include "tables/event_encoding.hpp"
#include "tables/event_gaps.hpp"
#include "vpmu/generation.hpp"

namespace vmm::tool::test {
namespace {

const vpmu::EventDesc& event(std::string_view name) {
  const vpmu::EventDesc* found = vpmu::find_event(vpmu::describe(vpmu::Generation::skylake), name);
  if (found == nullptr) throw std::runtime_error{"no event " + std::string{name}};
  return *found;
}

TEST(EventEncoding, IsPerfsRawEvent) {
  EXPECT_EQ(raw_encoding(event("INST_RETIRED.ANY_P")), "r00c0");
  EXPECT_EQ(raw_encoding(event("MEM_INST_RETIRED.ALL_LOADS")), "r81d0");
  // CMASK = 10 and INV in bits 31:24 and 23.
  EXPECT_EQ(raw_encoding(event("INST_RETIRED.TOTAL_CYCLES_PS")), "ra8001c0");
  // EDGE is bit 18, ANY bit 21.
  EXPECT_EQ(raw_encoding(event("CPU_CLK_UNHALTED.RING0_TRANS")), "r104003c");
  EXPECT_EQ(raw_encoding(event("CPU_CLK_UNHALTED.THREAD_P_ANY")), "r20003c");
  EXPECT_EQ(raw_encoding(event("CPU_CLK_UNHALTED.REF_TSC")), "fixed 2");
}

TEST(EventEncoding, IsWhatPerfTakes) {
  EXPECT_EQ(perf_syntax(event("INST_RETIRED.ANY_P")), "cpu/event=0xc0,umask=0x0/");
  EXPECT_EQ(perf_syntax(event("RS_EVENTS.EMPTY_END")), "cpu/event=0x5e,umask=0x1,cmask=1,inv=1,edge=1/");
  EXPECT_EQ(perf_syntax(event("CPU_CLK_UNHALTED.THREAD")), "cycles");
}

TEST(EventEncoding, NamesTheExtraMsrAsPerfDoes) {
  EXPECT_EQ(perf_syntax(event("MEM_TRANS_RETIRED.LOAD_LATENCY_GT_128")), "cpu/event=0xcd,umask=0x1,ldlat=0x80/p");
  EXPECT_EQ(perf_syntax(event("FRONTEND_RETIRED.DSB_MISS")), "cpu/event=0xc6,umask=0x1,frontend=0x11/");
  EXPECT_EQ(perf_syntax(event("OFFCORE_RESPONSE.DEMAND_CODE_RD.ANY_RESPONSE")),
            "cpu/event=0xb7,umask=0x1,offcore_rsp=0x10004/");
}

TEST(EventEncoding, ListsCountersShortly) {
  EXPECT_EQ(counter_list(event("INST_RETIRED.ANY_P")), "0-7");
  EXPECT_EQ(counter_list(event("INST_RETIRED.PREC_DIST")), "1");
  EXPECT_EQ(counter_list(event("INST_RETIRED.TOTAL_CYCLES_PS")), "0,2,3");
  EXPECT_EQ(counter_list(event("INST_RETIRED.ANY")), "fixed 0");
}

// Rule P24.
TEST(EventListing, TellsWhereDocumentsDisagree) {
  const auto text = list_events({.model = "skylake", .format = ListingFormat::wide});
  ASSERT_TRUE(text);
  std::istringstream lines{*text};
  std::map<std::string, std::string> precise;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words{line};
    std::string name, raw, ability;
    words >> name >> raw >> ability;
    precise[name] = ability;
  }
  EXPECT_EQ(precise["UOPS_RETIRED.ALL"], "disputed");
  EXPECT_EQ(precise["BR_INST_RETIRED.ALL_BRANCHES"], "disputed");
  EXPECT_EQ(precise["BR_INST_RETIRED.CONDITIONAL"], "yes");
  EXPECT_EQ(precise["CPU_CLK_UNHALTED.THREAD_P"], "no");
}

TEST(EventListing, HasALinePerEvent) {
  const auto text = list_events({.model = "skylake"});
  ASSERT_TRUE(text) << describe(text.error());
  const auto lines = static_cast<std::size_t>(std::ranges::count(*text, '\n'));
  EXPECT_EQ(lines, vpmu::describe(vpmu::Generation::skylake).events.size() + 1);
}

TEST(EventListing, SaysHowTheSourceDelivers) {
  const auto text = list_events({.model = "skylake", .source = "clock", .format = ListingFormat::json});
  ASSERT_TRUE(text) << describe(text.error());
  std::map<std::string, std::string> delivery;
  const nlohmann::json listing = nlohmann::json::parse(*text);
  for (const nlohmann::json& e : listing.at("events"))
    delivery[e.at("name")] = e.at("sources").at("clock").at("delivery");
  EXPECT_EQ(delivery["CPU_CLK_UNHALTED.THREAD"], "estimated");
  EXPECT_EQ(delivery["INST_RETIRED.ANY_P"], "estimated");
  EXPECT_EQ(delivery["MEM_INST_RETIRED.ALL_LOADS"], "not counted");
  EXPECT_EQ(delivery["BACLEARS.ANY"], "not counted");
}

TEST(EventListing, HasARuleForEverySource) {
  EXPECT_FALSE(all_sources().empty());
  for (const SourceRow& source : all_sources())
    EXPECT_NE(delivery_rule(source.traits.name), nullptr) << source.traits.name;
  EXPECT_EQ(delivery_rule("sundial"), nullptr);
}

TEST(EventListing, SaysWhatASingleStepShows) {
  const DeliveryRule step = delivery_rule("step");
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step(vpmu::describe(vpmu::Generation::skylake), event("MEM_INST_RETIRED.ALL_LOADS")).delivery,
            Delivery::exact);
  EXPECT_EQ(step(vpmu::describe(vpmu::Generation::skylake), event("INST_RETIRED.ANY_P")).delivery, Delivery::exact);
  EXPECT_EQ(step(vpmu::describe(vpmu::Generation::skylake), event("INST_RETIRED.TOTAL_CYCLES_PS")).delivery,
            Delivery::estimated);
  EXPECT_EQ(step(vpmu::describe(vpmu::Generation::skylake), event("CPU_CLK_UNHALTED.THREAD")).delivery,
            Delivery::estimated);
  EXPECT_EQ(step(vpmu::describe(vpmu::Generation::skylake), event("MEM_LOAD_RETIRED.L1_HIT")).delivery, Delivery::none);
  EXPECT_EQ(step(vpmu::describe(vpmu::Generation::skylake), event("BACLEARS.ANY")).delivery, Delivery::none);
}

// Prefetchers work, and page walks are loads, where a pipeline keeps the time.
TEST(EventListing, SaysWhatNeedsTheTimeOfAPipeline) {
  const DeliveryRule by_instructions = delivery_rule("exact"),
                     by_pipeline = delivery_rule("exact", TimeModel::pipeline);
  const std::string model = "a model of caches and TLBs";
  const auto expect = [&](vpmu::Generation of, std::string_view name, bool is_always_told) {
    const auto& generation = vpmu::describe(of);
    const vpmu::EventDesc* const found = find_event(generation, name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(by_pipeline(generation, *found).basis, model) << name;
    const EventDelivery without = by_instructions(generation, *found);
    EXPECT_EQ(without.basis, is_always_told ? model : "only a model of the pipeline tells it") << name;
    EXPECT_EQ(without.delivery, is_always_told ? Delivery::estimated : Delivery::none) << name;
  };
  using enum vpmu::Generation;
  expect(haswell, "L2_RQSTS.ALL_PF", false);
  expect(haswell, "L2_RQSTS.ALL_DEMAND_DATA_RD", true);
  expect(haswell, "L2_RQSTS.REFERENCES", true);
  expect(haswell, "LOAD_HIT_PRE.HW_PF", false);
  expect(haswell, "PAGE_WALKER_LOADS.DTLB_MEMORY", false);
  expect(sandy_bridge, "HW_PRE_REQ.DL1_MISS", false);
  expect(skylake_sp, "OFFCORE_RESPONSE.PF_L2_DATA_RD.ANY_RESPONSE", false);
  expect(skylake_sp, "OFFCORE_RESPONSE.ALL_DATA_RD.ANY_RESPONSE", true);
  const auto& server = vpmu::describe(skylake_sp);
  const vpmu::EventDesc* const rfo = find_event(server, "OFFCORE_RESPONSE.PF_L2_RFO.ANY_RESPONSE");
  ASSERT_NE(rfo, nullptr);
  EXPECT_EQ(by_pipeline(server, *rfo).delivery, Delivery::none) << "nobody makes such requests";
}

// Without a pipeline there is no number for what only it tells; with one, its quantities, its cycles and what is in
// them.
TEST(EventListing, SaysWhatAPipelineTells) {
  const auto& skylake = vpmu::describe(vpmu::Generation::skylake);
  const auto of = [&](std::string_view name, vpmu::PipelineQuantities told) {
    const EventDelivery d = exact_delivery(skylake, event(name), told);
    return std::string{to_string(d.delivery)} + ", " + d.basis;
  };
  const auto all = vpmu::all_pipeline_quantities;
  const std::string pipeline = "estimated, a model of the pipeline";
  for (const char* name : {"IDQ_UOPS_NOT_DELIVERED.CORE", "IDQ_UOPS_NOT_DELIVERED.CYCLES_FE_WAS_OK",
                           "CYCLE_ACTIVITY.STALLS_MEM_ANY", "EXE_ACTIVITY.2_PORTS_UTIL", "IDQ.MS_SWITCHES"}) {
    EXPECT_EQ(of(name, {}), "not counted, only a model of the pipeline tells it") << name;
    EXPECT_EQ(of(name, all), pipeline) << name;
    EXPECT_EQ(of(name, vpmu::PipelineQuantities::of(vpmu::PipelineQuantity::issued)),
              "not counted, the model of the pipeline does not tell it");
  }
  const DeliveryRule by_pipeline = delivery_rule("exact", TimeModel::pipeline);
  ASSERT_NE(by_pipeline, nullptr);
  EXPECT_EQ(by_pipeline(skylake, event("IDQ_UOPS_NOT_DELIVERED.CORE")).basis, "a model of the pipeline");
  EXPECT_EQ(by_pipeline(skylake, event("LSD.UOPS")).delivery, Delivery::none);
  EXPECT_EQ(delivery_rule("exact")(skylake, event("IDQ_UOPS_NOT_DELIVERED.CORE")).delivery, Delivery::none);
  EXPECT_EQ(delivery_rule("clock", TimeModel::pipeline), delivery_rule("clock"));
  EXPECT_EQ(of("UOPS_ISSUED.ANY", {}), "estimated, one uop per instruction");
  EXPECT_EQ(of("CPU_CLK_UNHALTED.THREAD_P", {}), "estimated, one cycle per instruction");
  for (const char* name : {"UOPS_ISSUED.ANY", "UOPS_EXECUTED.STALL_CYCLES", "UOPS_RETIRED.RETIRE_SLOTS",
                           "CPU_CLK_UNHALTED.THREAD_P", "CPU_CLK_UNHALTED.REF_XCLK", "INST_RETIRED.TOTAL_CYCLES_PS"})
    EXPECT_EQ(of(name, all), pipeline) << name;
  for (const char* name : {"INST_RETIRED.ANY_P", "MEM_LOAD_RETIRED.L1_MISS", "BR_MISP_RETIRED.ALL_BRANCHES",
                           "BACLEARS.ANY", "FRONTEND_RETIRED.DSB_MISS"})
    EXPECT_EQ(of(name, all), of(name, {})) << name;
}

// A bubble that the model cannot make is not an estimate of one.
TEST(EventListing, SaysWhichBubblesAreTooLongForTheModel) {
  const DeliveryRule exact = delivery_rule("exact");
  ASSERT_NE(exact, nullptr);
  const auto& client = vpmu::describe(vpmu::Generation::skylake);
  const auto& server = vpmu::describe(vpmu::Generation::skylake_sp);
  const auto of = [&](const vpmu::GenerationDesc& g, std::string_view name) {
    const vpmu::EventDesc* const e = vpmu::find_event(g, name);
    EXPECT_NE(e, nullptr) << name;
    return e == nullptr ? Delivery::nearest : exact(g, *e).delivery;
  };
  EXPECT_EQ(of(client, "FRONTEND_RETIRED.LATENCY_GE_128"), Delivery::estimated);
  EXPECT_EQ(of(client, "FRONTEND_RETIRED.LATENCY_GE_256"), Delivery::none) << "232 cycles at most";
  EXPECT_EQ(of(client, "FRONTEND_RETIRED.LATENCY_GE_512"), Delivery::none);
  EXPECT_EQ(of(server, "FRONTEND_RETIRED.LATENCY_GE_256"), Delivery::estimated) << "262 cycles at most";
  EXPECT_EQ(of(server, "FRONTEND_RETIRED.LATENCY_GE_512"), Delivery::none);
  EXPECT_EQ(of(client, "FRONTEND_RETIRED.DSB_MISS"), Delivery::estimated);
  vpmu::uarch::ProfileChanges slow_memory;
  ASSERT_FALSE(slow_memory.add("dram=240"));
  const auto changed = delivery_rule("exact", TimeModel::instructions, slow_memory);
  EXPECT_EQ(changed(client, *vpmu::find_event(client, "FRONTEND_RETIRED.LATENCY_GE_256")).delivery,
            Delivery::estimated);
  EXPECT_EQ(changed(client, *vpmu::find_event(client, "FRONTEND_RETIRED.LATENCY_GE_512")).delivery, Delivery::none);
}

TEST(EventListing, NamesAnUnknownModelAndTheKnownOnes) {
  const auto text = list_events({.model = "pentium"});
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().kind, ErrorKind::usage);
  const std::string said = describe(text.error());
  EXPECT_TRUE(said.starts_with("unknown model 'pentium'; known models: nehalem, ")) << said;
  for (const MachineModel& m : all_machine_models())
    EXPECT_NE(said.find(" " + std::string{m.name}), std::string::npos) << m.name;
}

TEST(EventListing, TakesEveryMachinesName) {
  EXPECT_EQ(all_machine_models().size(), 24U);
  for (const MachineModel& m : all_machine_models()) {
    const auto text = list_events({.model = m.name, .format = ListingFormat::markdown});
    ASSERT_TRUE(text) << m.name;
    EXPECT_TRUE(text->starts_with("# Events of " + std::string{vpmu::describe(m.generation).name} + "\n")) << m.name;
  }
}

// The exact source delivers every precise event, or names a reason; fewer than a tenth of the events need one.
TEST(EventGaps, AreFewAndHaveReasonsOnEveryGeneration) {
  for (const vpmu::GenerationDesc* g : vpmu::all_generations()) {
    const auto gaps = event_gaps(*g);
    EXPECT_GT(precise_events(*g), 30U) << g->name;
    EXPECT_LT(gaps.size() * 10, precise_events(*g)) << list_gaps({g});
    for (const EventGap& gap : gaps) EXPECT_FALSE(gap.reason.empty()) << g->name << ' ' << gap.event->name;
  }
}

TEST(EventListing, NamesAnUnknownSourceAndTheKnownOnes) {
  const auto text = list_events({.model = "skylake", .source = "sundial"});
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().kind, ErrorKind::usage);
  EXPECT_TRUE(describe(text.error()).starts_with("unknown source 'sundial'; known sources: clock"))
      << describe(text.error());
}

// For the documentation's web site: a row for each event, with a cell for each column.
TEST(EventListing, GivesEachEventARowInMarkdown) {
  ASSERT_FALSE(vpmu::all_generations().empty());
  for (const vpmu::GenerationDesc* generation : vpmu::all_generations()) {
    SCOPED_TRACE(generation->name);
    const auto printed = list_events({.model = generation->name, .format = ListingFormat::markdown});
    ASSERT_TRUE(printed) << describe(printed.error());
    std::istringstream lines{*printed};
    std::vector<std::string> rows;
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("| ")) rows.push_back(line);
    ASSERT_EQ(rows.size(), 1 + generation->events.size());
    for (std::size_t n = 0; n < generation->events.size(); ++n) {
      EXPECT_TRUE(rows[n + 1].starts_with("| " + std::string{generation->events[n].name} + " | ")) << rows[n + 1];
      EXPECT_EQ(std::ranges::count(rows[n + 1], '|'), std::ranges::count(rows[0], '|')) << rows[n + 1];
      EXPECT_LE(rows[n + 1].size(), 200U) << "no page is as wide";
    }
  }
}

}  // namespace
}  // namespace vmm::tool::test
