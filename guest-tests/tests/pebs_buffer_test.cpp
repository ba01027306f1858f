// The PEBS buffer's threshold and its end. SDM 3B 18.8.1.1, 17.4.9; rules F1 to F6, P6, Q4, V-10, V-15.
#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/sampling.hpp"
#include "gt/test.hpp"

namespace {

namespace pmu = gt::pmu;
namespace pebs = gt::pebs;
using status = pmu::status::OVF_DSBuffer;

// Rule F5: the interrupt comes when the index reaches the threshold, with bit 62, without the counter's INT bit (rule
// P15).
GT_TEST(PebsThreshold_RaisesPmi, gt::need_records) {
  constexpr unsigned threshold = 3;
  pmu::catch_pmi_by_nmi();
  pebs::set_up(32, threshold);
  gt::start_sampling({});
  GT_REQUIRE(gt::sample_until([] { return pmu::pmi_count() > 0; }));
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_EQUAL(pmu::pmi(0).status & ~pmu::gp_bit(0),
           status::mask);  // the next overflow may be waiting for its record (rule P14)
  // Further records may be due to the handler's own instructions before it stops the counter.
  GT_REQUIRE(pebs::records_written() >= threshold);
  const pebs::PebsRecord last = pebs::record(threshold - 1);
  if (gt::cpu::has_record_tsc()) GT_CHECK(pmu::pmi(0).tsc >= last[pebs::Slot::tsc]);
  // The interrupt is taken at the boundary that the record shows (rule Q8).
  if (gt::exact_counts()) GT_EQUAL(pmu::pmi(0).rip, last[pebs::Slot::rip]);
  GT_EQUAL(pmu::pmi(0).lvtpc, gt::apic::lvtpc::nmi | gt::apic::lvtpc::masked);
  GT_EQUAL(pmu::global_status() & status::mask, 0U);  // cleared by the handler's acknowledge
}

// Below the threshold there is neither bit 62 nor interrupt.
GT_TEST(PebsThreshold_IsSilentBefore, gt::need_records) {
  pmu::catch_pmi_by_nmi();
  pebs::set_up(32, pebs::no_threshold);
  gt::start_sampling({});
  GT_REQUIRE(gt::sample_until([] { return pebs::records_written() >= 5; }));
  GT_EQUAL(pmu::pmi_count(), 0U);
  GT_EQUAL(pmu::global_status() & ~pmu::gp_bit(0), 0U);
}

// Rule F5: every record at or past the threshold requests a PMI again.
GT_TEST(PebsThreshold_AsksAgainForEachRecordBeyond, gt::need_records) {
  pmu::catch_pmi_by_nmi({.stop = 0, .unmask = 1});
  pebs::set_up(64, 1);
  gt::start_sampling({});
  GT_REQUIRE(gt::sample_until([] { return pmu::pmi_count() >= 4; }));
  GT_CHECK(pmu::pmi_count() <= pebs::records_written());
  // A handler that starts late finds the requests of two records under one bit, and the next one finds none (rule V4).
  unsigned with_bit = 0;
  for (unsigned i = 0; i < 4; ++i) with_bit += status::test(pmu::pmi(i).status) ? 1 : 0;
  GT_CHECK(status::test(pmu::pmi(0).status) && with_bit >= 2);
}

// SDM 3B 17.4.9.2: when software sets the index back, the buffer is used from its start again.
GT_TEST(PebsThreshold_WorksAgainAfterTheIndexIsSetBack, gt::need_records) {
  pmu::catch_pmi_by_nmi({.unmask = 1});
  pebs::set_up(32, 2);
  for (std::uint32_t round = 1; round <= 3; ++round) {
    pebs::area().index = pebs::area().base;
    gt::start_sampling({});
    GT_REQUIRE(gt::sample_until([round] { return pmu::pmi_count() >= round; }));
    GT_CHECK(pebs::records_written() >= 2);
  }
}

// Rule F2, vector V-10: at the absolute maximum nothing is stored, and nothing interrupts; the counter runs on (F4).
void check_full(std::uint64_t maximum_beyond_last) {
  constexpr unsigned room = 2;
  pmu::catch_pmi_by_nmi();
  pebs::set_up(room, pebs::no_threshold);
  pebs::area().maximum = pebs::area().maximum + maximum_beyond_last;
  gt::start_sampling({});
  GT_REQUIRE(pmu::wait_until([] {
    gt::run_loop();
    return pebs::records_written() == room && (pmu::global_status() & pmu::gp_bit(0)) != 0;
  }));
  gt::sample_for_a_while();
  GT_EQUAL(pebs::records_written(), room);
  GT_EQUAL(pebs::area().index, pebs::area().base + room * pebs::record_bytes());
  GT_CHECK(pebs::poisoned_from(room * pebs::record_bytes()));
  GT_EQUAL(pmu::global_status(), pmu::gp_bit(0) | (gt::cpu::signals_full_buffer() ? status::mask : 0));
  GT_EQUAL(pmu::pmi_count(), 0U);
  GT_CHECK(pmu::counter(0) < pmu::minus(gt::sampling_period()));  // not reloaded
}
GT_TEST(PebsFull_DoesNotInterrupt, gt::need_records) { check_full(0); }
// Rule F3: the manual's "one byte beyond" gives the same number of records.
GT_TEST(PebsFull_MaximumMayLieOneBeyond, gt::need_records) { check_full(1); }
GT_TEST(PebsFull_NoPartOfARecordIsWritten, gt::need_records) { check_full(pebs::record_bytes() - 1); }

// A full buffer accepts records again once it is emptied and software reloads the counter (F4).
GT_TEST(PebsFull_RecoversWhenEmptied, gt::need_records) {
  pebs::set_up(1, pebs::no_threshold);
  gt::start_sampling({});
  GT_REQUIRE(
      gt::sample_until([] { return (pmu::global_status() & pmu::gp_bit(0)) != 0 && pebs::records_written() == 1; }));
  pebs::set_up(8, pebs::no_threshold);
  pmu::acknowledge(pmu::gp_bit(0));
  gt::start_sampling({});
  GT_CHECK(gt::sample_until([] { return pebs::records_written() >= 3; }));
}

// Rules P6, P17: each assist reads the reload value from the DS area anew; the status bit is cleared.
GT_TEST(PebsReset_IsReadAtEachAssist, gt::need_records) {
  pebs::set_up(32, 1);
  pmu::catch_pmi_by_nmi();
  gt::start_sampling({.reload = 0x1234'5678});
  GT_REQUIRE(gt::sample_until([] { return pmu::pmi_count() > 0; }));
  GT_EQUAL(pmu::pmi(0).status, status::mask);
  GT_CHECK(pmu::counter(0) >= pmu::minus(0x1234'5678));
  GT_EQUAL(pebs::records_written(), 1U);
}

}  // namespace
