#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kvm/cpuid_table.hpp"
#include "kvm/vcpu.hpp"
#include "model/model.hpp"
#include "passthrough/kvm_pmu.hpp"
#include "support/result.hpp"

namespace vmm {

/// The name of the model that is this host itself.
constexpr std::string_view host_model_name{"host"};
/// The name of the source that is KVM's own PMU.
constexpr std::string_view pass_through_source{"kvm"};

/// How the guests of this host get its PMU from KVM: their CPU, CPUID and MSRs. MSRs are not filtered, and KVM handles
/// RDPMC.
class PassThrough {
 public:
  /// For a guest of `model`; null means the host's own. Fails with kind host, and says what the host can do, if KVM
  /// gives no PMU or not that model's: KVM gives only the host's own.
  static Result<PassThrough> create(KvmPmu pmu, const MachineModel* model);

  [[nodiscard]] const MachineModel& model() const { return model_; }
  /// `table`, made for model(), with KVM's PMU in place of ours.
  [[nodiscard]] CpuidTable adapt(const CpuidTable& table) const;
  /// Sets IA32_PERF_CAPABILITIES and the PMU's bits of IA32_MISC_ENABLE. Call it after the vCPU's CPUID is set.
  Result<void> prepare(Vcpu& vcpu) const;
  /// What the guest lacks although the model has it, for people; may be empty.
  [[nodiscard]] std::string lacks() const;

 private:
  PassThrough(KvmPmu pmu, const MachineModel& model) : pmu_{std::move(pmu)}, model_{model} {}

  KvmPmu pmu_;
  MachineModel model_;
};

}  // namespace vmm
