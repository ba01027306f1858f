#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "attach/msr_image.hpp"
#include "attach/run_gate.hpp"
#include "kvm/kick.hpp"
#include "kvm/vcpu.hpp"
#include "kvm/vm.hpp"
#include "machine/statistics.hpp"
#include "memory/linear.hpp"
#include "model/model.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "support/log.hpp"
#include "vcpu/kick_watch.hpp"
#include "vcpu/kvm_backend.hpp"

namespace vmm {

/// What an attached vCPU uses of its VM; all of it outlives the vCPU.
struct AttachedServices {
  Vm& vm;
  LinearMemory& memory;
  RunGate& gate;
  Log& log;
  bool tells_statistics{};  ///< Whether somebody will ask for statistics().
};

/// A vCPU of another VMM with our PMU. The other VMM keeps using KVM's calls on it; members handle those that concern
/// the PMU.
class AttachedVcpu {
 public:
  /// set_cpuid() completes `pmu` from the VMM's CPUID.
  AttachedVcpu(const AttachedServices& services, Vcpu vcpu, PmuVcpuConfig pmu)
      : services_{services}, vcpu_{std::move(vcpu)}, config_{std::move(pmu)} {}

  /// KVM_SET_CPUID2: gives KVM the model's CPUID instead of `theirs`. Call it before the first run().
  Result<void> set_cpuid(const MachineModel& model, const CpuidTable& theirs);
  /// KVM_RUN: answers as the kernel would, with the exit in kvm_run; handles our own exits inside. Call it on the
  /// vCPU's thread.
  /// @return 0, or -1 with errno.
  int run();
  /// The VMM has made a call other than KVM_RUN on this vCPU.
  void touched() { touched_ = true; }
  /// The VMM has set the TSC's frequency (KVM_SET_TSC_KHZ).
  void set_tsc_rate() { set_tsc_rate_ = true; }
  /// The VMM has written registers, perhaps because it has reset the processor.
  void wrote_registers() { wrote_registers_ = true; }
  /// KVM_SET_GUEST_DEBUG: the VMM's debugger starts; without KVM_GUESTDBG_ENABLE it ends. On the vCPU's thread.
  void debug(const kvm_guest_debug& how);
  /// KVM_GET_NESTED_STATE and KVM_SET_NESTED_STATE, with the PMU's state inside. False if it is not inside, and the
  /// state is only KVM's. Call them while the vCPU does not run.
  bool save(kvm_nested_state& to);
  bool restore(const kvm_nested_state& from);
  void restore_none();  ///< KVM has accepted a state without ours: the PMU is as after a reset.
  /// KVM_GET_MSRS and KVM_SET_MSRS; `ask_kvm` passes KVM's part of the list to KVM. Setting an MSR changes the state
  /// from restore() if that is still pending, else the PMU's own; a later restore() replaces all of it. Call them while
  /// the vCPU does not run.
  int get_msrs(kvm_msrs& list, const std::function<int(kvm_msrs&)>& ask_kvm);
  int set_msrs(kvm_msrs& list, const std::function<int(kvm_msrs&)>& ask_kvm);
  /// The VM has `vcpus` vCPUs now. Call it while no vCPU is inside (RunGate).
  void is_one_of(std::size_t vcpus);
  /// Kicks the vCPU out of its guest if run() is in progress; false if it is not.
  bool kick_if_running();
  /// All of the PMU's counters, "attach.resets", "attach.restores" (states restored from the VMM's snapshot) and
  /// "attach.restores_in_use" (of these: with counters selected). The values are those of the last time that the VMM
  /// interrupted the vCPU. From any thread.
  [[nodiscard]] VcpuStatistics statistics() const;

 private:
  Result<void> open();
  Result<void> follow_vmm();
  [[nodiscard]] Result<bool> is_reset();
  Result<void> prepare();
  VcpuBackend::DeviceRun run_to_device();
  Result<Exit> run_guest(VcpuBackend::DeviceRun came);
  /// What run() returns; empty if run() is to go on.
  std::optional<int> go_on(VcpuBackend::DeviceRun came);
  void publish();
  [[nodiscard]] MsrImage msr_image() const;

  AttachedServices services_;
  Vcpu vcpu_;
  PmuVcpuConfig config_;
  PmuTime time_{PmuTime::hidden};
  std::optional<KvmBackend> backend_;
  std::unique_ptr<PmuVcpu> pmu_;
  std::optional<PmuVcpuState> to_restore_;
  bool to_reset_{};
  bool state_is_the_vmms_{};  ///< to_restore_ came from restore().
  std::uint64_t resets_{}, restores_{}, restores_in_use_{};
  std::optional<kvm_guest_debug> debugging_;
  bool given_others_{}, told_of_debugger_{}, told_of_state_{};
  std::atomic<bool> touched_{}, wrote_registers_{}, set_tsc_rate_{};
  RunGate::ThreadInside thread_inside_{};
  KickWatch kick_watch_;
  mutable std::mutex mutex_;
  std::vector<Statistic> published_;  ///< Under mutex_.
};

}  // namespace vmm
