// When a pending interrupt is taken while the PMU counts: a source that runs the guest's code itself must not deliver
// it late. SDM 3A 6.8.1, 6.8.3.
#include <array>

#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/interrupts.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;

constexpr std::uint8_t vector = 0x51;
constinit volatile std::uint64_t taken_at = 0;

void note(gt::InterruptFrame& frame) {
  taken_at = frame.rip;
  gt::apic::end_of_interrupt();
}

/// Starts a counter, and makes an interrupt pending while interrupts are off.
void begin() {
  gt::on_vector(vector, note);
  gt::apic::enable();
  taken_at = 0;
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os), 0);
  pmu::start(1);
  gt::apic::send_to_self(vector);
}
void end() {
  pmu::stop();
  GT_CHECK(pmu::counter(0) > 0);
}

GT_TEST(Interrupts_AreTakenOneInstructionBehindSti) {
  std::uint64_t at = 0;
  begin();
  asm volatile("sti\n nop\n1: nop\n nop\n cli\n lea 1b(%%rip), %0" : "=r"(at)::"memory");
  end();
  GT_EQUAL(taken_at, at);
}

// STI has an interrupt shadow only if interrupts were off. SDM 2B STI.
GT_TEST(Interrupts_AreTakenBehindASecondSti) {
  std::uint64_t at = 0;
  begin();
  asm volatile("sti\n sti\n1: nop\n nop\n cli\n lea 1b(%%rip), %0" : "=r"(at)::"memory");
  end();
  GT_EQUAL(taken_at, at);
}

GT_TEST(Interrupts_AreTakenRightBehindPopf) {
  std::uint64_t at = 0;
  begin();
  asm volatile("pushfq\n orl $0x200, (%%rsp)\n popfq\n1: nop\n nop\n cli\n lea 1b(%%rip), %0"
               : "=r"(at)::"memory", "cc");
  end();
  GT_EQUAL(taken_at, at);
}

GT_TEST(Interrupts_AreTakenRightBehindIret) {
  std::uint64_t at = 0;
  begin();
  asm volatile(
      "mov %%rsp, %%rax\n mov %%ss, %%ecx\n push %%rcx\n push %%rax\n pushfq\n orl $0x200, (%%rsp)\n mov %%cs, %%ecx\n "
      "push %%rcx\n"
      "lea 1f(%%rip), %%rcx\n push %%rcx\n iretq\n1: nop\n nop\n cli\n lea 1b(%%rip), %0"
      : "=r"(at)::"rax", "rcx", "memory", "cc");
  end();
  GT_EQUAL(taken_at, at);
}

// HLT ends with the pending interrupt, and not before. SDM 2A HLT.
GT_TEST(Interrupts_EndAHalt) {
  gt::on_vector(vector, note);
  gt::apic::enable();
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os), 0);
  pmu::start(1);
  for (unsigned i = 0; i < 5; ++i) {
    std::uint64_t at = 0;
    taken_at = 0;
    gt::apic::start_timer(vector, 2'000'000);
    asm volatile("sti\n hlt\n1: cli\n lea 1b(%%rip), %0" : "=r"(at)::"memory");
    GT_EQUAL(taken_at, at);
  }
  end();
}

constexpr unsigned max_nmis = 8;
constinit std::array<std::uint64_t, max_nmis> nmi_at{};
constinit volatile unsigned nmis = 0;

// Restarts the counter, so that the handler's last instructions and its IRET count towards the next overflow.
void overflow_soon_again(gt::InterruptFrame& frame) {
  pmu::stop();
  if (nmis < max_nmis) nmi_at[nmis] = frame.rip;
  nmis = nmis + 1;
  pmu::acknowledge(pmu::gp_bit(0));
  gt::apic::write(gt::apic::lvtpc_offset, gt::apic::lvtpc::nmi);
  if (nmis >= max_nmis) return;
  gt::wrmsr(vpmu::msr::IA32_PMC0, pmu::minus(200));
  pmu::start(pmu::gp_bit(0));
}

// IRET unmasks NMIs: the next one must not wait for another IRET. SDM 3A 6.7.1.
GT_TEST(Interrupts_NmisAreTakenSoonBehindAnIretFromOne, gt::need_exact_counts) {
  gt::on_vector(x86::vector::NMI, overflow_soon_again);
  gt::apic::enable();
  gt::apic::write(gt::apic::lvtpc_offset, gt::apic::lvtpc::nmi);
  nmis = 0;
  std::uint64_t begin = 0, end = 0;
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os | pmu::interrupt), pmu::minus(20));
  pmu::start(pmu::gp_bit(0));
  asm volatile("1: .rept 2000\n nop\n .endr\n 2: lea 1b(%%rip), %0\n lea 2b(%%rip), %1"
               : "=r"(begin), "=r"(end)::"memory");
  pmu::stop();
  GT_EQUAL(nmis, max_nmis);
  for (unsigned i = 0; i < max_nmis; ++i) {
    GT_CHECK(nmi_at[i] >= (i == 0 ? begin : nmi_at[i - 1]));
    GT_CHECK(nmi_at[i] <= end);
    if (i != 0) GT_CHECK(nmi_at[i] - nmi_at[i - 1] <= 200);
  }
}

}  // namespace
