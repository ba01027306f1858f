#pragma once
#include <linux/kvm.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "attach/attached_vcpu.hpp"
#include "attach/run_gate.hpp"
#include "attach/slot_memory.hpp"
#include "kvm/msr_filter.hpp"
#include "kvm/vm.hpp"
#include "machine/statistics.hpp"
#include "memory/linear.hpp"
#include "model/model.hpp"
#include "sources/source_options.hpp"
#include "support/log.hpp"

namespace vmm {

/// What users choose for the VMs of another VMM.
struct AttachOptions {
  const MachineModel* model{};
  std::string source;
  SourceOptions source_options{};
  std::string source_choice{};  ///< Why this source, if the user did not choose it.
  bool tells_statistics{};      ///< Whether somebody will ask for statistics().
};

/// A VM of another VMM, whose vCPUs get our PMU. Members handle KVM's calls on the VM; any thread may call them.
class AttachedVm {
 public:
  /// Takes over `fd`, a duplicate of the VMM's. `log` must outlive the result.
  static Result<std::unique_ptr<AttachedVm>> create(Fd fd, std::size_t run_mapping_size, const AttachOptions& options,
                                                    Log& log);

  /// KVM_CREATE_VCPU has made a vCPU: takes over `fd`, a duplicate of its descriptor. Call prepare() before the first.
  Result<AttachedVcpu*> add_vcpu(std::uint32_t id, Fd fd);
  /// Before the first vCPU: traps the PMU's MSRs.
  Result<void> prepare();
  /// KVM_SET_USER_MEMORY_REGION: `call` asks KVM, and its answer is handed back.
  int set_memory(const kvm_userspace_memory_region& region, const std::function<int()>& call);
  /// KVM_GET_DIRTY_LOG: `call` asks KVM; then the pages that we have written are added.
  int dirty_log(const kvm_dirty_log& log, const std::function<int()>& call);
  /// KVM_ENABLE_CAP of KVM_CAP_X86_USER_SPACE_MSR: `call` asks KVM for the VMM's exits and for ours.
  int enable_msr_exits(const kvm_enable_cap& wanted, const std::function<int(const kvm_enable_cap&)>& call);
  /// KVM_X86_SET_MSR_FILTER: sets the VMM's ranges and ours. A filter that KVM refuses has no effect.
  Result<void> set_msr_filter(const kvm_msr_filter& filter);

  [[nodiscard]] const MachineModel& model() const { return *options_.model; }
  [[nodiscard]] MachineStatistics statistics() const;

 private:
  AttachedVm(Vm vm, MsrFilter theirs, AttachOptions options, Log& log);

  Vm vm_;
  AttachOptions options_;
  Log* log_;
  SlotMemory memory_;
  LinearMemory linear_{memory_, [this](vpmu::GuestPhysical page) { memory_.written(page); }};
  RunGate gate_;
  std::mutex mutex_;
  std::mutex slots_mutex_;         ///< Whoever holds it sees the same slots in KVM and memory_.
  MsrFilter theirs_;               ///< Guarded by mutex_ until there is a vCPU, then by the gate.
  std::uint64_t their_reasons_{};  ///< Likewise. KVM_MSR_EXIT_REASON_* for which the VMM wants exits.
  bool prepared_{};                ///< Under mutex_.
  mutable std::mutex vcpus_mutex_;
  std::vector<std::unique_ptr<AttachedVcpu>>
      vcpus_;  ///< In order of creation. Changes under vcpus_mutex_, with no vCPU inside.
};

}  // namespace vmm
