// Prints what the processor reports about itself: the leaves of CPUID, and the MSRs that it has.
#include "bare.hpp"

extern "C" {
volatile bool bare_faulted;
}

namespace {

void tell_cpuid(std::uint32_t first) {
  constexpr std::uint32_t subleaves = 8, max_leaves = 0x40;
  const std::uint32_t last = bare::cpuid(first).eax;
  for (std::uint32_t leaf = first; leaf <= last && leaf - first < max_leaves; ++leaf)
    for (std::uint32_t subleaf = 0; subleaf < subleaves; ++subleaf) {
      const auto r = bare::cpuid(leaf, subleaf);
      if (subleaf != 0 && (r.eax | r.ebx | r.ecx | r.edx) == 0) break;
      bare::put("cpuid");
      const std::uint32_t words[]{leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx};
      for (const std::uint32_t word : words) bare::put_hex(word);
      bare::put("\n");
    }
}

void tell_msrs(std::uint32_t first, std::uint32_t count) {
  for (std::uint32_t index = first; index - first < count; ++index) {
    bare_faulted = false;
    const std::uint64_t value = bare::rdmsr(index);
    if (bare_faulted) continue;
    bare::put("msr");
    bare::put_hex(index);
    bare::put_hex(value);
    bare::put("\n");
  }
}

}  // namespace

extern "C" void bare_main() {
  bare::set_up_serial();
  bare::catch_gp();
  tell_cpuid(0);
  tell_cpuid(0x40000000);
  tell_cpuid(0x80000000);
  tell_msrs(0, 0x1000);
  tell_msrs(0x4B564D00, 0x10);
  tell_msrs(0xC0000080, 0x80);
  tell_msrs(0xC0010000, 0x400);
  bare::put("end\n");
}
