#include "attach/attached_cpuid.hpp"

#include <algorithm>
#include <span>

#include "machine/guest_cpuid.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/cpuid.hpp"

namespace vmm {
namespace {

using L1_B_IDS = vpmu::Bits<23, 16>;
using L1_B_APIC_ID = vpmu::Bits<31, 24>;
using L1_C_TSC_DEADLINE = vpmu::Bits<24>;

bool is_topology(std::uint32_t leaf) { return leaf == 0xB; }

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
  const vpmu::GenerationDesc& generation = vpmu::describe(model.generation);
  const vpmu::CpuidRegisters ours =
      vpmu::cpuid_0ah(generation, threads_per_core(kvms) == 1 ? generation.gp_counters_no_smt : generation.gp_counters);
  auto leaf = find(0xA);
  if (leaf == entries.end()) {
    if (list.nent >= room) return false;
    list.entries[list.nent++] = {};
    leaf = std::span{list.entries, list.nent}.end() - 1;
  }
  *leaf = {.function = 0xA, .eax = ours.eax, .ebx = ours.ebx, .ecx = ours.ecx, .edx = ours.edx};
  return true;
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
                             .threads_per_core = threads_per_core(vmms)};
  const CpuidTable ours = guest_cpuid(request, apic_id);
  const bool has_topology = vmms.find(0xB, 0).has_value();
  std::vector<kvm_cpuid_entry2> entries;
  for (const kvm_cpuid_entry2& e : ours.entries())
    if (!has_topology || !is_topology(e.function)) entries.push_back(e);
  for (const kvm_cpuid_entry2& e : vmms.entries())
    if (is_topology(e.function)) entries.push_back(e);
  return CpuidTable{std::move(entries)};
}

}  // namespace vmm
