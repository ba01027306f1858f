#include "perf/host_events.hpp"

#include <gtest/gtest.h>
#include <linux/perf_event.h>

#include "sources/delivery.hpp"
#include "vpmu/generation.hpp"

namespace vmm::test {
namespace {

using vpmu::Generation;
using Match = EventTranslation::Match;

const vpmu::GenerationDesc& skylake = vpmu::describe(Generation::skylake);
const HostCpu on_skylake{.vendor = HostVendor::intel, .generation = Generation::skylake};
const HostCpu on_haswell{.vendor = HostVendor::intel, .generation = Generation::haswell};
const HostCpu on_newer{.vendor = HostVendor::intel, .generation = {}};
const HostCpu on_amd{.vendor = HostVendor::amd, .generation = {}};

/// The guest's event of that name, as a counter would select it.
GuestEvent event(std::string_view name) {
  const vpmu::EventDesc* e = vpmu::find_event(skylake, name);
  EXPECT_NE(e, nullptr) << name;
  if (e == nullptr) return {};
  return {.counts = e->counts,
          .spec = {.code = e->code,
                   .umask = e->umask,
                   .cmask = e->cmask,
                   .usr = true,
                   .os = true,
                   .edge = e->edge,
                   .any = e->any,
                   .inv = e->inv},
          .fixed = e->code == 0,
          .per_cycle = e->cmask != 0 || e->edge};
}

TEST(HostCpu, IsToldByVendorAndSignature) {
  EXPECT_EQ(host_cpu("GenuineIntel", 0x506E3).generation, Generation::skylake);
  EXPECT_EQ(host_cpu("GenuineIntel", 0x50657).generation, Generation::skylake_sp) << "any stepping";
  EXPECT_EQ(host_cpu("GenuineIntel", 0x806F8).vendor, HostVendor::intel) << "Sapphire Rapids";
  EXPECT_FALSE(host_cpu("GenuineIntel", 0x806F8).generation);
  EXPECT_EQ(host_cpu("AuthenticAMD", 0x506E3).vendor, HostVendor::amd);
  EXPECT_FALSE(host_cpu("AuthenticAMD", 0x506E3).generation) << "AMD numbers its models by itself";
  EXPECT_EQ(host_cpu("HygonGenuine", 0x900F01).vendor, HostVendor::amd);
  EXPECT_EQ(host_cpu("CentaurHauls", 0x506E3).vendor, HostVendor::other);
}

TEST(HostEvents, SameGenerationCountsByTheGuestsOwnCode) {
  const auto known = translate(on_skylake, skylake, event("MEM_INST_RETIRED.ALL_LOADS"));
  EXPECT_EQ(known.match, Match::same);
  EXPECT_EQ(known.event, (HostEvent{PERF_TYPE_RAW, 0x81D0}));
  const auto unmodelled = translate(on_skylake, skylake, event("BACLEARS.ANY"));
  EXPECT_EQ(unmodelled.match, Match::same) << "no source but this can count it";
  EXPECT_EQ(unmodelled.event.config, 0x01E6U);
  // CMASK 10 and INV: bits 31:24 and 23; EDGE is bit 18.
  EXPECT_EQ(translate(on_skylake, skylake, event("INST_RETIRED.TOTAL_CYCLES_PS")).event.config, 0x0A8001C0U);
  EXPECT_EQ(translate(on_skylake, skylake, event("RS_EVENTS.EMPTY_END")).event.config, 0x0184015EU);
}

TEST(HostEvents, ClocksOfTheTscComeFromTheFixedCounterThatHasNoCode) {
  for (const HostCpu& host : {on_skylake, on_newer}) {
    EXPECT_EQ(translate(host, skylake, event("CPU_CLK_UNHALTED.REF_TSC")).event,
              (HostEvent{PERF_TYPE_HARDWARE, PERF_COUNT_HW_REF_CPU_CYCLES}));
  }
  EXPECT_EQ(translate(on_skylake, skylake, event("CPU_CLK_UNHALTED.REF_XCLK")).event,
            (HostEvent{PERF_TYPE_RAW, 0x013C}));
  const EventTranslation scaled = translate(on_newer, skylake, event("CPU_CLK_UNHALTED.REF_XCLK"));
  EXPECT_EQ(scaled.event, (HostEvent{PERF_TYPE_HARDWARE, PERF_COUNT_HW_REF_CPU_CYCLES}));
  EXPECT_EQ(scaled.of_tsc, (vpmu::Frequency{.khz = 24'000})) << "the core crystal clock";
}

TEST(HostEvents, FixedCountersAreArchitectural) {
  for (const HostCpu& host : {on_skylake, on_haswell, on_newer}) {
    EXPECT_EQ(translate(host, skylake, event("INST_RETIRED.ANY")).event, (HostEvent{PERF_TYPE_RAW, 0xC0}));
    EXPECT_EQ(translate(host, skylake, event("CPU_CLK_UNHALTED.THREAD")).event, (HostEvent{PERF_TYPE_RAW, 0x3C}));
  }
}

TEST(HostEvents, OtherModelledHostCountsByItsOwnCodeForTheSame) {
  const auto loads = translate(on_haswell, skylake, event("MEM_INST_RETIRED.ALL_LOADS"));
  EXPECT_EQ(loads.match, Match::nearest) << "micro-operations, not instructions";
  EXPECT_EQ(loads.event.config, 0x81D0U);
  EXPECT_EQ(loads.about, "MEM_UOPS_RETIRED.ALL_LOADS");
  EXPECT_EQ(translate(on_haswell, skylake, event("HW_INTERRUPTS.RECEIVED")).match, Match::none)
      << "unmodelled events have no meaning to look up";
}

TEST(HostEvents, AnotherPipelineIsTheNearest) {
  const auto slots = translate(on_haswell, skylake, event("IDQ_UOPS_NOT_DELIVERED.CORE"));
  EXPECT_EQ(slots.match, Match::nearest);
  EXPECT_EQ(slots.event.config, 0x019CU);
  EXPECT_EQ(translate(on_skylake, skylake, event("IDQ_UOPS_NOT_DELIVERED.CORE")).match, Match::same);
  EXPECT_EQ(translate(on_haswell, skylake, event("UOPS_EXECUTED.THREAD")).event.config, 0x02B1U)
      << "UOPS_EXECUTED.CORE";
}

TEST(HostEvents, NewerIntelHostCountsTheArchitecturalEventsOnly) {
  EXPECT_EQ(translate(on_newer, skylake, event("BR_MISP_RETIRED.ALL_BRANCHES")).event.config, 0xC5U);
  EXPECT_EQ(translate(on_newer, skylake, event("LONGEST_LAT_CACHE.MISS")).event.config, 0x412EU);
  const auto loads = translate(on_newer, skylake, event("MEM_INST_RETIRED.ALL_LOADS"));
  EXPECT_EQ(loads.match, Match::none);
  EXPECT_EQ(loads.about, "no architectural event");
}

TEST(HostEvents, AmdHostCountsTheNearest) {
  const auto expect = [](std::string_view name, std::uint64_t config, std::string_view amds) {
    const auto found = translate(on_amd, skylake, event(name));
    EXPECT_EQ(found.match, Match::nearest) << name;
    EXPECT_EQ(found.event, (HostEvent{PERF_TYPE_RAW, config})) << name;
    EXPECT_EQ(found.about, amds) << name;
  };
  expect("INST_RETIRED.ANY_P", 0xC0, "ex_ret_instr");
  expect("BR_INST_RETIRED.ALL_BRANCHES", 0xC2, "ex_ret_brn");
  expect("BR_MISP_RETIRED.ALL_BRANCHES", 0xC3, "ex_ret_brn_misp");
  expect("BR_INST_RETIRED.NEAR_TAKEN", 0xC4, "ex_ret_brn_tkn");
  expect("BR_INST_RETIRED.NEAR_RETURN", 0xC8, "ex_ret_near_ret");
  expect("CPU_CLK_UNHALTED.THREAD_P", 0x76, "ls_not_halted_cyc");
  EXPECT_EQ(translate(on_amd, skylake, event("MEM_INST_RETIRED.ALL_LOADS")).match, Match::none);
}

TEST(HostEvents, WhatNoHostCanCountIsRefusedWithTheReason) {
  for (const HostCpu& host : {on_skylake, on_newer, on_amd}) {
    for (const std::string_view name :
         {"MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", "FRONTEND_RETIRED.DSB_MISS", "CPU_CLK_UNHALTED.THREAD_P_ANY"}) {
      const auto found = translate(host, skylake, event(name));
      EXPECT_EQ(found.match, Match::none) << name;
      EXPECT_FALSE(found.about.empty()) << name;
    }
  }
  for (const HostCpu& host : {on_newer, on_amd})
    EXPECT_EQ(translate(host, skylake, event("RS_EVENTS.EMPTY_END")).match, Match::none) << "a form is its model's own";
  EXPECT_EQ(translate({}, skylake, event("INST_RETIRED.ANY_P")).about, "the events of this host's CPU are not known");
}

// The printed delivery of an event must be what the source does. Every one has a reason.
TEST(HostEvents, DeliveryTellsNoneOnlyWithAReason) {
  unsigned by_engine = 0;
  unsigned nearest = 0;
  for (const vpmu::GenerationDesc* g : vpmu::all_generations())
    for (const vpmu::EventDesc& e : g->events)
      for (const HostedRule& r : delivery_rules()) {
        if (r.source != "perf") continue;
        const EventDelivery d = r.rule(*g, e);
        EXPECT_FALSE(d.basis.empty()) << r.name << ' ' << e.name;
        by_engine += d.basis.starts_with("by the engine") ? 1U : 0U;
        nearest += d.delivery == Delivery::nearest ? 1U : 0U;
        EXPECT_TRUE(d.delivery != Delivery::nearest || r.name == "perf, AMD host") << r.name << ' ' << e.name;
      }
  EXPECT_GT(by_engine, 100U);
  EXPECT_GT(nearest, 50U);
}

}  // namespace
}  // namespace vmm::test
