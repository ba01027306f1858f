#include "attach/attached_cpuid.hpp"

#include <algorithm>
#include <span>

#include "model/guest_cpuid.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/cpuid.hpp"

namespace vmm {
namespace {

using L1_B_IDS = vpmu::Bits<23, 16>;
using L1_B_APIC_ID = vpmu::Bits<31, 24>;
using L1_C_TSC_DEADLINE = vpmu::Bits<24>;

using LA_A_VERSION = vpmu::Bits<7, 0>;
using LA_A_COUNTERS = vpmu::Bits<15, 8>;
using LA_D_FIXED = vpmu::Bits<4, 0>;
constexpr std::uint32_t pmu_leaf = 0xA;

bool is_topology(std::uint32_t leaf) { return leaf == 0xB; }

CpuidRegisters models_pmu(const MachineModel& model, bool smt) {
  const vpmu::GenerationDesc& generation = vpmu::describe(model.generation);
  const vpmu::CpuidRegisters leaf =
      vpmu::cpuid_0ah(generation, smt ? generation.gp_counters : generation.gp_counters_no_smt);
  return {.eax = leaf.eax, .ebx = leaf.ebx, .ecx = leaf.ecx, .edx = leaf.edx};
}

/// The VMM's leaf 0AH, if it is neither empty nor a copy of the model's.
std::optional<CpuidRegisters> own_pmu(const MachineModel& model, const CpuidTable& vmms) {
  const auto leaf = vmms.find(pmu_leaf);
  const bool handed_on = leaf == models_pmu(model, true) || leaf == models_pmu(model, false);
  return leaf == CpuidRegisters{} || handed_on ? std::nullopt : leaf;
}

}  // namespace

unsigned threads_per_core(const CpuidTable& vmms) {
  constexpr std::uint32_t smt_level = 1;
  const auto leaf = vmms.find(0xB, 0);
  const bool told = leaf && (leaf->ecx >> 8U & 0xFF) == smt_level && leaf->ebx != 0;
  return told && leaf->ebx == 1 ? 1 : 2;
}

// SDM 2A CPUID.
bool show_pmu(const MachineModel& model, kvm_cpuid2& list, std::uint32_t room) {
  const std::span entries{list.entries, list.nent};
  const auto find = [&](std::uint32_t leaf) { return std::ranges::find(entries, leaf, &kvm_cpuid_entry2::function); };
  if (const auto first = find(1); first != entries.end()) {
    first->ecx |= vpmu::cpuid_01h_ecx;
    first->edx |= vpmu::cpuid_01h_edx;
  }
  const CpuidTable kvms{{entries.begin(), entries.end()}};
  const CpuidRegisters ours = models_pmu(model, threads_per_core(kvms) != 1);
  auto leaf = find(pmu_leaf);
  if (leaf == entries.end()) {
    if (list.nent >= room) return false;
    list.entries[list.nent++] = {};
    leaf = std::span{list.entries, list.nent}.end() - 1;
  }
  *leaf = {.function = pmu_leaf, .eax = ours.eax, .ebx = ours.ebx, .ecx = ours.ecx, .edx = ours.edx};
  return true;
}

vpmu::PmuLimits pmu_limits(const MachineModel& model, const CpuidTable& vmms) {
  const auto leaf = own_pmu(model, vmms);
  if (!leaf) return {};
  return {.version = static_cast<std::uint8_t>(LA_A_VERSION::get(leaf->eax)),
          .gp_counters = static_cast<std::uint8_t>(LA_A_COUNTERS::get(leaf->eax)),
          .fixed_counters = static_cast<std::uint8_t>(LA_D_FIXED::get(leaf->edx))};
}

CpuidTable attached_cpuid(const MachineModel& model, const CpuidTable& vmms, std::uint64_t tsc_hz) {
  const CpuidRegisters first = vmms.get(1);
  const auto apic_id = static_cast<std::uint32_t>(L1_B_APIC_ID::get(first.ebx));
  const CpuidRequest request{.model = model,
                             .supported = vmms,
                             .tsc_deadline = L1_C_TSC_DEADLINE::test(first.ecx),
                             .tsc_hz = tsc_hz,
                             .cpus = std::max(1U, static_cast<unsigned>(L1_B_IDS::get(first.ebx))),
                             .bare_metal = false,
                             .always_tells_clocks = true,
                             .threads_per_core = threads_per_core(vmms)};
  const CpuidTable ours = guest_cpuid(request, apic_id);
  const bool has_topology = vmms.find(0xB, 0).has_value();
  const auto pmu = own_pmu(model, vmms);
  std::vector<kvm_cpuid_entry2> entries;
  for (const kvm_cpuid_entry2& e : ours.entries())
    if ((!has_topology || !is_topology(e.function)) && (!pmu || e.function != pmu_leaf)) entries.push_back(e);
  if (pmu)
    entries.push_back({.function = pmu_leaf, .eax = pmu->eax, .ebx = pmu->ebx, .ecx = pmu->ecx, .edx = pmu->edx});
  for (const kvm_cpuid_entry2& e : vmms.entries())
    if (is_topology(e.function)) entries.push_back(e);
  return CpuidTable{std::move(entries)};
}

}  // namespace vmm
