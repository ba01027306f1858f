// When an interrupt that waits is taken while the PMU counts: a source that runs the guest's code itself must not be late. SDM 3A 6.8.1, 6.8.3.
#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/interrupts.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"

namespace {

namespace pmu = gt::pmu;

constexpr std::uint8_t vector = 0x51;
constinit volatile std::uint64_t taken_at = 0;

void note(gt::InterruptFrame& frame) {
  taken_at = frame.rip;
  gt::apic::end_of_interrupt();
}

/// A counter counts, interrupts are off and one waits.
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

// The shadow is there only where interrupts were off. SDM 2B STI.
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
  asm volatile("pushfq\n orl $0x200, (%%rsp)\n popfq\n1: nop\n nop\n cli\n lea 1b(%%rip), %0" : "=r"(at)::"memory", "cc");
  end();
  GT_EQUAL(taken_at, at);
}

GT_TEST(Interrupts_AreTakenRightBehindIret) {
  std::uint64_t at = 0;
  begin();
  asm volatile(
      "mov %%rsp, %%rax\n mov %%ss, %%ecx\n push %%rcx\n push %%rax\n pushfq\n orl $0x200, (%%rsp)\n mov %%cs, %%ecx\n push %%rcx\n"
      "lea 1f(%%rip), %%rcx\n push %%rcx\n iretq\n1: nop\n nop\n cli\n lea 1b(%%rip), %0"
      : "=r"(at)::"rax", "rcx", "memory", "cc");
  end();
  GT_EQUAL(taken_at, at);
}

}  // namespace
