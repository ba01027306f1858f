#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "bts_area.hpp"
#include "generation_name.hpp"
#include "recording_env.hpp"
#include "vpmu/bts.hpp"
#include "vpmu/pmu.hpp"

// Branch trace store of branches that passed in bulk: rules B1 to B5 on every generation. SDM 3B 17.4.5, 17.4.9.

namespace vpmu::test {
namespace {

constexpr unsigned user = 3;

GuestLinear from(unsigned k) { return GuestLinear{0x1000 + 16ULL * k}; }
GuestLinear to(unsigned k) { return GuestLinear{0x9000 + 16ULL * k}; }

/// A PMU and the memory that it stores into.
struct Tracing {
  explicit Tracing(const GenerationDesc& generation) : pmu{PmuConfig{.generation = generation.generation}} {
    env.map(ds_area, page_size);
    env.map(buffer, 3 * page_size);
    EXPECT_EQ(pmu.wrmsr(msr::IA32_DS_AREA, ds_area.value()), MsrStatus::ok);
  }
  void set_area(std::uint64_t index, std::uint64_t maximum, std::uint64_t threshold) {
    const std::array words{buffer.value(), index, maximum, threshold};
    for (std::size_t n = 0; n < words.size(); ++n) env.poke(ds_area + 8 * n, words[n]);
  }
  void set_buffer(std::uint64_t records, std::uint64_t threshold) {
    set_area(buffer.value(), buffer.value() + records * BtsRecord::size, buffer.value() + threshold * BtsRecord::size);
  }
  void control(std::uint64_t value) { EXPECT_EQ(pmu.wrmsr(msr::IA32_DEBUGCTL, value), MsrStatus::ok); }
  RecordingEnv env;
  Pmu pmu;
};

class BtsInBulk : public ::testing::TestWithParam<const GenerationDesc*> {};

// Branches that pass in bulk, as branches_storable() allows, leave the same memory as branches that retire one by one,
// whatever the state of the DS area. Most branches must pass in bulk.
TEST_P(BtsInBulk, IsAsOneByOne) {
  constexpr unsigned rounds = 60, branches = 400;
  std::mt19937_64 random{7};
  const auto below = [&](std::uint64_t n) { return random() % n; };
  std::uint64_t in_bulk = 0;
  std::uint64_t pmis = 0;
  std::uint64_t lost = 0;
  std::uint64_t faults = 0;
  for (unsigned round = 0; round < rounds; ++round) {
    Tracing one{*GetParam()};
    Tracing bulk{*GetParam()};
    const std::uint64_t base = buffer.value();
    const std::uint64_t records = 3 + below(300);
    const std::uint64_t index = base + (below(4) == 0 ? below(records + 2) * BtsRecord::size + below(3) : 0);
    const std::uint64_t maximum = base + records * BtsRecord::size + below(BtsRecord::size);
    const std::uint64_t threshold = base + below(records + 20) * BtsRecord::size + below(2);
    const bool has_hole = below(3) == 0;
    const std::uint64_t control = (below(2) == 0 ? trace_with_interrupt : trace_on) |
                                  (below(6) == 0 ? dbg::BTS_OFF_USR::mask : 0) | (below(3) == 0 ? 1U : 0U);
    for (Tracing* const each : {&one, &bulk}) {
      each->set_area(index, maximum, threshold);
      each->control(control);
      if (has_hole) each->env.unmap(buffer + page_size);
    }
    for (unsigned k = 0; k < branches;) {
      const auto next = [&](unsigned n) {
        const BranchOutcome what{
            .kind = BranchKind::near_rel_jmp, .taken = true, .mispredicted = n % 3 == 0, .target_cpl = user};
        return Retirement{.ip = from(n), .next_ip = to(n), .cpl = user, .branch = what, .cycles = 1};
      };
      const std::uint64_t max = std::min<std::uint64_t>(bulk.pmu.branches_storable(user, bulk.env), 1 + below(100));
      if (max == 0) {
        one.pmu.retire(next(k), one.env);
        bulk.pmu.retire(next(k++), bulk.env);
        continue;
      }
      std::vector<PassedBranch> passed;
      for (std::uint64_t n = 0; n < max; ++n, ++k) {
        const Retirement r = next(k);
        one.pmu.retire(r, one.env);
        passed.push_back({.branch = {.from = r.ip, .to = r.next_ip, .cpl = user, .what = r.branch}, .cycles = 1});
      }
      bulk.pmu.record_branches({.branches = passed}, bulk.env);
      in_bulk += max;
    }
    for (std::uint64_t word = 0; word < 8; ++word)
      ASSERT_EQ(one.env.peek(ds_area + 8 * word), bulk.env.peek(ds_area + 8 * word)) << round << ' ' << word;
    for (std::uint64_t at = 0; at < (has_hole ? 1U : 3U) * page_size; at += 8)
      ASSERT_EQ(one.env.peek(buffer + at), bulk.env.peek(buffer + at)) << round << ' ' << at;
    const PmuStatistics& a = one.pmu.statistics();
    const PmuStatistics& b = bulk.pmu.statistics();
    ASSERT_EQ(a.branches_stored, b.branches_stored) << round;
    ASSERT_EQ(a.branches_dropped_full, b.branches_dropped_full) << round;
    ASSERT_EQ(a.branches_dropped_bounds, b.branches_dropped_bounds) << round;
    ASSERT_EQ(a.branches_dropped_fault, b.branches_dropped_fault) << round;
    ASSERT_EQ(one.env.pmis, bulk.env.pmis) << round;
    const auto top = [](const Tracing& of) { return of.pmu.rdmsr(msr::MSR_LASTBRANCH_TOS).value; };
    ASSERT_EQ(top(one), top(bulk)) << round;
    pmis += bulk.env.pmis;
    lost += b.branches_dropped_full;
    faults += b.branches_dropped_fault;
  }
  EXPECT_GT(in_bulk, rounds * 100U);
  EXPECT_GT(pmis, 0U);
  EXPECT_GT(lost, 0U);
  EXPECT_GT(faults, 0U);
}

// Code at CPL 0 may read the area after each branch: none passes in bulk. Branches that are not stored need no room.
TEST_P(BtsInBulk, IsAllowedWhereThereIsRoom) {
  Tracing t{*GetParam()};
  t.control(trace_with_interrupt);
  t.set_buffer(8, 9);
  EXPECT_EQ(t.pmu.branches_storable(0, t.env), 0U);
  EXPECT_EQ(t.pmu.branches_storable(user, t.env), 7U) << "of 8, with one more behind the last";
  t.set_buffer(8, 3);
  EXPECT_EQ(t.pmu.branches_storable(user, t.env), 2U) << "the third reaches the threshold";
  t.control(trace_with_interrupt | dbg::BTS_OFF_OS::mask);
  EXPECT_EQ(t.pmu.branches_storable(0, t.env), ~0ULL);
  t.control(1);
  EXPECT_EQ(t.pmu.branches_storable(user, t.env), ~0ULL);
}

// More branches than there is room for: those that are lost are counted, and the PMI is raised.
TEST_P(BtsInBulk, MoreThanSaidAreStoredOneByOne) {
  Tracing t{*GetParam()};
  t.control(trace_with_interrupt);
  t.set_buffer(4, 3);
  std::vector<PassedBranch> passed;
  for (unsigned k = 0; k < 6; ++k)
    passed.push_back(
        {.branch = {
             .from = from(k), .to = to(k), .cpl = user, .what = {.kind = BranchKind::near_rel_jmp, .taken = true}}});
  t.pmu.record_branches({.branches = passed, .missing = 5}, t.env);
  EXPECT_EQ(t.env.peek(ds_area + 8), buffer.value() + 4 * BtsRecord::size);
  EXPECT_EQ(t.env.peek(buffer + 3 * BtsRecord::size), from(3).value());
  EXPECT_GT(t.env.pmis, 0U);
  EXPECT_EQ(t.pmu.statistics().branches_stored, 4U);
  EXPECT_EQ(t.pmu.statistics().branches_dropped_full, 2U + 5U);
}

// After branches_storable() another vCPU may unmap the page.
TEST_P(BtsInBulk, WhatCannotBeWrittenIsCounted) {
  Tracing t{*GetParam()};
  t.control(trace_with_interrupt);
  t.set_buffer(8, 9);
  ASSERT_EQ(t.pmu.branches_storable(user, t.env), 7U);
  t.env.unmap(buffer);
  const PassedBranch one{
      .branch = {.from = from(1), .to = to(1), .cpl = user, .what = {.kind = BranchKind::near_rel_jmp, .taken = true}}};
  const std::array passed{one, one, one};
  t.pmu.record_branches({.branches = passed}, t.env);
  EXPECT_EQ(t.pmu.statistics().branches_dropped_fault, passed.size());
  EXPECT_EQ(t.pmu.statistics().branches_stored, 0U);
  EXPECT_EQ(t.env.peek(ds_area + 8), buffer.value()) << "the index";
}

INSTANTIATE_TEST_SUITE_P(OfEach, BtsInBulk, ::testing::ValuesIn(all_generations().begin(), all_generations().end()),
                         generation_name);

}  // namespace
}  // namespace vpmu::test
