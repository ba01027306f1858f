#include "vpmu/cpuid.hpp"

#include "vpmu/registers.hpp"

namespace vpmu {

CpuidRegisters cpuid_0ah(const GenerationDesc& g, unsigned gp_counters) {
  constexpr std::uint32_t architectural_events = 7;
  return {.eax = g.perfmon_version | (gp_counters << 8) | (std::uint32_t{g.counter_width} << 16) |
                 (architectural_events << 24),
          .ebx = g.unavailable_events,
          .ecx = 0,
          .edx = g.fixed_counters | (std::uint32_t{g.counter_width} << 5)};
}

std::uint64_t perf_capabilities(const GenerationDesc& g) {
  namespace pc = reg::perf_capabilities;
  return pc::LBR_FMT::make(static_cast<unsigned>(g.lbr_format)) | pc::PEBSTrap::make(1) |
         pc::PEBSSaveArchRegs::make(1) | pc::PEBS_FMT::make(g.pebs_format) | pc::SMM_FREEZE::make(1) |
         pc::FW_WRITE::make(g.features.full_width_write ? 1 : 0);
}

}  // namespace vpmu
