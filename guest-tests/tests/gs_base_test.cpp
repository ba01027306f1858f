// SWAPGS and loads of GS while the PMU counts, with what a source leaves to others in between. SDM 2B SWAPGS.
#include "gt/asm.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"

namespace {

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

// As Linux loads a program's GS: the kernel's own base must be there afterwards.
GT_TEST(GsBase_OfTheKernelSurvivesANullSelectorForPrograms) {
  for (const bool leaves : {false, true}) {
    begin();
    for (unsigned i = 0; i < 200; ++i) {
      std::uint32_t a = 0, c = 0;
      if (leaves)
        asm volatile("swapgs\n cpuid\n xor %%eax, %%eax\n mov %%eax, %%gs\n cpuid\n swapgs" : "+a"(a), "+c"(c)::"rbx", "rdx", "memory");
      else
        asm volatile("swapgs\n mov %0, %%gs\n swapgs" ::"r"(0) : "memory");
      GT_EQUAL(gt::rdmsr(gs_base), ours);
    }
    pmu::stop();
    GT_CHECK(pmu::counter(0) > 0);
  }
}

}  // namespace
