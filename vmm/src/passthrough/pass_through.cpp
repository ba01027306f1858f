#include "passthrough/pass_through.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "vpmu/bits.hpp"
#include "vpmu/generation.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

using vpmu::Bits;

// SDM 4 table 2-2: IA32_MISC_ENABLE.
constexpr std::uint64_t fast_strings = Bits<0>::mask, perfmon_available = Bits<7>::mask;
using MiscEnablePebsUnavailable = Bits<12>;
// The PEBS bits of IA32_PERF_CAPABILITIES: PEBS_TRAP, PEBS_ARCH_REG, the format, PEBS_BASELINE. SDM 3B 17.4.8.1.
constexpr std::uint64_t capabilities_of_pebs = Bits<6>::mask | Bits<7>::mask | Bits<11, 8>::mask | Bits<14>::mask;

constexpr std::uint32_t l1_c_dtes64 = Bits<2>::mask;
constexpr std::uint32_t l1_c_ds_cpl = Bits<4>::mask;
constexpr std::uint32_t l1_c_pdcm = Bits<15>::mask;
constexpr std::uint32_t l1_d_ds = Bits<21>::mask;

/// CPUID.01H:EAX without the stepping, as KVM compares a guest's CPU with the host's.
constexpr std::uint32_t family_and_model = 0x0FFF'0FF0;

template <class Field>
constexpr std::uint32_t get(std::uint32_t word) {
  return static_cast<std::uint32_t>(Field::get(word));
}

/// CPUID leaf 4, subleaf by subleaf. SDM 2A CPUID.
std::array<CacheShape, 4> caches_of(const CpuidTable& host, std::array<CacheShape, 4> otherwise) {
  for (std::uint32_t i = 0; i < otherwise.size(); ++i) {
    const CpuidRegisters leaf = host.get(4, i);
    const std::uint32_t kind = get<Bits<4, 0>>(leaf.eax);
    if (kind == 0 || kind > 3) break;
    const std::uint32_t ways = get<Bits<31, 22>>(leaf.ebx) + 1;
    const std::uint32_t line = (get<Bits<11, 0>>(leaf.ebx) + 1) * (get<Bits<21, 12>>(leaf.ebx) + 1);
    const auto level = static_cast<std::uint8_t>(Bits<7, 5>::get(leaf.eax));
    otherwise[i] = {.kind = static_cast<CacheShape::Kind>(kind),
                    .level = level,
                    .bytes = ways * line * (leaf.ecx + 1),
                    .ways = ways,
                    .shared = level < 3 ? CacheShape::Shared::core : CacheShape::Shared::package,
                    .inclusive = Bits<1>::test(leaf.edx)};
  }
  return otherwise;
}

/// This host as a model: its own identity, and of its features those that the newest model has.
MachineModel model_of(const KvmPmu& pmu) {
  constexpr unsigned revision_shift = 32;
  MachineModel model = machine_model(pmu.host.generation.value_or(vpmu::all_generations().back()->generation));
  model.name = host_model_name;
  model.signature = pmu.signature();
  model.microcode = static_cast<std::uint32_t>(pmu.microcode >> revision_shift);
  model.leaf_2 = pmu.supported.get(2);
  model.caches = caches_of(pmu.supported, model.caches);
  model.physical_bits = static_cast<std::uint8_t>(pmu.supported.get(0x80000008).eax);
  return model;
}

bool is_brand(std::uint32_t leaf) { return leaf >= 0x80000002 && leaf <= 0x80000004; }

}  // namespace

Result<PassThrough> PassThrough::create(KvmPmu pmu, const MachineModel* model) {
  VMM_ASSIGN(const std::string can, describe(pmu));
  if (model == nullptr) {
    const MachineModel host = model_of(pmu);
    return PassThrough{std::move(pmu), host};
  }
  if (((model->signature ^ pmu.signature()) & family_and_model) != 0)
    return host_error(
        fmt::format("KVM cannot give a guest the PMU of model {} (CPUID {:#x}) on this host (CPUID {:#x}); {}",
                    model->name, model->signature, pmu.signature(), can),
        0,
        fmt::format("give --model {} for this host's own, or count by another source: perf, exact or clock",
                    host_model_name));
  return PassThrough{std::move(pmu), *model};
}

CpuidTable PassThrough::adapt(const CpuidTable& table) const {
  const CpuidRegisters host = pmu_.supported.get(1);
  const std::uint32_t ecx_of_pmu = l1_c_pdcm | (pmu_.pebs() ? l1_c_dtes64 | l1_c_ds_cpl : 0);
  std::vector<kvm_cpuid_entry2> entries = table.entries();
  for (kvm_cpuid_entry2& e : entries) {
    if (e.function == 1) {
      e.ecx = (e.ecx & ~(l1_c_pdcm | l1_c_dtes64 | l1_c_ds_cpl)) | (host.ecx & ecx_of_pmu);
      e.edx = (e.edx & ~l1_d_ds) | (pmu_.pebs() ? l1_d_ds : 0);
    }
    const bool is_hosts = e.function == 0xA || (is_brand(e.function) && model_.name == host_model_name);
    if (!is_hosts) continue;
    const CpuidRegisters theirs = pmu_.supported.get(e.function);
    e.eax = theirs.eax;
    e.ebx = theirs.ebx;
    e.ecx = theirs.ecx;
    e.edx = theirs.edx;
  }
  return CpuidTable{std::move(entries)};
}

// KVM starts with PEBS unavailable, and only the VMM may change that: kvm-host.md 1.1. KVM also starts without fast
// strings and with performance monitoring unavailable. Every Intel processor has both after RESET; without fast strings
// Linux does not use REP MOVSB.
Result<void> PassThrough::prepare(Vcpu& vcpu) const {
  if ((pmu_.supported.get(1).ecx & l1_c_pdcm) != 0) {
    const std::uint64_t capabilities =
        pmu_.pebs() ? pmu_.perf_capabilities : pmu_.perf_capabilities & ~capabilities_of_pebs;
    VMM_TRY(vcpu.set_msr(vpmu::msr::IA32_PERF_CAPABILITIES.value(), capabilities));
  }
  VMM_ASSIGN(const std::uint64_t before, vcpu.msr(vpmu::msr::IA32_MISC_ENABLE.value()));
  const std::uint64_t unavailable = MiscEnablePebsUnavailable::mask, with = before | fast_strings | perfmon_available;
  return vcpu.set_msr(vpmu::msr::IA32_MISC_ENABLE.value(), pmu_.pebs() ? with & ~unavailable : with | unavailable);
}

std::string PassThrough::lacks() const {
  if (pmu_.pebs()) return {};
  return fmt::format("guests of model {} have no PEBS: KVM gives it on Ice Lake-X and later servers only", model_.name);
}

}  // namespace vmm
