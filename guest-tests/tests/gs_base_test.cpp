// SWAPGS and loads of GS while the PMU counts, between instructions that a source leaves to the processor below. SDM 2B
// SWAPGS.
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

constexpr vpmu::MsrIndex gs_base{0xC000'0101}, kernel_gs_base{0xC000'0102};
constexpr std::uint64_t ours = 0x1234'5000, others = 0x6789'A000;

void begin() {
  gt::wrmsr(gs_base, ours);
  gt::wrmsr(kernel_gs_base, others);
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os), 0);
  pmu::start(pmu::gp_bit(0));
}

GT_TEST(GsBase_IsExchangedAcrossInstructionsLeftToOthers) {
  begin();
  for (unsigned i = 0; i < 200; ++i) {
    std::uint32_t a = 0, c = 0;
    asm volatile("swapgs\n cpuid\n swapgs" : "+a"(a), "+c"(c)::"rbx", "rdx", "memory");
    GT_EQUAL(gt::rdmsr(gs_base), ours);
  }
  pmu::stop();
  GT_EQUAL(gt::rdmsr(kernel_gs_base), others);
  GT_CHECK(pmu::counter(0) > 0);
}

/// While it lives, CR4.FSGSBASE is set if the CPU has it.
class ReadableGsBase {
 public:
  ReadableGsBase() : has_{(gt::cpuid(7).ebx & 1) != 0} {
    asm volatile("mov %%cr4, %0" : "=r"(cr4_));
    if (has_) asm volatile("mov %0, %%cr4" ::"r"(cr4_ | 1U << 16));
  }
  ~ReadableGsBase() { asm volatile("mov %0, %%cr4" ::"r"(cr4_)); }
  /// The other GS base, read between two SWAPGS, as Linux does when it switches tasks.
  [[nodiscard]] std::uint64_t others() const {
    std::uint64_t base = 0;
    if (has_) {
      asm volatile("swapgs\n rdgsbase %0\n swapgs" : "=r"(base)::"memory");
    } else {
      std::uint32_t low = 0, high = 0;
      asm volatile("swapgs\n rdmsr\n swapgs" : "=a"(low), "=d"(high) : "c"(gs_base.value()) : "memory");
      base = std::uint64_t{high} << 32 | low;
    }
    return base;
  }

 private:
  bool has_;
  std::uint64_t cr4_{};
};

GT_TEST(GsBase_OfTheOthersIsReadBetweenTwoExchanges) {
  const ReadableGsBase gs;
  begin();
  for (unsigned i = 0; i < 200; ++i) {
    GT_EQUAL(gs.others(), others);
    GT_EQUAL(gt::rdmsr(gs_base), ours);
  }
  pmu::stop();
  GT_EQUAL(gt::rdmsr(kernel_gs_base), others);
  GT_CHECK(pmu::counter(0) > 0);
}

// As Linux loads a program's GS: the kernel's own base must be unchanged afterwards.
GT_TEST(GsBase_OfTheKernelSurvivesANullSelectorForPrograms) {
  for (const bool leaves : {false, true}) {
    begin();
    for (unsigned i = 0; i < 200; ++i) {
      std::uint32_t a = 0, c = 0;
      if (leaves)
        asm volatile("swapgs\n cpuid\n xor %%eax, %%eax\n mov %%eax, %%gs\n cpuid\n swapgs"
                     : "+a"(a), "+c"(c)::"rbx", "rdx", "memory");
      else
        asm volatile("swapgs\n mov %0, %%gs\n swapgs" ::"r"(0) : "memory");
      GT_EQUAL(gt::rdmsr(gs_base), ours);
    }
    pmu::stop();
    GT_CHECK(pmu::counter(0) > 0);
  }
}

constinit std::array<std::uint64_t, 3> interrupted{};  ///< NMIs that found our GS base, the other one, or neither.

// Like a kernel's handler that cannot know whose GS base it finds: it sets its own, and restores the one it found.
void as_a_kernel_does(gt::InterruptFrame&) {
  const std::uint64_t found = gt::rdmsr(gs_base);
  gt::wrmsr(gs_base, ours);
  interrupted[found == ours ? 0 : found == others ? 1 : 2] += 1;
  pmu::stop();
  pmu::acknowledge(pmu::gp_bit(0));
  gt::apic::write(gt::apic::lvtpc_offset, gt::apic::lvtpc::nmi);
  gt::wrmsr(gs_base, found);
}

/// Runs `window` again and again, with the overflow and its NMI at each of its instructions in turn.
template <class Window>
void interrupt_each_instruction(Window window) {
  gt::on_vector(x86::vector::NMI, as_a_kernel_does);
  gt::apic::enable();
  gt::apic::write(gt::apic::lvtpc_offset, gt::apic::lvtpc::nmi);
  gt::wrmsr(gs_base, ours);
  gt::wrmsr(kernel_gs_base, others);
  interrupted = {};
  for (unsigned period = 1; period < 40; ++period) {
    pmu::stop();
    pmu::program(0, pmu::select(pmu::instructions, pmu::os | pmu::interrupt), pmu::minus(period));
    pmu::start(pmu::gp_bit(0));
    window();
    pmu::stop();
    GT_EQUAL(gt::rdmsr(gs_base), ours);
    GT_EQUAL(gt::rdmsr(kernel_gs_base), others);
    GT_EQUAL(pmu::global_status(), 0U);  // the handler has run
  }
  GT_CHECK(interrupted[0] > 0);
  GT_CHECK(interrupted[1] > 0);
}

GT_TEST(GsBase_SurvivesAnNmiAtEachInstructionOfAnExchange, gt::need_exact_counts) {
  for (unsigned round = 0; round < 4; ++round) {
    interrupt_each_instruction([] {
      asm volatile("swapgs\n xor %%eax, %%eax\n mfence\n mov %%rsp, %%rax\n swapgs" ::: "rax", "memory");
    });
    interrupt_each_instruction([] {
      std::uint32_t a = 0, c = 0;
      asm volatile("swapgs\n cpuid\n nop\n swapgs" : "+a"(a), "+c"(c)::"rbx", "rdx", "memory");
    });
  }
}

}  // namespace
