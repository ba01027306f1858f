// CMASK, INV, EDGE, ANY, and what counts in a halt or in a handler. SDM 3B 18.2.1.1, 18.2.3; rules C4,
// C6, C7, C8, P18. An exact source takes one cycle for each instruction.
#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/interrupts.hpp"
#include "gt/pebs.hpp"
#include "gt/streams.hpp"
#include "gt/test.hpp"

namespace {

namespace pmu = gt::pmu;
namespace pebs = gt::pebs;
namespace sel = pmu::reg::perfevtsel;

constinit std::uint64_t cell = 1;
std::uint64_t cell_address() { return reinterpret_cast<std::uint64_t>(&cell); }

constexpr std::uint64_t loads = gt::load_stream_length, others = gt::load_stream_instructions - gt::load_stream_length;

/// The count of the stream's loads with this CMASK and these other bits of the select.
std::uint64_t count(std::uint8_t cmask, std::uint64_t bits) {
  pmu::stop();
  pmu::program(0, pmu::select(gt::cpu::facts().loads, pmu::os) | sel::CMASK::make(cmask) | bits, 0);
  gt::gt_load_stream(pmu::gp_bit(0), cell_address());
  return pmu::counter(0);
}

// Rule C4: with CMASK = n, cycles with at least n events count; with INV as well, those with fewer.
GT_TEST(CycleConditions_CmaskCountsCycles, gt::need_exact_counts | gt::need_instruction_time) {
  GT_EQUAL(count(0, 0), loads);
  GT_EQUAL(count(1, 0), loads);
  GT_EQUAL(count(2, 0), 0U);
  GT_EQUAL(count(1, sel::INV::mask), others);
  GT_EQUAL(count(2, sel::INV::mask), loads + others);
}

// Rule C4: INV does nothing without CMASK.
GT_TEST(CycleConditions_InvNeedsCmask, gt::need_exact_counts) { GT_EQUAL(count(0, sel::INV::mask), loads); }

// Rule C4: EDGE counts how often the condition begins. The loads are consecutive, so it begins once.
GT_TEST(CycleConditions_EdgeCountsBeginnings, gt::need_exact_counts | gt::need_instruction_time) {
  GT_EQUAL(count(1, sel::E::mask), 1U);
  GT_EQUAL(count(2, sel::E::mask), 0U);
}

// Rule C8: a processor whose sibling does not run counts only its own events.
GT_TEST(CycleConditions_AnyThreadAddsNothing, gt::need_exact_counts) {
  GT_EQUAL(count(0, sel::ANY::mask), loads);
  constexpr std::uint64_t any = 4;
  pmu::stop();
  gt::wrmsr(pmu::msr::IA32_FIXED_CTR0, 0);
  gt::wrmsr(pmu::msr::IA32_FIXED_CTR_CTRL, pmu::fixed_control(0, pmu::fixed_os | any));
  gt::gt_load_stream(pmu::fixed_bit(0), cell_address());
  GT_EQUAL(pmu::fixed(0), gt::load_stream_instructions);
}

/// Instructions of the stream, in which PMC0 overflows; with those of the PMI's handler if it does not stop the
/// counters.
std::uint64_t count_over_a_handler(pmu::PmiPolicy policy) {
  pmu::stop();
  pmu::catch_pmi_by_nmi(policy);
  pmu::program(0, pmu::select(gt::cpu::facts().loads, pmu::os | pmu::interrupt), pmu::minus(5));
  pmu::program(1, pmu::select(pmu::instructions, pmu::os), 0);
  gt::gt_load_stream(pmu::gp_bit(0) | pmu::gp_bit(1), cell_address());
  return pmu::counter(1);
}

// Rule C6: counters go on in the handler until software stops them.
GT_TEST(CycleConditions_CountersRunInTheHandler, gt::need_exact_counts) {
  const std::uint64_t running = count_over_a_handler({.stop = 0});
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_CHECK(running > gt::load_stream_instructions + 20);
}

/// Instructions and cycles (PMC0, PMC1), and TSC ticks, up to the interrupt's handler.
struct UntilHandler {
  std::uint64_t instructions, cycles, ticks;
};
/// Runs `wait` with the counters on until the handler stops them; `prepare` causes the interrupt.
template <class Prepare, class Wait>
UntilHandler count_until_handler(Prepare prepare, Wait wait) {
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os), 0);
  pmu::program(1, pmu::select(pmu::cycles, pmu::os), 0);
  prepare();
  const std::uint64_t begin = gt::rdtsc();
  pmu::start(pmu::gp_bit(0) | pmu::gp_bit(1));
  wait();
  return {pmu::counter(0), pmu::counter(1), gt::rdtsc() - begin};
}

// Rule C7: in a halt nothing retires and no unhalted cycles pass. The handler that ends it is counted from its first
// instruction on, as after a NOP.
GT_TEST(CycleConditions_AHaltHasNoCycles, gt::need_exact_counts | gt::need_instruction_time) {
  constexpr std::uint8_t vector = 0x50;
  constexpr std::uint32_t ticks = 5'000'000;
  gt::apic::enable();
  gt::on_vector(vector, [](gt::InterruptFrame&) {
    pmu::stop();
    gt::apic::end_of_interrupt();
  });
  const UntilHandler awake = count_until_handler([] { gt::apic::send_to_self(vector); },
                                                 [] {
                                                   asm volatile("sti\n nop\n cli" ::: "memory");
                                                 });
  const UntilHandler halted = count_until_handler([] { gt::apic::start_timer(vector, ticks); },
                                                  [] {
                                                    asm volatile("sti\n hlt\n cli" ::: "memory");
                                                  });
  GT_CHECK(awake.instructions > 20 && awake.instructions < 500);
  GT_EQUAL(halted.instructions, awake.instructions);
  GT_EQUAL(halted.cycles, awake.cycles);
  GT_CHECK(halted.ticks > 100 * halted.cycles);
}

// Rule P18: the events that count cycles by INV and CMASK make records, one for each period.
GT_TEST(CycleConditions_PreciseCyclesRecord, gt::need_exact_counts | gt::need_instruction_time) {
  pebs::set_up(32, pebs::no_threshold);
  pebs::set_reset(0, 9);
  pmu::stop();
  pmu::program(0, pmu::select(gt::cpu::facts().precise_cycles, pmu::os), pmu::minus(9));
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 1);
  gt::gt_load_stream(1, cell_address());
  GT_REQUIRE(pebs::records_written() == gt::load_stream_instructions / 10);
  for (std::uint64_t k = 1; k <= 4; ++k) GT_EQUAL(pebs::eventing_ip(pebs::record(k - 1)), gt::load_stream_at(10 * k));
}

}  // namespace
