#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "kvm/cpuid_table.hpp"
#include "model/model.hpp"

namespace vmm {

/// The guest and the host for which a CPUID table is made.
struct CpuidRequest {
  const MachineModel& model;
  const CpuidTable& supported;  ///< What KVM can give on this host.
  bool tsc_deadline;            ///< KVM_CAP_TSC_DEADLINE_TIMER.
  std::uint64_t tsc_hz;
  unsigned cpus;              ///< Processors of the guest.
  bool bare_metal{};          ///< CPUID.01H:ECX[31] is 0, and there is no hypervisor leaf.
  bool counts_performance{};  ///< The processor has IA32_APERF and IA32_MPERF.
  /// Leaves 15H and 16H are there even if the model has neither: for guests of other VMMs, whose command line we do not
  /// write, on machines that may have no timer to measure the TSC with. Their crystal is the TSC's clock.
  bool always_tells_clocks{};
  unsigned threads_per_core{1};  ///< 1 or 2. The PMU of a core without SMT has more counters.
  std::uint64_t core_khz{};      ///< The frequency of the cores; 0: the TSC's. Leaf 16H tells the higher one.
  /// What leaf 4 describes instead of the model's.
  std::optional<std::array<CacheShape, 4>> caches{};
};

/// CPUID of processor `apic_id`: the model as a guest sees it on any x86 host. Features are what the model has and KVM
/// supports; AVX needs XSAVE; CPUID.0AH and DS, DTES64, DS-CPL, PDCM come from the PMU's description. The hypervisor
/// leaf carries KVM's signature, so that the guest uses x2APIC, and no paravirtual feature, so that it keeps its TSC
/// clock.
CpuidTable guest_cpuid(const CpuidRequest& request, std::uint32_t apic_id);

}  // namespace vmm
