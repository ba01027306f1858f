#include "attach/attached_vcpu.hpp"

#include <cerrno>
#include <csignal>
#include <utility>

#include "attach/attached_cpuid.hpp"
#include "attach/carried_state.hpp"
#include "attach/msr_lists.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

/// Unblocks the kick signal: a VMM blocks all signals but its own on its vCPU threads.
void let_kicks_in() {
  sigset_t kicks;
  ::sigemptyset(&kicks);
  ::sigaddset(&kicks, kick_signal());
  ::pthread_sigmask(SIG_UNBLOCK, &kicks, nullptr);
}

bool is_capabilities(std::uint32_t index) { return vpmu::MsrIndex{index} == vpmu::msr::IA32_PERF_CAPABILITIES; }

}  // namespace

Result<void> AttachedVcpu::set_cpuid(const MachineModel& model, const CpuidTable& theirs) {
  VMM_ASSIGN(const std::uint32_t khz, vcpu_.tsc_khz());
  VMM_TRY(vcpu_.set_cpuid(attached_cpuid(model, theirs, std::uint64_t{khz} * 1000)));
  config_.pmu.smt = threads_per_core(theirs) == 2;
  const auto capabilities = config_.pmu.limits.perf_capabilities;
  config_.pmu.limits = pmu_limits(model, theirs);
  config_.pmu.limits.perf_capabilities = capabilities;
  return vcpu_.set_msr(vpmu::msr::IA32_BIOS_SIGN_ID.value(), bios_sign_id(model));
}

Result<void> AttachedVcpu::open() {
  VMM_TRY(install_kick_handler());
  let_kicks_in();
  VMM_ASSIGN(KvmBackend backend, KvmBackend::create(services_.vm, vcpu_, time_));
  backend_.emplace(std::move(backend));
  VMM_ASSIGN(pmu_, PmuVcpu::create(config_, *backend_, services_.memory, services_.log));
  return {};
}

// SDM 3A table 9-1: of all that a VMM does, only RESET leaves CS and RIP like this. INIT does too, but KVM handles INIT
// itself.
Result<bool> AttachedVcpu::is_reset() {
  constexpr std::uint64_t reset_rip = 0xFFF0, reset_cs_base = 0xFFFF'0000;
  VMM_ASSIGN(const kvm_regs regs, vcpu_.regs());
  if (regs.rip != reset_rip) return false;
  VMM_ASSIGN(const kvm_sregs sregs, vcpu_.sregs());
  return sregs.cs.base == reset_cs_base;
}

// Brings the PMU in line with the VMM's changes to the vCPU since the last run.
Result<void> AttachedVcpu::follow_vmm() {
  if (!touched_.exchange(false)) return {};
  backend_->forget();
  if (set_tsc_rate_.exchange(false)) VMM_TRY(backend_->follow_tsc());
  const auto state = std::exchange(to_restore_, std::nullopt);
  bool reset = std::exchange(to_reset_, false);
  if (wrote_registers_.exchange(false) && !reset) {
    VMM_ASSIGN(reset, is_reset());
  }
  if (reset) {
    ++resets_;
    services_.log.info("vCPU {}: reset", vcpu_.id());
    return pmu_->reset();
  }
  if (!state) return {};
  VMM_ASSIGN(const vpmu::RestoreStatus status, pmu_->restore(*state));
  if (status == vpmu::RestoreStatus::ok && !std::exchange(state_is_the_vmms_, false)) return {};
  if (status == vpmu::RestoreStatus::ok) {
    ++restores_;
    const bool in_use = !pmu_->pmu().selected().empty();
    if (in_use) ++restores_in_use_;
    services_.log.info("vCPU {}: the PMU's state was restored with the VMM's snapshot; counters are {}", vcpu_.id(),
                       in_use ? "in use" : "not in use");
    return {};
  }
  services_.log.error(
      "vCPU {}: the PMU's state in the VMM's snapshot is not of this model or version (status {}): the PMU is as after "
      "a reset; give both "
      "sides the same VPMU_MODEL and library",
      vcpu_.id(), static_cast<int>(status));
  return pmu_->reset();
}

bool AttachedVcpu::save(kvm_nested_state& to) {
  if (to_restore_) return carry(*to_restore_, to);
  if (pmu_ == nullptr || to_reset_) return false;
  if (carry(pmu_->state(), to)) return true;
  if (!pmu_->pmu().selected().empty() && !std::exchange(told_of_state_, true))
    services_.log.warning(
        "vCPU {}: its PMU is in use and does not fit into the state of nested virtualization that the VMM asks for ({} "
        "bytes, flags {:#x}): "
        "the PMU's state will be lost if the VMM saves or migrates the guest",
        vcpu_.id(), to.size, to.flags);
  return false;
}

bool AttachedVcpu::restore(const kvm_nested_state& from) {
  auto state = carried(from);
  if (!state) return false;
  to_restore_ = std::move(state);
  to_reset_ = false;
  state_is_the_vmms_ = true;
  return true;
}

void AttachedVcpu::restore_none() {
  to_restore_.reset();
  to_reset_ = true;
  state_is_the_vmms_ = false;
}

MsrImage AttachedVcpu::msr_image() const {
  if (to_restore_ || to_reset_ || pmu_ == nullptr) return MsrImage{config_.pmu, to_restore_};
  return MsrImage{config_.pmu, pmu_->state()};
}

int AttachedVcpu::get_msrs(kvm_msrs& list, const std::function<int(kvm_msrs&)>& ask_kvm) {
  const MsrImage image = msr_image();
  return serve_msrs(list, {.is_ours = [&](std::uint32_t index) { return image.has(index); },
                           .serve =
                               [&](kvm_msr_entry& entry) {
                                 entry.data = image.read(entry.index);
                                 return true;
                               },
                           .ask_kvm = ask_kvm});
}

int AttachedVcpu::set_msrs(kvm_msrs& list, const std::function<int(kvm_msrs&)>& ask_kvm) {
  MsrImage image = msr_image();
  const int served = serve_msrs(list, {.is_ours = [&](std::uint32_t index) { return image.has(index); },
                                       .serve =
                                           [&](const kvm_msr_entry& entry) {
                                             // It cannot change once the vCPU has run: KVM refuses that, too.
                                             const bool fixed = pmu_ != nullptr && is_capabilities(entry.index);
                                             return fixed ? image.read(entry.index) == entry.data
                                                          : image.write(entry.index, entry.data);
                                           },
                                       .ask_kvm = ask_kvm});
  config_.pmu.limits = image.limits();
  if (auto state = image.changed()) {
    to_restore_ = std::move(state);
    to_reset_ = false;
  }
  return served;
}

void AttachedVcpu::debug(const kvm_guest_debug& how) {
  constexpr std::uint32_t once = KVM_GUESTDBG_INJECT_DB | KVM_GUESTDBG_INJECT_BP;
  debugging_.reset();
  if (how.control != 0) given_others_ = true;
  if ((how.control & KVM_GUESTDBG_ENABLE) == 0) return;
  debugging_ = how;
  debugging_->control &= ~once;
  if (!std::exchange(told_of_debugger_, true))
    services_.log.warning(
        "vCPU {}: the VMM's debugger has set breakpoints or single-steps; until it stops doing so, the PMU counts "
        "nothing (pmu.debugged_runs)",
        vcpu_.id());
}

// After the exit the VMM reads and writes the vCPU's state in KVM: no register write may still be pending here.
Result<Exit> AttachedVcpu::run_guest(VcpuBackend::DeviceRun came) {
  if (came == VcpuBackend::DeviceRun::not_run) VMM_TRY(prepare());
  VMM_ASSIGN(const Exit exit, debugging_ ? pmu_->run_debugged(*debugging_) : pmu_->run());
  VMM_TRY(vcpu_.flush());
  return exit;
}

Result<void> AttachedVcpu::prepare() {
  if (pmu_ == nullptr) VMM_TRY(open());
  VMM_TRY(follow_vmm());
  if (std::exchange(given_others_, false)) pmu_->given_others_debugging();
  return {};
}

// The fast path, which serves most exits of a guest that does not use its PMU. touched_ is set if the VMM has done
// anything to the vCPU since the last exit.
VcpuBackend::DeviceRun AttachedVcpu::run_to_device() {
  if (pmu_ == nullptr || touched_ || debugging_) return VcpuBackend::DeviceRun::not_run;
  return pmu_->run_to_device();
}

// For most exits run_to_device() is all that runs.
int AttachedVcpu::run() {
  for (;;) {
    const RunGate::Inside inside{services_.gate, thread_inside_, this_thread()};
    const KickTarget target{vcpu_.immediate_exit_flag(), KickTarget::Missed::taken};
    kick_watch_.forget();
    const auto came = run_to_device();
    if (came == VcpuBackend::DeviceRun::device_exit) {
      kick_watch_.looked();
      return 0;
    }
    const auto answer = go_on(came);
    kick_watch_.looked();
    if (answer) return *answer;
  }
}

// A kick of ours comes from a source's timer or from the gate, and does not concern the VMM. If the VMM has set
// immediate_exit, KVM leaves exit_reason unchanged.
std::optional<int> AttachedVcpu::go_on(VcpuBackend::DeviceRun came) {
  const auto exit = run_guest(came);
  if (!exit) {
    services_.log.error("vCPU {}: {}", vcpu_.id(), describe(exit.error()));
    errno = exit.error().system_errno != 0 ? exit.error().system_errno : EIO;
    return -1;
  }
  const auto* const interrupted = std::get_if<Interrupted>(&*exit);
  if (interrupted == nullptr) return 0;
  if (interrupted->kicked) return std::nullopt;
  if (services_.tells_statistics) publish();
  const std::uint8_t flag = __atomic_load_n(vcpu_.immediate_exit_flag(), __ATOMIC_RELAXED);
  if (flag == 0 || flag == kick_mark) vcpu_.exit_page().exit_reason = KVM_EXIT_INTR;
  errno = EINTR;
  return -1;
}

void AttachedVcpu::is_one_of(std::size_t vcpus) {
  time_ = time_beside_others(time_, vcpus);
  if (time_ == PmuTime::real && backend_) backend_->show_all_time();
}

bool AttachedVcpu::kick_if_running() {
  const pid_t thread = thread_inside_;
  if (thread != 0) {
    kick_watch_.kicked();
    kick_thread(thread);
  }
  return thread != 0;
}

// Copies the counters for statistics(): only this thread can read some of them.
void AttachedVcpu::publish() {
  std::vector<Statistic> counters{
      {"attach.resets", resets_}, {"attach.restores", restores_}, {"attach.restores_in_use", restores_in_use_}};
  pmu_->visit_statistics(
      [&](std::string_view name, std::uint64_t value) { counters.push_back({std::string{name}, value}); });
  const std::scoped_lock lock{mutex_};
  published_ = std::move(counters);
}

VcpuStatistics AttachedVcpu::statistics() const {
  const std::scoped_lock lock{mutex_};
  VcpuStatistics all{.id = vcpu_.id(), .counters = published_};
  add_kicks(all.counters, kick_watch_);
  return all;
}

}  // namespace vmm
