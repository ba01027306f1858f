// Mispredicted branches: BR_MISP_RETIRED, SDM 3B table 19-1 and 18.8.1.1. Only sources that model branch prediction.
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/pebs.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"

namespace {

namespace pmu = gt::pmu;
namespace pebs = gt::pebs;
using pebs::Slot;

constexpr pmu::Event mispredicts{0xC5, 0x00};
constexpr std::uint64_t rounds = 4'000;

/// Runs a loop with a branch on one bit of a number, while GLOBAL_CTRL = `counters`. If `random`, that is the high bit
/// of a linear congruential generator, as good as random, and others each time: predictors learn thousands of numbers
/// by heart. Else bit 0 of a counter, which alternates. Returns the branch's address; it is two bytes long, and jumps
/// over one byte.
std::uint64_t branch_on(bool random, std::uint64_t counters) {
  const std::uint64_t multiplier = random ? 6'364'136'223'846'793'005ULL : 1,
                      increment = random ? 1'442'695'040'888'963'407ULL : 1;
  const std::uint64_t mask = random ? 1ULL << 63 : 1;
  static std::uint64_t last = 1;
  std::uint64_t x = random ? last : 1, left = rounds, at = 0;
  pmu::start(counters);
  asm volatile(
      "lea 2f(%%rip), %[at]\n"
      "1: imul %[multiplier], %[x]\n"
      "add %[increment], %[x]\n"
      "test %[x], %[mask]\n"
      "2: jz 3f\n"
      "nop\n"
      "3: dec %[left]\n"
      "jnz 1b\n"
      : [x] "+r"(x), [left] "+r"(left), [at] "=&r"(at)
      : [multiplier] "r"(multiplier), [increment] "r"(increment), [mask] "r"(mask)
      : "cc");
  pmu::stop();
  if (random) last = x;
  return at;
}

std::uint64_t count(pmu::Event event, bool random) {
  pmu::stop();
  pmu::program(0, pmu::select(event, pmu::os), 0);
  pmu::program(1, pmu::select(pmu::conditional_branches, pmu::os), 0);
  branch_on(random, pmu::gp_bit(0) | pmu::gp_bit(1));
  GT_EQUAL(pmu::counter(1), 2 * rounds);
  return pmu::counter(0);
}

GT_TEST(BranchPrediction_MissesHalfOfTheUnpredictable, gt::need_hit_levels) {
  for (const pmu::Event& event : {mispredicts, gt::cpu::facts().conditional_mispredicts}) {
    if (!gt::cpu::exists(event)) continue;
    const std::uint64_t n = count(event, true);
    GT_CHECK(n > rounds * 4 / 10 && n < rounds * 6 / 10);
  }
}

GT_TEST(BranchPrediction_LearnsThePredictable, gt::need_hit_levels) {
  count(mispredicts, false);
  const std::uint64_t n = count(mispredicts, false);
  GT_CHECK(n < rounds / 100);
  GT_CHECK(count(mispredicts, true) > rounds / 4);
}

// The record is for the branch that was mispredicted (rule P4).
GT_TEST(BranchPrediction_RecordsStandOnTheBranch, gt::need_hit_levels) {
  const pmu::Event precise_mispredicts = gt::cpu::facts().precise_mispredicts;
  if (!gt::cpu::exists(precise_mispredicts))
    gt::skip("this processor has no precise event of all mispredicted branches");
  constexpr std::uint64_t period = 20;
  count(mispredicts, true);  // by now the loop's own branch is predicted
  pebs::set_up(256, pebs::no_threshold);
  pebs::set_reset(0, period);
  pmu::program(0, pmu::select(precise_mispredicts, pmu::os), pmu::minus(period));
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, pmu::gp_bit(0));
  const std::uint64_t at = branch_on(true, pmu::gp_bit(0));
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 0);
  const std::uint64_t n = pebs::records_written();
  GT_REQUIRE(n >= 50);
  unsigned on_branch = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const pebs::PebsRecord r = pebs::record(i);
    const bool behind = r[Slot::rip] == at + 2 || r[Slot::rip] == at + 3;
    on_branch += behind && (!gt::cpu::has_eventing_ip() || r[Slot::eventing_ip] == at) ? 1 : 0;
  }
  GT_CHECK(on_branch * 10 >= n * 9);
}

}  // namespace
