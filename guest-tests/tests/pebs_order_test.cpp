// The worked vectors of the ordering rules, on a stream of loads a1, a2, ... of two bytes each. Event LD counts each
// once. SDM 3B 18.8.1.1 (order of service), 18.9.4.4 (PDIR), 18.13.1.1.
#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/pebs.hpp"
#include "gt/pmu.hpp"
#include "gt/streams.hpp"
#include "gt/test.hpp"

namespace {

namespace pmu = gt::pmu;
namespace pebs = gt::pebs;
using pebs::Slot;
using pmu::status::OVF_DSBuffer;

constexpr std::uint64_t never = 1'000'000;  ///< A reload value that does not overflow again.
constinit std::uint64_t cell = 0x1122'3344'5566'7788;
std::uint64_t cell_address() { return reinterpret_cast<std::uint64_t>(&cell); }

/// One counter of a vector: LD on PMCi, `before` events before overflow; with PEBS when `reload` is not 0.
struct Counter {
  unsigned index;
  std::uint64_t before;
  std::uint64_t reload{0};
  std::uint64_t control{pmu::os};
  pmu::Event event{gt::cpu::facts().loads};
};

template <std::size_t N>
void run(const std::array<Counter, N>& counters) {
  pmu::stop();
  std::uint64_t all = 0, precise = 0;
  for (const Counter& c : counters) {
    pmu::program(c.index, pmu::select(c.event, c.control), pmu::minus(c.before));
    all |= pmu::gp_bit(c.index);
    if (c.reload == 0) continue;
    precise |= pmu::gp_bit(c.index);
    pebs::set_reset(c.index, c.reload);
  }
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, precise);
  gt::gt_load_stream(all, cell_address());
}

/// Record `i` must be for load number `n` and for the counters in `applicable`; GLOBAL_STATUS before it was `snapshot`.
/// The format determines which of the two the record has (rules P7, P8).
void check_record(std::uint64_t i, std::uint64_t n, std::uint64_t applicable, std::uint64_t snapshot) {
  const pebs::PebsRecord r = pebs::record(i);
  if (gt::cpu::has_eventing_ip()) GT_EQUAL(r[Slot::eventing_ip], gt::load_stream_at(n));
  GT_EQUAL(r[Slot::rip], gt::load_stream_at(n + 1));
  GT_EQUAL(r[Slot::status], gt::cpu::pebs_format() >= vpmu::PebsFormat::format3 ? applicable : snapshot);
  GT_EQUAL(r[Slot::rax], cell & 0xFFFF'FFFF);
}
void check_record(std::uint64_t i, std::uint64_t n, std::uint64_t counters) { check_record(i, n, counters, counters); }

// V-1 to V-3, by the record's format: overflow at a3, record at a4, and again every four loads (rule P1).
GT_TEST(PebsOrder_V1V2V3RecordFollowsOverflow, gt::need_exact_counts) {
  pebs::set_up(32, pebs::no_threshold);
  run(std::array{Counter{.index = 0, .before = 3, .reload = 3}});
  constexpr std::uint64_t records = gt::load_stream_length / 4;
  GT_REQUIRE(pebs::records_written() == records);
  for (std::uint64_t k = 0; k < records; ++k) {
    check_record(k, 4 * (k + 1), 1);
    GT_EQUAL(pebs::record(k)[Slot::data_address], gt::cpu::facts().data_la ? cell_address() : 0);
    GT_EQUAL(pebs::record(k)[Slot::data_source], 0U);
    GT_EQUAL(pebs::record(k)[Slot::latency], 0U);
  }
  GT_EQUAL(pmu::counter(0), pmu::minus(3));
  GT_EQUAL(pmu::global_status(), 0U);
}

// Rule P1 at every period (rule D6: any is accepted): record k is of instruction k * (P + 1).
GT_TEST(PebsOrder_P1HoldsForEveryPeriod, gt::need_exact_counts) {
  for (std::uint64_t period = 1; period <= 1000; ++period) {
    pebs::set_up(8, pebs::no_threshold);
    pmu::stop();
    pmu::program(0, pmu::select(pmu::instructions, pmu::os), pmu::minus(period));
    pebs::set_reset(0, period);
    gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 1);
    constexpr std::uint64_t records = 3;
    const std::uint64_t rounds = records * (period + 1) / gt::counted_loop_length + 1;
    gt::gt_counted_loop(1, rounds);
    GT_REQUIRE(pebs::records_written() >= records);
    for (std::uint64_t k = 1; k <= records; ++k) {
      const std::uint64_t at = pebs::eventing_ip(pebs::record(k - 1));
      if (at == gt::counted_loop_at(k * (period + 1))) continue;
      GT_EQUAL(period, 0U);  // shows the period
      GT_EQUAL(at, gt::counted_loop_at(k * (period + 1)));
    }
    gt::count_check();
  }
}

// Rule P2a: a compare and the branch behind it are one. The first load overflows, the compare's triggers.
GT_TEST(PebsOrder_P2aFusedPairIsOne, gt::need_exact_counts | gt::need_pipeline_time) {
  pebs::set_up(8, pebs::no_threshold);
  pmu::stop();
  pmu::program(0, pmu::select(gt::cpu::facts().loads, pmu::os), pmu::minus(1));
  pebs::set_reset(0, never);
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, pmu::gp_bit(0));
  std::uint64_t compare = 0, behind = 0;
  asm volatile(
      "wrmsr\n"
      "mov %2, %%esi\n"
      ".p2align 6\n"
      "1: cmp %2, %%esi\n je 2f\n nop\n"
      "2: xor %%eax, %%eax\n wrmsr\n"
      "lea 1b(%%rip), %0\n lea 2b(%%rip), %1"
      : "=&r"(compare), "=&r"(behind)
      : "m"(cell), "a"(1), "d"(0), "c"(pmu::msr::IA32_PERF_GLOBAL_CTRL.value())
      : "rsi", "cc", "memory");
  GT_REQUIRE(pebs::records_written() == 1);
  const pebs::PebsRecord r = pebs::record(0);
  GT_EQUAL(r[Slot::rip], behind);
  if (gt::cpu::has_eventing_ip()) GT_EQUAL(r[Slot::eventing_ip], compare);
  if (gt::cpu::facts().data_la) GT_EQUAL(r[Slot::data_address], cell_address());
}

// V-4: PDIR records the overflowing instruction itself; the period is exactly 3 (rules D1, D2).
GT_TEST(PebsOrder_V4PreciseDistribution, gt::need_exact_counts) {
  if (!gt::cpu::facts().pdir) gt::skip("this processor has no precise distribution");
  pebs::set_up(32, pebs::no_threshold);
  run(std::array{Counter{.index = 1, .before = 3, .reload = 3, .event = pmu::precise_distribution}});
  GT_REQUIRE(pebs::records_written() == gt::load_stream_instructions / 3);
  for (std::uint64_t k = 0; 3 * (k + 1) < gt::load_stream_length; ++k) check_record(k, 3 * (k + 1), 2);
}

// On another counter the same event is an ordinary one: overflow, then record.
GT_TEST(PebsOrder_V4OnlyOnPmc1, gt::need_exact_counts) {
  if (!gt::cpu::facts().pdir) gt::skip("this processor has no precise distribution");
  pebs::set_up(32, pebs::no_threshold);
  run(std::array{Counter{.index = 0, .before = 3, .reload = never, .event = pmu::precise_distribution}});
  GT_REQUIRE(pebs::records_written() == 1);
  check_record(0, 4, 1);
}

// V-5: triggers at the same instruction share one record (rule P10).
GT_TEST(PebsOrder_V5CountersShareARecord, gt::need_exact_counts) {
  pebs::set_up(32, pebs::no_threshold);
  run(std::array{Counter{.index = 0, .before = 3, .reload = 3}, Counter{.index = 1, .before = 3, .reload = 3}});
  GT_REQUIRE(pebs::records_written() == gt::load_stream_length / 4);
  for (std::uint64_t k = 0; k < pebs::records_written(); ++k) check_record(k, 4 * (k + 1), 3);
  GT_EQUAL(pmu::counter(0), pmu::minus(3));
  GT_EQUAL(pmu::counter(1), pmu::minus(3));
  GT_EQUAL(pmu::global_status(), 0U);
}

// V-6: PMC1 overflows on the load that triggers PMC0: the assist serves every counter that has overflowed (rule P12,
// default).
GT_TEST(PebsOrder_V6AssistServesWhatHasOverflowed, gt::need_exact_counts) {
  pebs::set_up(32, pebs::no_threshold);
  run(std::array{Counter{.index = 0, .before = 3, .reload = never}, Counter{.index = 1, .before = 4, .reload = never}});
  GT_REQUIRE(pebs::records_written() == 1);
  check_record(0, 4, 3);
  GT_EQUAL(pmu::counter(0), pmu::minus(never) + gt::load_stream_length - 4);
  GT_EQUAL(pmu::counter(1), pmu::minus(never) + gt::load_stream_length - 4);
  GT_EQUAL(pmu::global_status(), 0U);
}

/// One counter requests a PMI on the load that triggers the other: the record precedes the handler's first instruction.
void check_interrupt_beside_assist(unsigned interrupting, unsigned precise) {
  pebs::set_up(32, pebs::no_threshold);
  pmu::catch_pmi_by_nmi();
  run(std::array{Counter{.index = interrupting, .before = 4, .control = pmu::os | pmu::interrupt},
                 Counter{.index = precise, .before = 3, .reload = never}});
  GT_REQUIRE(pebs::records_written() == 1 && pmu::pmi_count() == 1);
  check_record(0, 4, pmu::gp_bit(precise), pmu::gp_bit(1) | pmu::gp_bit(2));
  GT_EQUAL(pmu::pmi(0).rip, gt::load_stream_at(5));
  GT_EQUAL(pmu::pmi(0).status, pmu::gp_bit(interrupting));
}

// V-7: PMC1 requests a PMI on the load that triggers PMC2 (rules Q2, Q8).
GT_TEST(PebsOrder_V7OverflowInterruptBesideAnAssist, gt::need_exact_counts) { check_interrupt_beside_assist(1, 2); }

// V-8: roles exchanged.
GT_TEST(PebsOrder_V8AssistBesideAnOverflowInterrupt, gt::need_exact_counts) { check_interrupt_beside_assist(2, 1); }

// V-9: PEBS with INT at the threshold requests two interrupts, after the assist. The first masks LVTPC, so the second,
// whose handler would find no status bit, is dropped (rules Q5, Q6, V2, V4).
GT_TEST(PebsOrder_V9ThresholdAndOverflowComeAfterTheAssist, gt::need_exact_counts) {
  pebs::set_up(32, 1);
  pmu::catch_pmi_by_vector(0x40, {.unmask = 1});
  gt::enable_interrupts();
  run(std::array{Counter{.index = 0, .before = 3, .reload = never, .control = pmu::os | pmu::interrupt}});
  GT_CHECK(pmu::wait_for_pmis(1));
  pmu::wait_until([] { return false; }, 1ULL << 22);
  GT_REQUIRE(pmu::pmi_count() == 1 && pebs::records_written() == 1);
  check_record(0, 4, 1);
  GT_EQUAL(pmu::pmi(0).rip, gt::load_stream_at(5));
  GT_EQUAL(pmu::pmi(0).status, OVF_DSBuffer::mask);
}

// Rule Q5a: the event of a PEBS counter with INT does not come again. Its interrupt comes when the counter is stopped.
GT_TEST(PebsOrder_Q5aStoppedCounterGetsItsInterrupt, gt::need_exact_counts) {
  pebs::set_up(32, pebs::no_threshold);
  pmu::catch_pmi_by_nmi();
  run(std::array{
      Counter{.index = 0, .before = gt::load_stream_length, .reload = never, .control = pmu::os | pmu::interrupt}});
  GT_CHECK(pmu::wait_for_pmis(1));
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_EQUAL(pmu::pmi(0).status, pmu::gp_bit(0));
  GT_EQUAL(pebs::records_written(), 0U);
}

// Rule Q5a: the processor halts before the event comes again. The interrupt wakes it: interrupts are off, and no other
// NMI comes.
GT_TEST(PebsOrder_Q5aHaltedProcessorGetsItsInterrupt, gt::need_exact_counts) {
  pebs::set_up(32, pebs::no_threshold);
  pmu::catch_pmi_by_nmi();
  pmu::stop();
  pmu::program(0, pmu::select(gt::cpu::facts().loads, pmu::os | pmu::interrupt), pmu::minus(1));
  pebs::set_reset(0, never);
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, pmu::gp_bit(0));
  std::uint64_t behind = 0;
  asm volatile("wrmsr\n mov %1, %%edx\n hlt\n1: lea 1b(%%rip), %0"
               : "=r"(behind)
               : "m"(cell), "a"(1), "d"(0), "c"(pmu::msr::IA32_PERF_GLOBAL_CTRL.value())
               : "memory");
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_EQUAL(pmu::pmi(0).rip, behind);
  GT_EQUAL(pebs::records_written(), 1U);  // of the handler's first load
  GT_CHECK(pebs::record(0)[Slot::rip] != behind);
}

// V-10: room for two records; the third is dropped without an interrupt, the counter runs on (rules F2, F4).
GT_TEST(PebsOrder_V10FullBuffer, gt::need_exact_counts) {
  pebs::set_up(2, pebs::no_threshold);
  run(std::array{Counter{.index = 0, .before = 3, .reload = 3}});
  GT_REQUIRE(pebs::records_written() == 2);
  check_record(0, 4, 1);
  check_record(1, 8, 1);
  GT_EQUAL(pmu::global_status(), pmu::gp_bit(0) | (gt::cpu::signals_full_buffer() ? OVF_DSBuffer::mask : 0));
  GT_EQUAL(pmu::counter(0), gt::load_stream_length - 11);  // 0 at a11
  GT_CHECK(pebs::poisoned_from(2 * pebs::record_bytes()));
}

// V-11: clearing the status bit between overflow and trigger does not disarm, and neither does stopping (rules P13,
// P20, Z8).
GT_TEST(PebsOrder_V11AcknowledgeDoesNotDisarm, gt::need_exact_counts) {
  pebs::set_up(32, pebs::no_threshold);
  run(std::array{Counter{.index = 0, .before = gt::load_stream_length, .reload = never}});
  GT_EQUAL(pebs::records_written(), 0U);
  GT_EQUAL(pmu::global_status(), pmu::gp_bit(0));
  pmu::acknowledge(pmu::gp_bit(0));
  gt::gt_load_stream(pmu::gp_bit(0), cell_address());
  GT_REQUIRE(pebs::records_written() == 1);
  check_record(0, 1, pmu::gp_bit(0), 0);
}

// Rule P20: writing the counter does.
GT_TEST(PebsOrder_P20WritingTheCounterDisarms, gt::need_exact_counts) {
  pebs::set_up(32, pebs::no_threshold);
  run(std::array{Counter{.index = 0, .before = gt::load_stream_length, .reload = never}});
  pmu::write_counter(0, pmu::minus(never));
  gt::gt_load_stream(pmu::gp_bit(0), cell_address());
  GT_EQUAL(pebs::records_written(), 0U);
  GT_EQUAL(pmu::counter(0), pmu::minus(never) + gt::load_stream_length);
}

// V-15: with LVTPC masked, the requests of all records past the threshold are dropped (rules F5, V4).
GT_TEST(PebsOrder_V15RequestsBeyondTheThreshold, gt::need_exact_counts) {
  pebs::set_up(32, 1);
  pmu::catch_pmi_by_nmi();
  gt::apic::write(gt::apic::lvtpc_offset, gt::apic::lvtpc::nmi | gt::apic::lvtpc::masked);
  run(std::array{Counter{.index = 0, .before = 3, .reload = 3}});
  GT_EQUAL(pebs::records_written(), gt::load_stream_length / 4);
  GT_EQUAL(pmu::global_status(), OVF_DSBuffer::mask);
  gt::apic::write(gt::apic::lvtpc_offset, gt::apic::lvtpc::nmi);
  pmu::wait_until([] { return false; }, 1ULL << 22);
  GT_EQUAL(pmu::pmi_count(), 0U);
}

// V-12: from the overflow on no counter counts a single event more (rules Z2, Z4, Z6).
GT_TEST(PebsOrder_V12FreezeAtTheOverflow, gt::need_exact_counts) {
  pmu::stop();
  gt::wrmsr(pmu::msr::IA32_DEBUGCTL, pmu::reg::debugctl::FREEZE_PERFMON_ON_PMI::mask);
  run(std::array{Counter{.index = 0, .before = 7, .control = pmu::os | pmu::interrupt},
                 Counter{.index = 1, .before = never}});
  GT_EQUAL(pmu::counter(0), 0U);
  GT_EQUAL(pmu::counter(1), pmu::minus(never) + 7);
  GT_EQUAL(pmu::global_status(), pmu::gp_bit(0) | (gt::cpu::has_streamlined_freeze() ? pmu::status::CTR_FRZ::mask : 0));
}

}  // namespace
