#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "exec/cpu_feature.hpp"
#include "kvm/cpuid_table.hpp"

namespace vmm {

/// What a guest without KVM may have, in the form of KVM_GET_SUPPORTED_CPUID: what the engine and SystemUnit do
/// themselves, and of the rest what this host's CPU has. No PCID, and so no INVPCID: without it a kernel says with CR3
/// alone that translations are stale, and the model's TLBs are those of such a CPU.
CpuidTable supported_features();

/// Which features a guest's CPUID tells of. Cheap to ask.
class GuestFeatures {
 public:
  explicit GuestFeatures(const CpuidTable& cpuid);
  [[nodiscard]] bool has(vpmu::exec::CpuFeature feature) const {
    return (has_ >> static_cast<unsigned>(feature) & 1U) != 0;
  }
  /// The bits of CR4 that may be set.
  [[nodiscard]] std::uint64_t cr4() const { return cr4_; }
  /// Whether XCR0 may have this value. SDM 1 13.3.
  [[nodiscard]] bool may_enable(std::uint64_t components) const;
  /// Those that instructions are decoded by, a bit for each CpuFeature.
  [[nodiscard]] std::uint64_t all() const { return has_; }

 private:
  std::uint64_t has_{};
  std::uint64_t cr4_{};
  std::uint64_t xcr0_{};  ///< The components that may be enabled.
};

/// The names, as Linux has them, of the features that a CPUID tells of.
std::vector<std::string_view> feature_names(const CpuidTable& cpuid);
/// The names of those that instructions are decoded by, of a bit for each (GuestFeatures::all()).
std::vector<std::string_view> feature_names(std::uint64_t features);
/// Of those that a CPUID tells of, what only a host's CPU could run and this one's cannot.
std::vector<std::string_view> lost_features(const CpuidTable& wanted);
/// Of those, what no guest without KVM sees.
std::vector<std::string_view> hidden_features(const CpuidTable& wanted);

}  // namespace vmm
