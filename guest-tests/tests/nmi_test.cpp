// Non-maskable interrupts, as PMIs bring them. SDM 3A 6.7.1, 10.5.1; rules V2, Q11.
#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/interrupts.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
namespace apic = gt::apic;

/// Long enough for an unwanted NMI to arrive, in TSC ticks.
constexpr std::uint64_t a_while = 1ULL << 24;

constinit volatile std::uint32_t runs = 0, entered_again = 0, overflows_inside = 0;
constinit std::uint32_t overflows_wanted = 0;

/// PMC0 overflows, requests a PMI, and is stopped. LVTPC is unmasked before, and masked by the PMI.
bool overflow_once() {
  apic::write(apic::lvtpc_offset, apic::lvtpc::nmi);
  pmu::stop();
  pmu::acknowledge(pmu::gp_bit(0));
  pmu::program(0, pmu::select(pmu::cycles, pmu::os | pmu::interrupt), pmu::minus(pmu::short_period()));
  pmu::start(pmu::gp_bit(0));
  const bool masked = pmu::wait_until([] { return (apic::read(apic::lvtpc_offset) & apic::lvtpc::masked) != 0; });
  pmu::stop();
  return masked;
}

/// The NMI handler. Its first run causes more NMIs before its IRET.
void take_nmi(gt::InterruptFrame&) {
  const std::uint32_t run = runs;
  runs = run + 1;
  pmu::stop();
  if (run != 0) return;
  for (std::uint32_t n = 0; n < overflows_wanted; ++n)
    if (overflow_once()) overflows_inside = overflows_inside + 1;
  entered_again = runs - 1;
}

/// Takes an NMI in whose handler `more` PMIs come.
void take_one_with(std::uint32_t more) {
  overflows_wanted = more;
  gt::on_vector(x86::vector::NMI, take_nmi);
  GT_REQUIRE(overflow_once());
  pmu::wait_until([] { return runs > 1; }, a_while);
  GT_EQUAL(overflows_inside, more);
}

GT_TEST(Nmi_IsBlockedUntilIret, gt::need_counts) {
  take_one_with(1);
  GT_EQUAL(entered_again, 0U);
  GT_EQUAL(runs, 2U);
}

GT_TEST(Nmi_TwoThatWaitForIretCollapse, gt::need_counts) {
  take_one_with(2);
  GT_EQUAL(entered_again, 0U);
  GT_EQUAL(runs, 2U);
  pmu::wait_until([] { return runs > 2; }, a_while);
  GT_EQUAL(runs, 2U);
}

GT_TEST(Nmi_WithoutAnotherItsHandlerRunsOnce, gt::need_counts) {
  take_one_with(0);
  GT_EQUAL(runs, 1U);
}

}  // namespace
