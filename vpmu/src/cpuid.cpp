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

bool may_tell_capabilities(const GenerationDesc& generation, std::uint64_t value) {
  namespace pc = reg::perf_capabilities;
  const std::uint64_t all = perf_capabilities(generation) | pc::FW_WRITE::mask;
  const auto whole = [&](std::uint64_t field) { return (value & field) == 0 || ((value ^ all) & field) == 0; };
  return (value & ~all) == 0 && whole(pc::LBR_FMT::mask) && whole(pc::PEBS_FMT::mask);
}

}  // namespace vpmu
