#include <x86intrin.h>

#include <optional>

#include "boot/layout.hpp"
#include "kvm/capabilities.hpp"
#include "kvm/kick.hpp"
#include "kvm/system.hpp"
#include "kvm/vm.hpp"
#include "machine/accelerator.hpp"
#include "machine/kvm_wires.hpp"
#include "machine/probe_guest.hpp"
#include "model/clocks.hpp"
#include "model/guest_cpuid.hpp"
#include "model/model.hpp"
#include "model/own_part.hpp"
#include "passthrough/pass_through.hpp"
#include "pmu/pmu_setup.hpp"
#include "snapshot/vcpu_image.hpp"
#include "vcpu/kvm_backend.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

// IA32_MTRR_DEF_TYPE: MTRRs on, everything write-back, as firmware leaves it. SDM 3A 11.11.2.1.
constexpr std::uint64_t mtrr_on_write_back = 0x806;

/// What is needed to save and restore a vCPU.
struct SavedParts {
  std::vector<std::uint32_t> msrs;  ///< System::saved_msrs.
  std::uint64_t created_at{};       ///< The host's TSC.
};

class KvmProcessor final : public Processor {
 public:
  KvmProcessor(Vm& vm, Vcpu vcpu, PmuTime pmu_time, const SavedParts& parts)
      : vm_{&vm}, vcpu_{std::move(vcpu)}, pmu_time_{pmu_time}, parts_{&parts} {}
  Result<void> start_at(const StartRegisters& start) override { return enter_at(vcpu_, start); }
  Result<VcpuBackend*> open() override {
    VMM_ASSIGN(KvmBackend backend, KvmBackend::create(*vm_, vcpu_, pmu_time_));
    return &backend_.emplace(std::move(backend));
  }
  [[nodiscard]] volatile std::uint8_t* kick_flag() override { return vcpu_.immediate_exit_flag(); }
  Result<Bytes> save() override { return save_vcpu(vcpu_, parts_->msrs); }
  Result<void> restore(std::span<const std::byte> image) override {
    return restore_vcpu(vcpu_, image, parts_->created_at);
  }

 private:
  Vm* vm_;
  Vcpu vcpu_;
  PmuTime pmu_time_;
  const SavedParts* parts_;
  std::optional<KvmBackend> backend_;
};

class KvmAccelerator final : public Accelerator {
 public:
  KvmAccelerator(Vm vm, SavedParts parts, CpuidTable supported, std::optional<PassThrough> passed,
                 const AcceleratorNeeds& needs)
      : vm_{std::move(vm)},
        parts_{std::move(parts)},
        supported_{std::move(supported)},
        passed_{std::move(passed)},
        model_{passed_ ? &passed_->model() : needs.resolved.model},
        pmu_time_{time_beside_others(needs.config.pmu_time, needs.config.cpus)},
        cpus_{needs.config.cpus},
        bare_metal_{needs.config.bare_metal},
        threads_per_core_{needs.config.threads_per_core},
        caches_{changed_caches(*model_, needs.config.source_options.changes)},
        core_khz_{core_khz(needs.config.source_options)} {}

  Result<void> add_chips(const AcceleratorNeeds& needs);
  Result<std::unique_ptr<Processor>> add_processor(unsigned id) override;
  [[nodiscard]] std::optional<std::uint64_t> untold_tsc_khz() const override {
    return crystal_ratio(*model_, tsc_khz_ * 1000) ? std::nullopt : std::optional{tsc_khz_};
  }
  Result<void> set_line(std::uint32_t gsi, LineLevel level) override {
    return vm_.set_line(gsi, level == LineLevel::high ? Vm::Level::high : Vm::Level::low);
  }
  [[nodiscard]] DeviceWires& wires() override { return wires_; }
  [[nodiscard]] std::time_t time_of_day() const override { return std::time(nullptr); }
  Result<Bytes> save_chips() override { return vmm::save_chips(vm_); }
  Result<void> restore_chips(std::span<const std::byte> image) override { return vmm::restore_chips(vm_, image); }

 private:
  Vm vm_;
  KvmWires wires_{vm_};
  SavedParts parts_;
  CpuidTable supported_;
  std::optional<PassThrough> passed_;
  const MachineModel* model_;
  PmuTime pmu_time_;
  unsigned cpus_;
  bool bare_metal_;
  unsigned threads_per_core_;
  std::array<CacheShape, 4> caches_;
  std::uint64_t core_khz_;
  std::uint64_t tsc_khz_{};  ///< Of the processors that were added.
};

Result<void> KvmAccelerator::add_chips(const AcceleratorNeeds& needs) {
  VMM_TRY(vm_.set_reserved_pages(layout::kvm_reserved));
  VMM_TRY(vm_.create_irqchip());
  VMM_TRY(vm_.create_pit());
  // Otherwise KVM polls in a halted vCPU, and the thread's CPU time would include the guest's idle time.
  if (vm_.check(KVM_CAP_HALT_POLL) != 0) {
    VMM_TRY(vm_.enable(KVM_CAP_HALT_POLL, {0}));
  }
  if (passed_)
    VMM_TRY(apply(needs.config.events, vm_));
  else
    VMM_TRY(prepare_vm_for_pmu(vm_, vpmu::describe(model_->generation)));
  return needs.memory.attach(vm_);
}

Result<std::unique_ptr<Processor>> KvmAccelerator::add_processor(unsigned id) {
  VMM_ASSIGN(auto vcpu, vm_.create_vcpu(id));
  VMM_ASSIGN(tsc_khz_, vcpu.tsc_khz());
  const CpuidRequest request{.model = *model_,
                             .supported = supported_,
                             .tsc_deadline = vm_.check(KVM_CAP_TSC_DEADLINE_TIMER) != 0,
                             .tsc_hz = tsc_khz_ * 1000,
                             .cpus = cpus_,
                             .bare_metal = bare_metal_,
                             .threads_per_core = threads_per_core_,
                             .core_khz = core_khz_,
                             .caches = caches_};
  const CpuidTable cpuid = guest_cpuid(request, id);
  VMM_TRY(vcpu.set_cpuid(passed_ ? passed_->adapt(cpuid) : cpuid));
  if (passed_) VMM_TRY(passed_->prepare(vcpu));
  VMM_TRY(vcpu.set_msr(vpmu::msr::IA32_BIOS_SIGN_ID.value(), bios_sign_id(*model_)));
  // A KVM before Linux 4.13 does not have it.
  if (const auto kvms = vcpu.msr(vpmu::msr::MSR_PLATFORM_INFO.value()))
    VMM_TRY(vcpu.set_msr(vpmu::msr::MSR_PLATFORM_INFO.value(), *kvms | platform_info(*model_, tsc_khz_)));
  VMM_TRY(vcpu.set_msr(vpmu::msr::IA32_MTRR_DEF_TYPE.value(), mtrr_on_write_back));
  return std::make_unique<KvmProcessor>(vm_, std::move(vcpu), pmu_time_, parts_);
}

}  // namespace

Result<std::unique_ptr<Accelerator>> make_kvm_accelerator(const AcceleratorNeeds& needs) {
  VMM_ASSIGN(const auto system, System::open(needs.config.kvm_device));
  VMM_TRY(require_capabilities(system));
  if (!needs.resolved.passes_through()) {
    VMM_ASSIGN(const RdpmcBehaviour rdpmc, probe_rdpmc(system));
    VMM_TRY(require_rdpmc(rdpmc));
  }
  VMM_ASSIGN(auto vm, system.create_vm());
  VMM_ASSIGN(auto supported, system.supported_cpuid());
  std::optional<PassThrough> passed;
  if (needs.resolved.passes_through()) {
    VMM_ASSIGN(KvmPmu found, examine_kvm_pmu(system));
    VMM_ASSIGN(passed, PassThrough::create(std::move(found), needs.resolved.model));
    if (const std::string lacks = passed->lacks(); !lacks.empty()) needs.log.warning("{}", lacks);
  }
  SavedParts parts{.created_at = __rdtsc()};
  VMM_ASSIGN(parts.msrs, system.saved_msrs());
  auto kvm =
      std::make_unique<KvmAccelerator>(std::move(vm), std::move(parts), std::move(supported), std::move(passed), needs);
  VMM_TRY(kvm->add_chips(needs));
  return kvm;
}

}  // namespace vmm
