#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "pmu/pmu_vcpu.hpp"

namespace vmm {

/// The registers of a PMU at rest as a VMM reads and writes them (KVM_GET_MSRS, KVM_SET_MSRS) to save and restore them:
/// not a guest's accesses. What is written may come in any order, and read-only registers have their state set.
class MsrImage {
 public:
  /// Of a PMU in this state, or without one as it is after power-up.
  MsrImage(const vpmu::PmuConfig& config, const std::optional<PmuVcpuState>& state);

  /// Whether the register is the PMU's. All that a core without SMT has are: those of them that are not there hold 0,
  /// as with KVM.
  [[nodiscard]] bool has(std::uint32_t index) const;
  [[nodiscard]] std::uint64_t read(std::uint32_t index) const;
  /// False when the register cannot hold it; then nothing has changed. IA32_PERF_CAPABILITIES changes limits().
  bool write(std::uint32_t index, std::uint64_t value);

  /// What has come of it; empty when nothing is different.
  [[nodiscard]] std::optional<PmuVcpuState> changed() const;
  [[nodiscard]] const vpmu::PmuLimits& limits() const { return config_.limits; }

 private:
  bool tell_capabilities(std::uint64_t value);
  bool write_state(const vpmu::PmuState& state);

  vpmu::PmuConfig config_;
  vpmu::Pmu pmu_;
  bool has_state_;
  PmuVcpuState rest_;  ///< But for the core's part.
  bool changed_{};
};

/// The registers of MsrImage that a model has, and that hold anything.
std::vector<std::uint32_t> pmu_msrs(vpmu::Generation generation);

}  // namespace vmm
