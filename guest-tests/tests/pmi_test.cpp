// Performance monitoring interrupts. SDM 3A 10.5.1 (LVT), 3B 18.2.2; rules O2, O3, Q11, V1 to V7.
#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
namespace apic = gt::apic;

constexpr std::uint8_t vector = 0x40;
/// Long enough for an unwanted interrupt to arrive, in TSC ticks.
constexpr std::uint64_t a_while = 1ULL << 24;

void spin(std::uint64_t ticks) {
  pmu::wait_until([] { return false; }, ticks);
}

/// PMC0 counts cycles and overflows soon.
void start_overflow(std::uint64_t control = pmu::os | pmu::interrupt) {
  pmu::stop();
  pmu::program(0, pmu::select(pmu::cycles, control), pmu::minus(pmu::short_period()));
  pmu::start(pmu::gp_bit(0));
}

bool overflowed() {
  return pmu::wait_until([] { return (pmu::global_status() & pmu::gp_bit(0)) != 0; });
}

GT_TEST(Pmi_ArrivesAsNmi, gt::need_counts) {
  pmu::catch_pmi_by_nmi();
  start_overflow();
  GT_REQUIRE(pmu::wait_for_pmis(1));
  GT_EQUAL(pmu::pmi(0).vector, x86::vector::NMI);
  GT_EQUAL(pmu::pmi(0).status, pmu::gp_bit(0));
  GT_EQUAL(pmu::pmi(0).global_ctrl, pmu::gp_bit(0));
  GT_EQUAL(pmu::pmi(0).lvtpc, apic::lvtpc::nmi | apic::lvtpc::masked);  // rule V2
  GT_EQUAL(pmu::global_status(), 0U);                                   // acknowledged by the handler
  spin(a_while);
  GT_EQUAL(pmu::pmi_count(), 1U);
}

GT_TEST(Pmi_ArrivesAsFixedVector, gt::need_counts) {
  pmu::catch_pmi_by_vector(vector);
  gt::enable_interrupts();
  start_overflow();
  GT_REQUIRE(pmu::wait_for_pmis(1));
  GT_EQUAL(pmu::pmi(0).vector, vector);
  GT_EQUAL(pmu::pmi(0).status, pmu::gp_bit(0));
  GT_EQUAL(pmu::pmi(0).lvtpc, std::uint32_t{vector} | apic::lvtpc::masked);
  spin(a_while);
  GT_EQUAL(pmu::pmi_count(), 1U);
}

GT_TEST(Pmi_ComesOncePerOverflow, gt::need_counts) {
  constexpr std::uint32_t rounds = 12;
  pmu::catch_pmi_by_nmi({.unmask = 1});
  for (std::uint32_t n = 1; n <= rounds; ++n) {
    start_overflow();
    GT_REQUIRE(pmu::wait_for_pmis(n));
    GT_EQUAL(pmu::pmi_count(), n);
    GT_EQUAL(apic::read(apic::lvtpc_offset), apic::lvtpc::nmi);
  }
  spin(a_while);
  GT_EQUAL(pmu::pmi_count(), rounds);
}

// Rules O2, O3: the status bit comes with or without INT, the interrupt only with it.
GT_TEST(Pmi_NeedsTheInterruptEnable, gt::need_counts) {
  pmu::catch_pmi_by_nmi();
  start_overflow(pmu::os);
  GT_REQUIRE(overflowed());
  spin(a_while);
  GT_EQUAL(pmu::pmi_count(), 0U);
  GT_EQUAL(pmu::global_status(), pmu::gp_bit(0));
}

// SDM 3B figure 18-7: bit 3 of a fixed counter's field.
GT_TEST(Pmi_ComesFromFixedCounters, gt::need_counts) {
  pmu::catch_pmi_by_nmi();
  pmu::stop();
  gt::wrmsr(pmu::msr::IA32_FIXED_CTR0 + 1, pmu::minus(pmu::short_period()));
  gt::wrmsr(pmu::msr::IA32_FIXED_CTR_CTRL, pmu::fixed_control(1, pmu::fixed_os | pmu::fixed_pmi));
  pmu::start(pmu::fixed_bit(1));
  GT_REQUIRE(pmu::wait_for_pmis(1));
  GT_EQUAL(pmu::pmi(0).status, pmu::fixed_bit(1));
}

// Rule Q11: a fixed vector obeys RFLAGS.IF.
GT_TEST(Pmi_FixedVectorWaitsForInterruptFlag, gt::need_counts) {
  pmu::catch_pmi_by_vector(vector);
  start_overflow();
  GT_REQUIRE(overflowed());
  spin(a_while);
  GT_EQUAL(pmu::pmi_count(), 0U);
  gt::enable_interrupts();
  GT_CHECK(pmu::wait_for_pmis(1));
  GT_EQUAL(pmu::pmi_count(), 1U);
}

// Rule Q11: and the task priority. SDM 3A 10.8.3.1.
GT_TEST(Pmi_FixedVectorWaitsForTaskPriority, gt::need_counts) {
  pmu::catch_pmi_by_vector(vector);
  apic::write(apic::task_priority_offset, 0x50);
  gt::enable_interrupts();
  start_overflow();
  GT_REQUIRE(overflowed());
  spin(a_while);
  GT_EQUAL(pmu::pmi_count(), 0U);
  apic::write(apic::task_priority_offset, 0);
  GT_CHECK(pmu::wait_for_pmis(1));
}

// Rule V4: a request that meets a masked LVTPC is lost; the status bit is set all the same.
GT_TEST(Lvtpc_DropsAPmiWhileMasked, gt::need_counts) {
  pmu::catch_pmi_by_nmi();
  apic::write(apic::lvtpc_offset, apic::lvtpc::nmi | apic::lvtpc::masked);
  for (unsigned round = 0; round < 3; ++round) {
    start_overflow();
    GT_REQUIRE(overflowed());
    pmu::stop();
    GT_EQUAL(pmu::global_status(), pmu::gp_bit(0));  // rule V7
    pmu::acknowledge(pmu::gp_bit(0));
  }
  apic::write(apic::lvtpc_offset, apic::lvtpc::nmi);
  spin(a_while);
  GT_EQUAL(pmu::pmi_count(), 0U);
  start_overflow();
  GT_CHECK(pmu::wait_for_pmis(1));
  GT_EQUAL(pmu::pmi(0).lvtpc, apic::lvtpc::nmi | apic::lvtpc::masked);
}

// Rules V2, V4: in a handler LVTPC is masked, so that what overflows there causes no other interrupt.
GT_TEST(Lvtpc_DropsThePmisOfItsOwnHandler, gt::need_counts) {
  pmu::catch_pmi_by_nmi({.stop = 0});
  start_overflow();
  GT_REQUIRE(pmu::wait_for_pmis(1));
  for (unsigned round = 0; round < 3; ++round) {
    start_overflow();
    GT_REQUIRE(overflowed());
    pmu::stop();
    pmu::acknowledge(pmu::gp_bit(0));
  }
  GT_EQUAL(apic::read(apic::lvtpc_offset), apic::lvtpc::nmi | apic::lvtpc::masked);
  apic::write(apic::lvtpc_offset, apic::lvtpc::nmi);
  spin(a_while);
  GT_EQUAL(pmu::pmi_count(), 1U);
}

// Rule V7; SDM 3A 10.4.7.2: a software-disabled APIC keeps its LVT entries masked. The status bit is set all the same.
GT_TEST(Lvtpc_DisabledApicDeliversNothing, gt::need_counts) {
  pmu::catch_pmi_by_nmi();
  apic::disable();
  apic::write(apic::lvtpc_offset, apic::lvtpc::nmi);
  GT_EQUAL(apic::read(apic::lvtpc_offset), apic::lvtpc::nmi | apic::lvtpc::masked);
  start_overflow();
  GT_REQUIRE(overflowed());
  pmu::stop();
  spin(a_while);
  GT_EQUAL(pmu::pmi_count(), 0U);
  apic::enable();
  apic::write(apic::lvtpc_offset, apic::lvtpc::nmi);
  spin(a_while);
  GT_EQUAL(pmu::pmi_count(), 0U);  // rule V4
}

// An interrupt that is already pending ends HLT at once.
GT_TEST(Halt_IsEndedByAPendingPmi, gt::need_counts) {
  pmu::catch_pmi_by_vector(vector);
  start_overflow();
  GT_REQUIRE(overflowed());
  gt::halt_with_interrupts();
  GT_EQUAL(pmu::pmi_count(), 1U);
}

// HLT's own retirement overflows the counter: the NMI arrives when the vCPU sleeps already.
GT_TEST(Halt_IsEndedByItsOwnOverflow, gt::need_exact_counts) {
  pmu::catch_pmi_by_nmi();
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os | pmu::interrupt), pmu::minus(1));
  asm volatile("wrmsr\n hlt" ::"a"(1), "d"(0), "c"(pmu::msr::IA32_PERF_GLOBAL_CTRL.value()) : "memory");
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_EQUAL(pmu::pmi(0).status, pmu::gp_bit(0));
}

}  // namespace
