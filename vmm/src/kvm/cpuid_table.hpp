#pragma once
#include <linux/kvm.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace vmm {

/// The four registers of one CPUID leaf.
struct CpuidRegisters {
  std::uint32_t eax{}, ebx{}, ecx{}, edx{};
  friend bool operator==(const CpuidRegisters&, const CpuidRegisters&) = default;
};

/// A set of CPUID leaves as KVM_GET_SUPPORTED_CPUID gives and KVM_SET_CPUID2 takes them.
class CpuidTable {
 public:
  CpuidTable() = default;
  explicit CpuidTable(std::vector<kvm_cpuid_entry2> entries) : entries_{std::move(entries)} {}

  /// The registers of a leaf; a leaf without subleaves matches any `subleaf`. Empty when absent.
  [[nodiscard]] std::optional<CpuidRegisters> find(std::uint32_t leaf, std::uint32_t subleaf = 0) const;
  /// The registers of a leaf, all zero when absent.
  [[nodiscard]] CpuidRegisters get(std::uint32_t leaf, std::uint32_t subleaf = 0) const;
  /// Adds a leaf that has no subleaves.
  void add(std::uint32_t leaf, const CpuidRegisters& registers);
  /// Adds one subleaf of a leaf that has them.
  void add_subleaf(std::uint32_t leaf, std::uint32_t subleaf, const CpuidRegisters& registers);

  [[nodiscard]] const std::vector<kvm_cpuid_entry2>& entries() const { return entries_; }

 private:
  std::vector<kvm_cpuid_entry2> entries_;
};

}  // namespace vmm
