// Counters and events with load latency, precise stores and data addresses. SDM 3B 18.8.1.2, 18.9.4.2, 18.9.4.3,
// 18.11.3; rules L9 to L12, S1 to S5.
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/pebs.hpp"
#include "gt/pmu.hpp"
#include "gt/streams.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
namespace pebs = gt::pebs;
using gt::cpu::facts;
using pebs::Slot;

alignas(64) constinit std::array<std::uint64_t, 8> data{};
std::uint64_t data_address() { return reinterpret_cast<std::uint64_t>(data.data()); }
constexpr std::uint64_t ps_en = pmu::reg::pebs_enable::PS_EN::mask;
constexpr std::uint64_t ll(unsigned i) { return pmu::gp_bit(32 + i); }

/// Records, and the count of `event` on PMCi, in `stream` with this PEBS_ENABLE.
struct Seen {
  std::uint64_t records, count;
};
Seen run(pmu::Event event, unsigned i, std::uint64_t enable,
         void (*stream)(std::uint64_t, std::uint64_t) = gt::gt_load_stream) {
  constexpr std::uint64_t far = 1'000'000, before = 3;
  pebs::set_up(32, pebs::no_threshold);
  pebs::set_reset(i, far);
  pmu::stop();
  gt::wrmsr(pmu::msr::MSR_PEBS_LD_LAT_THRESHOLD, 3);
  pmu::program(i, pmu::select(event, pmu::os), pmu::minus(before));
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, enable);
  stream(pmu::gp_bit(i), data_address());
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 0);
  return {pebs::records_written(), pmu::counter(i) - pmu::minus(before)};
}

// Rule L10: PMC3 alone on Sandy Bridge and Ivy Bridge, PMC0 to PMC3 elsewhere.
GT_TEST(MemoryRules_LoadLatencyOnItsCounters, gt::need_hit_levels) {
  using enum gt::cpu::Microarchitecture;
  const bool only_pmc3 = facts().microarchitecture == sandy_bridge || facts().microarchitecture == ivy_bridge;
  for (unsigned i = 0; i < 4; ++i) {
    const Seen seen = run(facts().load_latency, i, pmu::gp_bit(i) | ll(i));
    GT_EQUAL(seen.records, only_pmc3 && i != 3 ? 0U : 1U);
    if (only_pmc3 && i != 3) GT_EQUAL(seen.count, 0U);
  }
}

// Rules L2, L11, L12: without both enable bits nothing counts and nothing records.
GT_TEST(MemoryRules_LoadLatencyNeedsBothBits, gt::need_hit_levels) {
  const unsigned i = facts().load_latency_counter;
  for (const std::uint64_t enable : {std::uint64_t{0}, pmu::gp_bit(i), ll(i), pmu::gp_bit(i) | ll((i + 1) % 4)}) {
    const Seen seen = run(facts().load_latency, i, enable);
    GT_EQUAL(seen.records, 0U);
    GT_EQUAL(seen.count, 0U);
  }
}

// Rule L9: another PEBS event in addition to load latency is permitted; each makes its own records, or they share one.
GT_TEST(MemoryRules_LoadLatencyBesideAnotherEvent, gt::need_hit_levels) {
  const unsigned i = facts().load_latency_counter, other = i == 0 ? 1 : 0;
  pebs::set_up(32, pebs::no_threshold);
  pmu::stop();
  pebs::set_reset(i, 1'000'000);
  pebs::set_reset(other, 1'000'000);
  gt::wrmsr(pmu::msr::MSR_PEBS_LD_LAT_THRESHOLD, 3);
  pmu::program(i, pmu::select(facts().load_latency, pmu::os), pmu::minus(3));
  pmu::program(other, pmu::select(facts().loads, pmu::os), pmu::minus(20));
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, pmu::gp_bit(i) | ll(i) | pmu::gp_bit(other));
  gt::gt_load_stream(pmu::gp_bit(i) | pmu::gp_bit(other), data_address());
  GT_REQUIRE(pebs::records_written() == 2);
  GT_CHECK(pebs::record(0)[Slot::latency] > 3);
  // Where the other event's records have no address of their own, they have the last tagged load (rule L6).
  GT_EQUAL(pebs::record(1)[Slot::data_address], data_address());
  GT_EQUAL(pebs::record(1)[Slot::latency] > 3, !facts().data_la);
  GT_EQUAL(pebs::record(1)[Slot::rip], gt::load_stream_at(22));
}

// Rules S1, S2: with both bits PMC3 records the store after the overflow, with its address and status; otherwise
// nothing.
GT_TEST(MemoryRules_PreciseStoresOnPmc3, gt::need_hit_levels) {
  if (!facts().precise_store) {
    GT_EQUAL(gt::try_wrmsr(pmu::msr::IA32_PEBS_ENABLE, ps_en).vector, x86::vector::GP);
    return;
  }
  constexpr pmu::Event precise_store{0xCD, 0x02};
  for (unsigned i = 0; i < 4; ++i)
    for (const std::uint64_t enable : {pmu::gp_bit(i), ps_en, ps_en | pmu::gp_bit(i)}) {
      const bool right = i == 3 && enable == (ps_en | pmu::gp_bit(3));
      const Seen seen = run(precise_store, i, enable, gt::gt_mixed_stream);
      GT_EQUAL(seen.records, right ? 1U : 0U);
      if (!right) GT_EQUAL(seen.count, 0U);
    }
  GT_REQUIRE(run(precise_store, 3, ps_en | pmu::gp_bit(3), gt::gt_mixed_stream).records == 1);
  const pebs::PebsRecord r = pebs::record(0);
  GT_CHECK(r[Slot::data_address] != 0);
  GT_EQUAL(r[Slot::data_source] & ~std::uint64_t{0x31}, 0U);
  GT_EQUAL(r[Slot::latency], 0U);
}

}  // namespace

// Starts the counters in RDI, adds four times to the eight bytes at RSI, each a load and a store, and stops.
asm(R"(
  .pushsection .text
gt_add_stream:
  mov %rdi, %rax
  mov %rdi, %rdx
  shr $32, %rdx
  mov $0x38F, %ecx
  wrmsr
  addq $1, (%rsi)
  addq $1, (%rsi)
  addq $1, (%rsi)
  addq $1, (%rsi)
  xor %eax, %eax
  xor %edx, %edx
  wrmsr
  ret
  .popsection
)");
extern "C" void gt_add_stream(std::uint64_t global_ctrl, std::uint64_t address);

namespace {

// Rules S3, S4: an instruction that loads and stores has records by both events, with the same address; that of the
// store event says whether it hit the L1D.
GT_TEST(MemoryRules_AddressOfLoadAndStore, gt::need_hit_levels | gt::need_instruction_time) {
  const std::uint64_t address = facts().data_la ? data_address() : 0;
  GT_EQUAL(run(facts().loads, 0, 1, gt_add_stream).records, 1U);
  GT_EQUAL(pebs::record(0)[Slot::data_address], address);
  GT_EQUAL(pebs::record(0)[Slot::data_source], 0U);
  for (const bool in_l1 : {false, true}) {  // the first time, the line is still in flight
    GT_EQUAL(run(facts().stores, 0, 1, gt_add_stream).records, 1U);
    GT_EQUAL(pebs::record(0)[Slot::data_address], address);
    GT_EQUAL(pebs::record(0)[Slot::data_source], facts().data_la && in_l1 ? 1U : 0U);
    run(facts().stores, 0, 1,
        [](std::uint64_t counters, std::uint64_t) { gt::gt_counted_loop(counters, 300); });  // meanwhile it arrives
  }
  GT_EQUAL(data[0], 12U);
}

// Rule S5: UOPS_RETIRED.ALL of Haswell and Broadwell records the address if the instruction accesses memory, else 0.
GT_TEST(MemoryRules_AddressOfUops, gt::need_hit_levels) {
  using enum gt::cpu::Microarchitecture;
  if (facts().microarchitecture != haswell && facts().microarchitecture != broadwell)
    gt::skip("this processor's uop events have no address");
  constexpr pmu::Event all_uops{0xC2, 0x01};
  GT_EQUAL(run(all_uops, 0, 1).records, 1U);
  GT_EQUAL(pebs::record(0)[Slot::data_address], data_address());
  GT_EQUAL(run(all_uops, 0, 1, [](std::uint64_t counters, std::uint64_t) { gt::gt_counted_loop(counters, 3); }).records,
           1U);
  GT_EQUAL(pebs::record(0)[Slot::data_address], 0U);
}

}  // namespace
