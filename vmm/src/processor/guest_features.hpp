#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "exec/state/cpu_feature.hpp"
#include "kvm/cpuid_table.hpp"
#include "vcpu/backend.hpp"

namespace vmm {

/// The features that a guest without KVM may have, in the form of KVM_GET_SUPPORTED_CPUID: those that the engine and
/// SystemUnit implement, and of the others what this host's CPU has.
CpuidTable supported_features();

/// The features in a guest's CPUID. Cheap to ask.
class GuestFeatures {
 public:
  explicit GuestFeatures(const CpuidTable& cpuid);
  [[nodiscard]] bool has(vpmu::exec::CpuFeature feature) const {
    return (has_ >> static_cast<unsigned>(feature) & 1U) != 0;
  }
  /// The bits of CR4 that may be set.
  [[nodiscard]] std::uint64_t cr4() const { return cr4_; }
  [[nodiscard]] bool has_invpcid() const { return has_invpcid_; }
  /// The width of physical addresses, and whether pages may have 1 GiB.
  [[nodiscard]] PagingLimits paging() const { return paging_; }
  /// Whether XCR0 may have this value. SDM 1 13.3.
  [[nodiscard]] bool may_enable(std::uint64_t components) const;
  /// The features that enable instructions, one bit for each CpuFeature.
  [[nodiscard]] std::uint64_t all() const { return has_; }

 private:
  std::uint64_t has_{};
  std::uint64_t cr4_{};
  bool has_invpcid_{};
  std::uint64_t xcr0_{};  ///< The components that may be enabled.
  PagingLimits paging_;
};

/// The Linux names of the features that a CPUID reports.
std::vector<std::string_view> feature_names(const CpuidTable& cpuid);
/// The names of features that enable instructions, from one bit for each (GuestFeatures::all()).
std::vector<std::string_view> feature_names(std::uint64_t features);
/// The features in `wanted` that only a host CPU could run, and that this one lacks.
std::vector<std::string_view> lost_features(const CpuidTable& wanted);
/// The features in `wanted` that no guest without KVM has.
std::vector<std::string_view> hidden_features(const CpuidTable& wanted);

}  // namespace vmm
