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
#include "vcpu/kvm_port.hpp"

namespace vmm {

/// What an attached vCPU uses of its VM; all of it outlives the vCPU.
struct AttachedServices {
  Vm& vm;
  LinearMemory& memory;
  RunGate& gate;
  Log& log;
  bool tells_statistics{};  ///< Whether somebody will ask for statistics().
};

/// A vCPU of another VMM with our PMU. The other VMM goes on to use KVM's calls on it; we come in where it runs the
/// guest.
class AttachedVcpu {
 public:
  /// `pmu` is completed by what the VMM's CPUID tells.
  AttachedVcpu(const AttachedServices& services, Vcpu vcpu, PmuVcpuConfig pmu)
      : services_{services}, vcpu_{std::move(vcpu)}, config_{std::move(pmu)} {}

  /// KVM_SET_CPUID2: gives KVM the model's instead. Before the first run().
  Result<void> set_cpuid(const MachineModel& model, const CpuidTable& theirs);
  /// KVM_RUN: as the kernel would answer it, with the exit in kvm_run; our own exits do not come out. On the vCPU's
  /// thread.
  /// @return 0, or -1 with errno.
  int run();
  /// The VMM has called KVM for this vCPU, beside run().
  void touched() { touched_ = true; }
  /// It has set the rate of the TSC.
  void set_tsc_rate() { set_tsc_rate_ = true; }
  /// It has written registers: they may be those of a processor that has just been reset.
  void wrote_registers() { wrote_registers_ = true; }
  /// KVM_SET_GUEST_DEBUG: a debugger of the VMM begins, goes on or, with no flag, ends. On the vCPU's thread.
  void debug(const kvm_guest_debug& how);
  /// KVM_GET_NESTED_STATE and KVM_SET_NESTED_STATE: the PMU's state goes with it. False when it does not, and the state
  /// is KVM's alone. While the vCPU does not run.
  bool save(kvm_nested_state& to);
  bool restore(const kvm_nested_state& from);
  void restore_none();  ///< KVM has taken a state without ours: the PMU is as after a reset.
  /// KVM_GET_MSRS and KVM_SET_MSRS, in which `ask_kvm` asks KVM for a part of the list. What is set changes the state
  /// that restore() has given, or the PMU's own; a later restore() replaces all of it. While the vCPU does not
  /// run.
  int get_msrs(kvm_msrs& list, const std::function<int(kvm_msrs&)>& ask_kvm);
  int set_msrs(kvm_msrs& list, const std::function<int(kvm_msrs&)>& ask_kvm);
  /// The VM has `vcpus` now. With nobody inside (RunGate).
  void is_one_of(std::size_t vcpus);
  /// Makes run() come out, if it is in. False when it is not.
  bool kick_if_running();
  /// All of the PMU's, "attach.resets", "attach.restores" (a state that came with the VMM's) and
  /// "attach.restores_in_use" (of these: with counters selected). As they were when the VMM last had the vCPU come out.
  /// From any thread.
  [[nodiscard]] VcpuStatistics statistics() const;

 private:
  Result<void> open();
  Result<void> follow_vmm();
  [[nodiscard]] Result<bool> is_reset();
  Result<void> prepare();
  VcpuPort::Came run_to_device();
  Result<Exit> run_guest(VcpuPort::Came came);
  /// What run() returns, unless it is to go on.
  std::optional<int> go_on(VcpuPort::Came came);
  void publish();
  [[nodiscard]] MsrImage msr_image() const;

  AttachedServices services_;
  Vcpu vcpu_;
  PmuVcpuConfig config_;
  PmuTime time_{PmuTime::hidden};
  std::optional<KvmPort> port_;
  std::unique_ptr<PmuVcpu> pmu_;
  std::optional<PmuVcpuState> to_restore_;
  bool to_reset_{};
  bool state_is_the_vmms_{};  ///< to_restore_ came with restore().
  std::uint64_t resets_{}, restores_{}, restores_in_use_{};
  std::optional<kvm_guest_debug> debugging_;
  bool given_others_{}, told_of_debugger_{}, told_of_state_{};
  std::atomic<bool> touched_{}, wrote_registers_{}, set_tsc_rate_{};
  RunGate::Place place_{};
  KickWatch kick_watch_;
  mutable std::mutex mutex_;
  std::vector<Statistic> published_;  ///< Under mutex_.
};

}  // namespace vmm
