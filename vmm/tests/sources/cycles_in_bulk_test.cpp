// Rule C4 in bulk: counters with CMASK, INV and EDGE count the same whether instructions pass in whole blocks or one by
// one.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "sources/plan_progress.hpp"
#include "vpmu/pmu.hpp"
#include "vpmu/registers.hpp"

namespace vmm {
namespace {

using vpmu::bit;

class Nowhere final : public vpmu::GuestEnv {
 public:
  vpmu::AccessResult read_linear(vpmu::GuestLinear at, std::span<std::byte>) override { return fault(at); }
  vpmu::AccessResult write_linear(vpmu::GuestLinear at, std::span<const std::byte>) override { return fault(at); }
  vpmu::AccessResult probe_linear(vpmu::GuestLinear at, std::uint64_t, vpmu::AccessKind) override { return fault(at); }
  std::uint64_t tsc() override { return 0; }
  void request_pmi() override {}

 private:
  static vpmu::AccessFault fault(vpmu::GuestLinear at) { return {.address = at}; }
};

/// INST_RETIRED.ANY_P, UOPS_ISSUED.ANY, CPU_CLK_UNHALTED.THREAD_P, BR_INST_RETIRED.ALL_BRANCHES,
/// MEM_UOPS_RETIRED.ALL_LOADS and ALL_STORES, TX_MEM.ABORT_CONFLICT, which never happens, one that nothing counts, and
/// CPU_CLK_UNHALTED.REF_XCLK. SDM 3B 19.4.
constexpr std::array<std::uint32_t, 9> events{0x00C0, 0x010E, 0x003C, 0x00C4, 0x81D0, 0x82D0, 0x0154, 0x01A1, 0x013C};
constexpr unsigned counters = 4;

class BulkAndOneByOne {
 public:
  explicit BulkAndOneByOne(std::uint64_t seed) : random_{seed} {
    for (unsigned i = 0; i < counters; ++i) {
      const std::uint64_t select = any_select();
      for (vpmu::Pmu* pmu : {&bulk_, &single_})
        EXPECT_EQ(pmu->wrmsr(vpmu::msr::IA32_PERFEVTSEL0 + i, select), vpmu::MsrStatus::ok);
    }
    for (vpmu::Pmu* pmu : {&bulk_, &single_})
      EXPECT_EQ(pmu->wrmsr(vpmu::msr::IA32_PERF_GLOBAL_CTRL, vpmu::low_bits(counters)), vpmu::MsrStatus::ok);
    for (UnhaltedClocks* clocks : {&bulk_clocks_, &single_clocks_}) clocks->follow(1'000'000);
    progress_.begin(bulk_.plan(), nullptr, bulk_clocks_);
  }
  void run(unsigned times) {
    for (unsigned n = 0; n < times; ++n) {
      const auto cpl = static_cast<std::uint8_t>(below(2) * 3);
      const std::uint64_t count = below(3) == 0 ? 1 : 1 + below(20);
      below(4) != 0 && progress_.unseen(cpl != 0, count) == count ? pass(cpl, count) : retire(cpl, count);
    }
    settle();
  }
  [[nodiscard]] std::uint64_t passed() const { return passed_; }
  [[nodiscard]] std::uint64_t counted() const {
    std::uint64_t sum = 0;
    for (unsigned i = 0; i < counters; ++i) sum += value(single_, i);
    return sum;
  }
  void expect_same() const {
    for (unsigned i = 0; i < counters; ++i)
      EXPECT_EQ(value(bulk_, i), value(single_, i)) << std::hex << single_.rdmsr(vpmu::msr::IA32_PERFEVTSEL0 + i).value;
  }

 private:
  static std::uint64_t value(const vpmu::Pmu& pmu, unsigned i) { return pmu.rdmsr(vpmu::msr::IA32_PMC0 + i).value; }
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::uint64_t any_select() {
    constexpr std::array<std::uint64_t, 5> masks{0, 1, 1, 2, 5};
    return events[below(events.size())] | masks[below(masks.size())] << 24 | below(2) << 23 | below(2) << 18 |
           (1 + below(3)) << 16 | bit(22);
  }
  vpmu::Retirement any_instruction(std::uint8_t cpl) {
    const Ticks ticks = single_clocks_.pass(1);
    vpmu::Retirement r{.cpl = cpl, .cycles = 1, .bus_cycles = static_cast<std::uint32_t>(ticks.bus)};
    if (below(4) == 0) r.branch = {.kind = vpmu::BranchKind::near_rel_jmp, .taken = true};
    r.has_load = below(3) == 0;
    r.has_store = below(3) == 0;
    if (below(4) == 0) r.more_loads = r.more_stores = static_cast<std::int32_t>(below(6));
    return r;
  }
  void pass(std::uint8_t cpl, std::uint64_t count) {
    vpmu::exec::Passed sum;
    for (std::uint64_t n = 0; n < count; ++n) {
      const vpmu::Retirement r = any_instruction(cpl);
      single_.retire(r, env_);
      ++sum.instructions;
      sum.branches += r.branch.kind == vpmu::BranchKind::none ? 0 : 1;
      sum.loads += r.has_load ? 1 : 0;
      sum.stores += r.has_store ? 1 : 0;
      sum.more_loads += r.has_load ? r.more_loads : 0;
      sum.more_stores += r.has_store ? r.more_stores : 0;
    }
    progress_.pass(cpl != 0, sum, bulk_clocks_.pass(count));
    passed_ += count;
    if (below(3) != 0) settle();
  }
  void retire(std::uint8_t cpl, std::uint64_t count) {
    settle();
    for (std::uint64_t n = 0; n < count; ++n) {
      const vpmu::Retirement r = any_instruction(cpl);
      single_.retire(r, env_);
      bulk_clocks_.pass(1);
      progress_.observe(r);
      bulk_.retire(r, env_);
    }
  }
  void settle() { bulk_.settle(progress_.take_deltas(), env_); }

  std::mt19937_64 random_;
  Nowhere env_;
  vpmu::Pmu bulk_{{.generation = *vpmu::find_generation("haswell")}};
  vpmu::Pmu single_{{.generation = *vpmu::find_generation("haswell")}};
  UnhaltedClocks bulk_clocks_{{.khz = 400'000, .of = 3}}, single_clocks_{{.khz = 400'000, .of = 3}};
  PlanProgress progress_;
  std::uint64_t passed_{};
};

TEST(CyclesInBulk, CountAsOneByOne) {
  std::uint64_t passed = 0;
  std::uint64_t counted = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    BulkAndOneByOne both{seed};
    both.run(40);
    both.expect_same();
    passed += both.passed();
    counted += both.counted();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(passed, 200'000U);
  EXPECT_GT(counted, 200'000U);
}

// The default events of perf stat before Haswell, and Linux's event for precise cycles: none needs instructions to be
// counted one by one.
TEST(CyclesInBulk, WhatPerfStatAsksForPassesInBulk) {
  constexpr std::array<std::uint32_t, 5> selects{0x0180'010E, 0x0180'01B1, 0x1080'01C2, 0x0100'00C4, 0x0200'81D0};
  for (const std::uint32_t select : selects) {
    vpmu::Pmu pmu{{.generation = *vpmu::find_generation("sandybridge")}};
    ASSERT_EQ(pmu.wrmsr(vpmu::msr::IA32_PERFEVTSEL0, select | bit(22) | bit(17) | bit(16)), vpmu::MsrStatus::ok);
    ASSERT_EQ(pmu.wrmsr(vpmu::msr::IA32_PERF_GLOBAL_CTRL, 1), vpmu::MsrStatus::ok);
    PlanProgress progress;
    const UnhaltedClocks clocks{{}};
    progress.begin(pmu.plan(), nullptr, clocks);
    ASSERT_EQ(progress.plan().size, 1U);
    EXPECT_EQ(progress.unseen(true, 500), 500U) << std::hex << select;
  }
}

}  // namespace
}  // namespace vmm
