#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "pmu/pmu_vcpu.hpp"

namespace vmm {

/// The registers of a stopped PMU, which a VMM reads and writes (KVM_GET_MSRS, KVM_SET_MSRS) to save and restore them.
/// Unlike a guest's accesses, writes may come in any order, and set the state of read-only registers, too.
class MsrImage {
 public:
  /// Of a PMU in `state`; if that is empty, of one after power-up.
  MsrImage(const vpmu::PmuConfig& config, const std::optional<PmuVcpuState>& state);

  /// Whether the register is the PMU's. All of a core without SMT are: those missing here read as 0, as with KVM.
  [[nodiscard]] bool has(std::uint32_t index) const;
  [[nodiscard]] std::uint64_t read(std::uint32_t index) const;
  /// False if the register cannot hold `value`; then nothing changes. A write to IA32_PERF_CAPABILITIES changes
  /// limits().
  bool write(std::uint32_t index, std::uint64_t value);

  /// The state after all writes; empty if they changed nothing.
  [[nodiscard]] std::optional<PmuVcpuState> changed() const;
  [[nodiscard]] const vpmu::PmuLimits& limits() const { return config_.limits; }

 private:
  bool tell_capabilities(std::uint64_t value);
  bool write_state(const vpmu::PmuState& state);

  vpmu::PmuConfig config_;
  vpmu::Pmu pmu_;
  bool has_state_;
  PmuVcpuState rest_;  ///< The state without its core part, which pmu_ has.
  bool changed_{};
};

/// The registers of MsrImage that a model has and that hold state.
std::vector<std::uint32_t> pmu_msrs(vpmu::Generation generation);

}  // namespace vmm
