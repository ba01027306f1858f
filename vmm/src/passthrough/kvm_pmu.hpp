#pragma once
#include <cstdint>
#include <string>

#include "kvm/cpuid_table.hpp"
#include "kvm/system.hpp"
#include "model/model.hpp"
#include "perf/host_events.hpp"
#include "support/result.hpp"

namespace vmm {

/// KVM's own virtual PMU, as far as this host's KVM gives one to guests.
struct KvmPmu {
  HostCpu host;
  CpuidTable supported;               ///< What KVM can give.
  std::uint64_t perf_capabilities{};  ///< IA32_PERF_CAPABILITIES of guests; 0 where they have none.
  std::uint64_t microcode{};          ///< IA32_BIOS_SIGN_ID.
  bool saves_ds{};                    ///< KVM saves and restores IA32_PEBS_ENABLE and IA32_DS_AREA.
  bool offered{};                     ///< KVM_CAP_PMU_CAPABILITY: the host has a PMU, and the module passes it on.

  [[nodiscard]] std::uint32_t signature() const { return supported.get(1).eax; }
  /// CPUID.0AH:EAX[7:0]; 0 = no architectural PMU.
  [[nodiscard]] unsigned version() const { return supported.get(0xA).eax & 0xFFU; }
  /// Whether guests get PEBS: Ice Lake-X and later (Linux 6.0).
  [[nodiscard]] bool pebs() const;
};

/// Asks KVM and CPUID. Cost: a few system calls.
Result<KvmPmu> examine_kvm_pmu(const System& system);

/// One line, for people, on what a guest can have of it; fails with the reason if that is nothing.
Result<std::string> describe(const KvmPmu& pmu);

}  // namespace vmm
