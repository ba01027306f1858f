#include "kvm/cpuid_table.hpp"

namespace vmm {

std::optional<CpuidRegisters> CpuidTable::find(std::uint32_t leaf, std::uint32_t subleaf) const {
  for (const auto& entry : entries_) {
    const bool indexed = (entry.flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX) != 0;
    if (entry.function == leaf && (!indexed || entry.index == subleaf)) {
      return CpuidRegisters{.eax = entry.eax, .ebx = entry.ebx, .ecx = entry.ecx, .edx = entry.edx};
    }
  }
  return std::nullopt;
}

CpuidRegisters CpuidTable::get(std::uint32_t leaf, std::uint32_t subleaf) const {
  return find(leaf, subleaf).value_or(CpuidRegisters{});
}

void CpuidTable::add(std::uint32_t leaf, const CpuidRegisters& registers) {
  entries_.push_back(
      {.function = leaf, .eax = registers.eax, .ebx = registers.ebx, .ecx = registers.ecx, .edx = registers.edx});
}

void CpuidTable::add_subleaf(std::uint32_t leaf, std::uint32_t subleaf, const CpuidRegisters& registers) {
  entries_.push_back({.function = leaf,
                      .index = subleaf,
                      .flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
                      .eax = registers.eax,
                      .ebx = registers.ebx,
                      .ecx = registers.ecx,
                      .edx = registers.edx});
}

}  // namespace vmm
