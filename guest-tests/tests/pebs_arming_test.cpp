// What arms PEBS, what triggers, and which counter is served first. SDM 3B 18.8.1.1, 18.9.4.4; rules O4, O5, O7, O9,
// P2, P5, P11, P16, D3, D4, Q1, Q3, Q9, Q10. On the stream of loads a1, a2, ... of the worked vectors.
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/interrupts.hpp"
#include "gt/paging.hpp"
#include "gt/pebs.hpp"
#include "gt/pmu.hpp"
#include "gt/streams.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
namespace pebs = gt::pebs;
using pebs::Slot;

constexpr std::uint64_t never = 1'000'000;
constinit std::uint64_t cell = 0x1122'3344'5566'7788;
std::uint64_t cell_address() { return reinterpret_cast<std::uint64_t>(&cell); }

void program_loads(unsigned i, std::uint64_t before_overflow, std::uint64_t control = pmu::os) {
  pmu::program(i, pmu::select(gt::cpu::facts().loads, control), pmu::minus(before_overflow));
  if (i < 4) pebs::set_reset(i, never);
}
/// The load that record `i` is for.
std::uint64_t load_of_record(std::uint64_t i) {
  return (pebs::record(i)[Slot::rip] - gt::load_stream_at(1)) / gt::load_stream_instruction_bytes;
}
bool has_status_snapshot() { return gt::cpu::pebs_format() < vpmu::PebsFormat::format3; }

// Rules O4, P2: the overflow writes nothing, and arms for the very next event.
GT_TEST(PebsArming_OverflowAloneWritesNothing, gt::need_exact_counts) {
  pebs::set_up(4, pebs::no_threshold);
  pmu::stop();
  program_loads(0, gt::load_stream_length);
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 1);
  gt::gt_load_stream(1, cell_address());
  GT_EQUAL(pmu::global_status(), 1U);
  GT_EQUAL(pebs::records_written(), 0U);
  gt::gt_load_stream(1, cell_address());
  GT_REQUIRE(pebs::records_written() == 1);
  GT_EQUAL(load_of_record(0), 1U);
}

// Rule O5: PMC4 to PMC7 and the fixed counters have no bit in PEBS_ENABLE, overflow like others and record nothing.
GT_TEST(PebsArming_OnlyTheFirstFourCounters, gt::need_exact_counts) {
  pebs::set_up(32, pebs::no_threshold);
  pmu::stop();
  std::uint64_t counters = pmu::fixed_bit(0);
  for (unsigned i = 4; i < pmu::gp_counters(); ++i) {
    program_loads(i, 3);
    counters |= pmu::gp_bit(i);
  }
  gt::wrmsr(pmu::msr::IA32_FIXED_CTR0, pmu::minus(3));
  gt::wrmsr(pmu::msr::IA32_FIXED_CTR_CTRL, pmu::fixed_control(0, pmu::fixed_os));
  for (const unsigned i : {4U, 5U, 6U, 7U})
    GT_EQUAL(gt::try_wrmsr(pmu::msr::IA32_PEBS_ENABLE, pmu::gp_bit(i)).vector, x86::vector::GP);
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 0xF);
  gt::gt_load_stream(counters, cell_address());
  GT_EQUAL(pmu::global_status(), counters);
  GT_EQUAL(pebs::records_written(), 0U);
}

// Rule O6: a status bit stays until software clears it, whatever else software writes.
GT_TEST(PebsArming_StatusStaysUntilAcknowledged, gt::need_exact_counts) {
  pmu::stop();
  program_loads(0, 5);
  gt::gt_load_stream(1, cell_address());
  GT_EQUAL(pmu::global_status(), 1U);
  pmu::write_counter(0, 0);
  gt::wrmsr(pmu::msr::IA32_PERFEVTSEL0, 0);
  pmu::start(0xF);
  pmu::stop();
  pmu::acknowledge(pmu::gp_bit(1));
  GT_EQUAL(pmu::global_status(), 1U);
  pmu::acknowledge(pmu::gp_bit(0));
  GT_EQUAL(pmu::global_status(), 0U);
}

// Rule O7: an overflow requests a PMI again although its status bit is still set.
GT_TEST(PebsArming_OverflowAgainInterruptsAgain, gt::need_exact_counts) {
  pmu::catch_pmi_by_nmi({.acknowledge = 0, .stop = 0, .unmask = 1});
  for (std::uint32_t n = 1; n <= 3; ++n) {
    pmu::stop();
    program_loads(0, 5, pmu::os | pmu::interrupt);
    gt::gt_load_stream(1, cell_address());
    GT_EQUAL(pmu::pmi_count(), n);
    GT_EQUAL(pmu::global_status(), 1U);
    GT_CHECK(pmu::counter(0) >= gt::load_stream_length - 5 &&
             pmu::counter(0) < never);  // continues from 0 through the handler
  }
}

// Rule O9: only the overflow arms; PEBS_ENABLE set after it does not.
GT_TEST(PebsArming_EnablingLaterDoesNotArm, gt::need_exact_counts) {
  pebs::set_up(4, pebs::no_threshold);
  pmu::stop();
  program_loads(0, 5);
  gt::gt_load_stream(1, cell_address());
  GT_EQUAL(pmu::global_status(), 1U);
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 1);
  gt::gt_load_stream(1, cell_address());
  GT_EQUAL(pebs::records_written(), 0U);
}

// Rules P11, P12: PMC1, without PEBS, overflows on the instruction that triggers PMC0. A record with a snapshot of
// GLOBAL_STATUS shows both bits, one with applicable counters only PMC0's. Rule P5: record, index, reload and status
// change in one step for the program.
GT_TEST(PebsArming_TheSnapshotShowsWhoElseOverflowed, gt::need_exact_counts) {
  pebs::set_up(4, pebs::no_threshold);
  pmu::stop();
  program_loads(0, 3);
  pmu::program(1, pmu::select(gt::cpu::facts().loads, pmu::os), pmu::minus(4));  // without PEBS
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 1);
  gt::gt_load_stream(3, cell_address());
  GT_REQUIRE(pebs::records_written() == 1);
  GT_EQUAL(pebs::record(0)[Slot::status], has_status_snapshot() ? 3U : 1U);
  GT_EQUAL(pmu::global_status(), pmu::gp_bit(1));
  GT_EQUAL(pmu::counter(0), pmu::minus(never) + gt::load_stream_length - 4);
}

// Rule P16: an armed counter counts on. The assist's reload overwrites it; without an assist it keeps its count.
GT_TEST(PebsArming_AnArmedCounterCountsOn, gt::need_exact_counts) {
  pebs::set_up(0, pebs::no_threshold);  // no room: rule F4
  pmu::stop();
  program_loads(0, 3);
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 1);
  gt::gt_load_stream(1, cell_address());
  GT_EQUAL(pebs::records_written(), 0U);
  GT_EQUAL(pmu::counter(0), gt::load_stream_length - 3);
}

// Rule D3: other counters that count do not disturb precise distribution.
GT_TEST(PebsArming_PreciseDistributionBesideOthers, gt::need_exact_counts) {
  if (!gt::cpu::facts().pdir) gt::skip("this processor has no precise distribution");
  pebs::set_up(32, pebs::no_threshold);
  pmu::stop();
  program_loads(0, never);
  program_loads(2, never);
  pmu::program(1, pmu::select(pmu::precise_distribution, pmu::os), pmu::minus(10));
  pebs::set_reset(1, 10);
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 2);
  gt::gt_load_stream(7, cell_address());
  GT_REQUIRE(pebs::records_written() == gt::load_stream_instructions / 10);
  GT_EQUAL(load_of_record(0), 10U);
  GT_EQUAL(load_of_record(1), 20U);
}

// Rule D4: with INV and CMASK the same event on PMC1 is an ordinary one: the record is for the instruction after the
// overflow.
GT_TEST(PebsArming_InvertedDistributionIsNotPrecise, gt::need_exact_counts | gt::need_instruction_time) {
  if (!gt::cpu::facts().pdir) gt::skip("this processor has no precise distribution");
  pebs::set_up(32, pebs::no_threshold);
  pmu::stop();
  pmu::program(1, pmu::select({0xC0, 0x01, 16, 1}, pmu::os), pmu::minus(10));
  pebs::set_reset(1, never);
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 2);
  gt::gt_load_stream(2, cell_address());
  GT_REQUIRE(pebs::records_written() == 1);
  GT_EQUAL(load_of_record(0), 11U);
}

// Rules Q1, Q3, Q9: all counters overflow on one load, and trigger on the next. One PMI for those without PEBS, one
// record for those with.
GT_TEST(PebsArming_ManyAtOnceAreOneInterruptAndOneRecord, gt::need_exact_counts) {
  pebs::set_up(4, pebs::no_threshold);
  pmu::catch_pmi_by_nmi({.stop = 0});
  pmu::stop();
  program_loads(0, 3);
  program_loads(1, 4, pmu::os | pmu::interrupt);
  program_loads(2, 3);
  program_loads(3, 4, pmu::os | pmu::interrupt);
  gt::wrmsr(pmu::msr::IA32_FIXED_CTR0, pmu::minus(4));
  gt::wrmsr(pmu::msr::IA32_FIXED_CTR_CTRL, pmu::fixed_control(0, pmu::fixed_os | pmu::fixed_pmi));
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 5);
  gt::gt_load_stream(0xF | pmu::fixed_bit(0), cell_address());
  GT_REQUIRE(pebs::records_written() == 1);
  GT_EQUAL(load_of_record(0), 4U);
  GT_EQUAL(pebs::record(0)[Slot::status], has_status_snapshot() ? 0xFU | pmu::fixed_bit(0) : 5U);
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_EQUAL(pmu::pmi(0).status, pmu::gp_bit(1) | pmu::gp_bit(3) | pmu::fixed_bit(0));
  GT_EQUAL(pmu::pmi(0).rip, gt::load_stream_at(5));
}

constinit unsigned faults = 0;

/// Runs two loads from `linear` at CPL 3, and returns the RIPs of the records, which are for every second load there.
std::array<std::uint64_t, 16> user_records(std::uint64_t linear) {
  pebs::set_up(16, pebs::no_threshold);
  pmu::stop();
  pmu::program(0, pmu::select(gt::cpu::facts().loads, pmu::usr), pmu::minus(1));
  pebs::set_reset(0, 1);
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 1);
  pmu::start(1);
  gt::run_at_cpl3(
      [](void* at) {
        std::uint64_t value;
        asm volatile("mov (%1), %0\n mov 8(%1), %0" : "=&r"(value) : "r"(*static_cast<void**>(at)) : "memory");
      },
      &linear);
  pmu::stop();
  GT_CHECK(pebs::records_written() > 0 && pebs::records_written() < 16);
  std::array<std::uint64_t, 16> rips{};
  for (std::uint64_t i = 0; i < pebs::records_written(); ++i) rips[i] = pebs::record(i)[Slot::rip];
  return rips;
}

// Rule Q10: a load that faults has not retired: it neither counts nor triggers. It does both when it is repeated.
GT_TEST(PebsArming_AFaultingLoadDoesNotTrigger, gt::need_exact_counts) {
  static constinit std::uint64_t page = 0;
  page = cell_address() & ~std::uint64_t{4095};
  gt::paging::map(gt::paging::window, page, gt::paging::writable | gt::paging::user);
  const auto without_fault = user_records(gt::paging::window);
  gt::paging::unmap(gt::paging::window + 4096);
  gt::on_vector(x86::vector::PF, [](gt::InterruptFrame&) {
    ++faults;
    gt::paging::map(gt::paging::window + 4096, page, gt::paging::writable | gt::paging::user);
  });
  const auto with_fault = user_records(gt::paging::window + 4096);
  GT_EQUAL(faults, 1U);
  for (unsigned i = 0; i < with_fault.size(); ++i) GT_EQUAL(with_fault[i], without_fault[i]);
}

}  // namespace
