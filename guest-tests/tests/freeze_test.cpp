// Freeze on PMI. SDM 3B 17.4.7, 18.2.4.1; rules Z1 to Z9, C3. Streamlined (architectural performance monitoring version
// 4): status bits freeze, acknowledging them resumes. Legacy (versions 2 and 3): the processor clears the enable
// itself, and software sets it again.
#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/pmu.hpp"
#include "gt/sampling.hpp"
#include "gt/test.hpp"

namespace {

namespace pmu = gt::pmu;
namespace status = gt::pmu::status;
namespace debugctl = gt::pmu::reg::debugctl;

constexpr std::uint64_t a_while = 1ULL << 22;
constexpr std::uint64_t counters = pmu::gp_bit(0) | pmu::fixed_bit(1);

/// PMC0 overflows soon, fixed counter 1 counts cycles as well; LVTPC masked: a freeze needs no delivery (rule Z6).
void start_with(std::uint64_t debugctl_value) {
  pmu::stop();
  gt::apic::write(gt::apic::lvtpc_offset, gt::apic::lvtpc::nmi | gt::apic::lvtpc::masked);
  gt::wrmsr(pmu::msr::IA32_DEBUGCTL, debugctl_value);
  pmu::program(0, pmu::select(pmu::cycles, pmu::os | pmu::interrupt), pmu::minus(pmu::short_period()));
  gt::wrmsr(pmu::msr::IA32_FIXED_CTR0 + 1, 0);
  gt::wrmsr(pmu::msr::IA32_FIXED_CTR_CTRL, pmu::fixed_control(1, pmu::fixed_os));
  pmu::start(counters);
}

/// The status bits that report the freeze: none in the legacy form (vector V-12).
std::uint64_t shown(std::uint64_t freeze_bits) { return gt::cpu::has_streamlined_freeze() ? freeze_bits : 0; }

bool overflowed() {
  return pmu::wait_until([] { return (pmu::global_status() & pmu::gp_bit(0)) != 0; });
}

bool counts_on() {
  const std::uint64_t before = pmu::fixed(1);
  return pmu::wait_until([before] { return pmu::fixed(1) != before; }, a_while);
}

GT_TEST(Freeze_CountersStopAndResume, gt::need_counts) {
  const bool streamlined = gt::cpu::has_streamlined_freeze();
  start_with(debugctl::FREEZE_PERFMON_ON_PMI::mask);
  GT_REQUIRE(overflowed());
  GT_EQUAL(pmu::global_status(), pmu::gp_bit(0) | shown(status::CTR_FRZ::mask));
  GT_EQUAL(gt::rdmsr(pmu::msr::IA32_PERF_GLOBAL_CTRL), streamlined ? counters : 0);  // rules Z2, Z4
  GT_CHECK(pmu::fixed(1) != 0);
  GT_CHECK(!counts_on());
  pmu::acknowledge(pmu::gp_bit(0));  // the overflow bit alone does not end the freeze
  GT_CHECK(!counts_on());
  if (streamlined)
    pmu::acknowledge(status::CTR_FRZ::mask);
  else
    pmu::start(counters);
  GT_EQUAL(pmu::global_status(), 0U);
  GT_CHECK(counts_on());
}

GT_TEST(Freeze_DoesNotHappenUnasked, gt::need_counts) {
  start_with(0);
  GT_REQUIRE(overflowed());
  GT_EQUAL(pmu::global_status(), pmu::gp_bit(0));
  GT_CHECK(counts_on());
}

// Rule Z4: LBR_FRZ is set, and DEBUGCTL keeps its LBR bit; rule Z3 (legacy): that bit is cleared.
GT_TEST(Freeze_LbrFreezesByItsOwnBit, gt::need_counts) {
  constexpr std::uint64_t wanted = debugctl::FREEZE_LBRS_ON_PMI::mask | debugctl::LBR::mask;
  start_with(wanted);
  GT_REQUIRE(overflowed());
  GT_EQUAL(pmu::global_status(), pmu::gp_bit(0) | shown(status::LBR_FRZ::mask));
  GT_EQUAL(gt::rdmsr(pmu::msr::IA32_DEBUGCTL),
           gt::cpu::has_streamlined_freeze() ? wanted : wanted & ~debugctl::LBR::mask);
  GT_CHECK(counts_on());  // the counters do not freeze
  pmu::acknowledge(shown(status::LBR_FRZ::mask) | pmu::gp_bit(0));
  GT_EQUAL(pmu::global_status(), 0U);
}

GT_TEST(Freeze_BothAtOnce, gt::need_counts) {
  start_with(debugctl::FREEZE_LBRS_ON_PMI::mask | debugctl::FREEZE_PERFMON_ON_PMI::mask);
  GT_REQUIRE(overflowed());
  GT_EQUAL(pmu::global_status(), pmu::gp_bit(0) | shown(status::LBR_FRZ::mask | status::CTR_FRZ::mask));
}

// Rule Z9; SDM 3B 18.2.4.2.
GT_TEST(Freeze_StatusSetFreezesToo, gt::need_counts) {
  if (!gt::cpu::has_streamlined_freeze()) gt::skip("this processor has no IA32_PERF_GLOBAL_STATUS_SET");
  start_with(0);
  GT_REQUIRE(counts_on());
  gt::wrmsr(pmu::msr::IA32_PERF_GLOBAL_STATUS_SET, status::CTR_FRZ::mask);
  GT_CHECK(!counts_on());
  pmu::acknowledge(status::CTR_FRZ::mask);
  GT_CHECK(counts_on());
}

// Rules Z1, Z7: a PEBS counter without INT freezes at its threshold, and the record is complete by then.
GT_TEST(Freeze_PebsFreezesAtTheThreshold, gt::need_records) {
  constexpr unsigned threshold = 2;
  const std::uint64_t reload = gt::sampling_period();
  gt::pebs::set_up(8, threshold);
  gt::apic::write(gt::apic::lvtpc_offset, gt::apic::lvtpc::nmi | gt::apic::lvtpc::masked);
  gt::wrmsr(pmu::msr::IA32_DEBUGCTL, debugctl::FREEZE_PERFMON_ON_PMI::mask);
  gt::start_sampling({});
  GT_REQUIRE(pmu::wait_until([] {
    gt::run_loop();
    return (pmu::global_status() & status::OVF_DSBuffer::mask) != 0;
  }));
  GT_EQUAL(pmu::global_status(), status::OVF_DSBuffer::mask | shown(status::CTR_FRZ::mask));
  for (unsigned i = 0; i < 20; ++i) gt::run_loop();
  GT_EQUAL(gt::pebs::records_written(), threshold);
  GT_EQUAL(pmu::counter(0), pmu::minus(reload));  // reloaded by the last assist, and stopped since then
}

}  // namespace
