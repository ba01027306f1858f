#include "passthrough/kvm_pmu.hpp"

#include <linux/kvm.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

// SDM 3B 18.8.1.1 and 17.4.8.1: the PEBS format is IA32_PERF_CAPABILITIES[11:8]; KVM never gives format 0.
using PebsFormat = vpmu::Bits<11, 8>;
using L1_C_DTES64 = vpmu::Bits<2>;
using L1_D_DS = vpmu::Bits<21>;

/// Leaf 0's vendor string is in EBX, EDX and ECX. SDM 2A CPUID.
HostCpu host_of(const CpuidTable& supported) {
  const CpuidRegisters leaf = supported.get(0);
  const std::array words{leaf.ebx, leaf.edx, leaf.ecx};
  std::array<char, sizeof words> vendor{};
  std::memcpy(vendor.data(), words.data(), sizeof words);
  return host_cpu({vendor.data(), vendor.size()}, supported.get(1).eax);
}

}  // namespace

bool KvmPmu::pebs() const {
  const CpuidRegisters leaf = supported.get(1);
  return saves_ds && PebsFormat::get(perf_capabilities) != 0 && L1_C_DTES64::test(leaf.ecx) && L1_D_DS::test(leaf.edx);
}

Result<KvmPmu> examine_kvm_pmu(const System& system) {
  KvmPmu pmu;
  VMM_ASSIGN(pmu.supported, system.supported_cpuid());
  pmu.host = host_of(pmu.supported);
  pmu.offered = (system.check(KVM_CAP_PMU_CAPABILITY) & KVM_PMU_CAP_DISABLE) != 0;
  pmu.perf_capabilities = system.feature_msr(vpmu::msr::IA32_PERF_CAPABILITIES.value()).value_or(0);
  pmu.microcode = system.feature_msr(vpmu::msr::IA32_BIOS_SIGN_ID.value()).value_or(0);
  VMM_ASSIGN(const auto saved, system.saved_msrs());
  const auto saves = [&](std::uint32_t index) { return std::ranges::find(saved, index) != saved.end(); };
  pmu.saves_ds = saves(vpmu::msr::IA32_PEBS_ENABLE.value()) && saves(vpmu::msr::IA32_DS_AREA.value());
  return pmu;
}

Result<std::string> describe(const KvmPmu& pmu) {
  const std::string advice = "count by another source: perf, exact or clock";
  if (pmu.host.vendor != HostVendor::intel)
    return host_error("KVM passes this host's PMU through, and that is not Intel's", 0, advice);
  if (!pmu.offered || pmu.version() == 0)
    return host_error(
        "KVM gives guests no PMU on this host", 0,
        "load kvm_intel with enable_pmu=1 on a host that has a PMU and cores of one kind only; or " + advice);
  const std::uint32_t leaf = pmu.supported.get(0xA).eax;
  return fmt::format("KVM passes an Intel PMU through: version {}, {} counters of {} bits, {}", pmu.version(),
                     leaf >> 8U & 0xFFU, leaf >> 16U & 0xFFU,
                     pmu.pebs() ? fmt::format("PEBS format {}", pmu.perf_capabilities >> 8U & 0xFU) : "no PEBS");
}

}  // namespace vmm
