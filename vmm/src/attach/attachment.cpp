#include "attach/attachment.hpp"

#include <fcntl.h>
#include <linux/kvm.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <set>
#include <span>
#include <utility>

#include "attach/attached_cpuid.hpp"
#include "attach/carried_state.hpp"
#include "attach/msr_image.hpp"
#include "attach/msr_lists.hpp"
#include "files/output_file.hpp"
#include "kvm/ioctl.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/cpuid.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

// Request numbers without the argument's size, which differs between versions of the kernel's headers.
constexpr unsigned number_of(unsigned long request) { return _IOC_NR(request); }
constexpr unsigned set_memory = number_of(KVM_SET_USER_MEMORY_REGION), set_memory2 = 0x49;

Fd duplicate(int fd) { return Fd{::fcntl(fd, F_DUPFD_CLOEXEC, 0)}; }

int fail(int error) {
  errno = error;
  return -1;
}

/// Never 0, which means that nothing has been looked up.
std::uint64_t next_version() {
  static std::atomic<std::uint64_t> last{};
  return ++last;
}

/// Keeps the model's microcode revision: a VMM that writes all MSRs writes its own there.
void keep_microcode(std::span<kvm_msr_entry> entries, std::uint64_t value) {
  for (kvm_msr_entry& entry : entries)
    if (entry.index == vpmu::msr::IA32_BIOS_SIGN_ID.value()) entry.data = value;
}

/// Extensions of KVM that we hide from the VMM: the dirty ring would lack the pages that we write, and we use the
/// registers in kvm_run ourselves.
bool is_withheld(std::uintptr_t capability) {
  return capability == KVM_CAP_DIRTY_LOG_RING || capability == KVM_CAP_DIRTY_LOG_RING_ACQ_REL ||
         capability == KVM_CAP_SYNC_REGS;
}

/// The conditions that KVM sets for any state of nested virtualization.
bool is_nested_state(const kvm_nested_state& state) {
  constexpr unsigned known = KVM_STATE_NESTED_GUEST_MODE | KVM_STATE_NESTED_RUN_PENDING | KVM_STATE_NESTED_EVMCS |
                             KVM_STATE_NESTED_MTF_PENDING | KVM_STATE_NESTED_GIF_SET;
  const bool runs = (state.flags & KVM_STATE_NESTED_RUN_PENDING) != 0,
             guest = (state.flags & KVM_STATE_NESTED_GUEST_MODE) != 0;
  return state.size >= sizeof state && (state.flags & ~known) == 0 && (guest || !runs);
}

}  // namespace

Attachment::Known Attachment::known(int fd) const {
  const std::shared_lock lock{mutex_};
  const auto found = known_.find(fd);
  return found == known_.end() ? Known{} : found->second;
}

// Keeps the last look-up: a thread usually runs the same vCPU all the time.
int Attachment::run(int fd) {
  static thread_local Running last{};
  if (last.version != version_ || last.fd != fd) last = look_up(fd);
  return last.vcpu != nullptr ? last.vcpu->run() : ioctl_call(fd, KVM_RUN, 0);
}

/// What the thread has run last. The reference is kept until the thread ends, runs another vCPU, or finds that known_
/// has changed.
Attachment::Known& Attachment::kept_by_thread() {
  static thread_local Known kept;
  return kept;
}

Attachment::Running Attachment::look_up(int fd) const {
  const std::uint64_t version = version_;
  Known& kept = kept_by_thread();
  kept = known(fd);
  return {.version = version, .fd = fd, .vcpu = kept.vcpu};
}

// The result may be the last reference to a VM, and dropping it closes the VM's files: the caller must do that without
// holding the lock.
Attachment::Known Attachment::forget(int fd) {
  const std::unique_lock lock{mutex_};
  auto node = known_.extract(fd);
  if (node.empty()) return {};
  version_ = next_version();
  Known was = std::move(node.mapped());
  const bool last = std::ranges::none_of(known_, [&](const auto& other) { return other.second.vm == was.vm; });
  if (last && !statistics_path_.empty()) ended_.push_back(to_json(was.vm->statistics()));
  return was;
}

// The number may have belonged to a file that was closed without our knowing.
void Attachment::remember(int fd, Known what) {
  const Known before = forget(fd);
  const std::unique_lock lock{mutex_};
  known_[fd] = std::move(what);
  version_ = next_version();
}

// A forked child may close all its files before exec(): that closes none of ours, and in the child other threads' locks
// are held for ever.
void Attachment::closing(int fd) {
  if (process_ != ::getpid()) return;
  if (const Known was = forget(fd); was.vm != nullptr && was.vm == kept_by_thread().vm) kept_by_thread() = {};
}

int Attachment::call(int fd, unsigned long request, std::uintptr_t argument) {
  if (request == KVM_RUN) return run(fd);
  if (_IOC_TYPE(request) != KVMIO) return ioctl_call(fd, request, argument);
  if (request == KVM_CREATE_VM) return create_vm(fd, request, argument);
  if (request == KVM_CHECK_EXTENSION) return check_extension(fd, request, argument);
  if (request == KVM_GET_SUPPORTED_CPUID) return supported_cpuid(fd, request, argument);
  if (request == KVM_GET_MSR_INDEX_LIST) return list_all_msrs(fd, request, argument);
  const Known it = known(fd);
  if (it.vcpu != nullptr) return on_vcpu(*it.vcpu, fd, request, argument);
  if (it.vm != nullptr) return on_vm(it.vm, fd, request, argument);
  if (request == KVM_GET_MSRS) return feature_msrs(fd, *reinterpret_cast<kvm_msrs*>(argument));
  return ioctl_call(fd, request, argument);
}

int Attachment::answer(const Result<void>& result, const char* what) {
  if (result) return 0;
  log_->error("{}: {}", what, describe(result.error()));
  return fail(result.error().system_errno != 0 ? result.error().system_errno : EINVAL);
}

int Attachment::check_extension(int fd, unsigned long request, std::uintptr_t capability) {
  if (is_withheld(capability)) return 0;
  const int answer = ioctl_call(fd, request, capability);
  return capability == KVM_CAP_NESTED_STATE && answer >= 0 ? std::max(answer, static_cast<int>(carried_size)) : answer;
}

// Shows the VMM the model's PMU. Also shows SVM, because a VMM saves the state of nested virtualization only for a
// processor that has it; the guest does not see SVM (attached_cpuid()). VMX is never shown: a VMM that sees VMX sets
// VMX's MSRs, and KVM refuses these for a vCPU whose CPUID has no VMX.
int Attachment::supported_cpuid(int fd, unsigned long request, std::uintptr_t argument) const {
  constexpr std::uint32_t features = 1, vmx = vpmu::bit(5), extended_features = 0x80000001, svm = vpmu::bit(2);
  auto& list = *reinterpret_cast<kvm_cpuid2*>(argument);
  const std::uint32_t room = list.nent;
  const int answer = ioctl_call(fd, request, argument);
  if (answer != 0) return answer;
  if (!show_pmu(*options_.model, list, room)) return fail(E2BIG);
  for (kvm_cpuid_entry2& entry : std::span{list.entries, list.nent}) {
    if (entry.function == features) entry.ecx &= ~vmx;
    if (entry.function == extended_features) entry.ecx |= svm;
  }
  return answer;
}

// Once, because all VMs use the same KVM. If the probe itself fails, KVM is assumed to be fit.
Result<void> Attachment::examine(int fd) {
  std::call_once(examined_, [&] {
    const auto rdpmc = probe_rdpmc_(System{duplicate(fd)});
    if (rdpmc)
      fit_ = require_rdpmc(*rdpmc);
    else
      log_->warning("cannot find out what RDPMC does on this KVM: {}", describe(rdpmc.error()));
  });
  return fit_;
}

int Attachment::create_vm(int fd, unsigned long request, std::uintptr_t argument) {
  if (const auto fit = examine(fd); !fit) {
    log_->error("the VMM gets no VM: {}", describe(fit.error()));
    return fail(EOPNOTSUPP);
  }
  const int run_size = ioctl_call(fd, KVM_GET_VCPU_MMAP_SIZE, 0);
  const int vm_fd = ioctl_call(fd, request, argument);
  if (vm_fd < 0 || run_size <= 0) return vm_fd;
  auto vm = AttachedVm::create(duplicate(vm_fd), static_cast<std::size_t>(run_size), options_, *log_);
  if (!vm) {
    log_->error("a VM runs without a virtual PMU: {}", describe(vm.error()));
    return vm_fd;
  }
  log_->info("VM {}: model {}, source {}", vm_fd, options_.model->name,
             options_.source_choice.empty() ? options_.source : options_.source_choice);
  process_ = ::getpid();
  remember(vm_fd, {.vm = *std::move(vm)});
  return vm_fd;
}

int Attachment::create_vcpu(const std::shared_ptr<AttachedVm>& vm, int fd, unsigned long request,
                            std::uintptr_t argument) {
  if (const int prepared = answer(vm->prepare(), "preparing the VM for its PMU"); prepared != 0) return prepared;
  const int vcpu_fd = ioctl_call(fd, request, argument);
  if (vcpu_fd < 0) return vcpu_fd;
  auto vcpu = vm->add_vcpu(static_cast<std::uint32_t>(argument), duplicate(vcpu_fd));
  if (!vcpu) {
    log_->error("vCPU {}: {}", argument, describe(vcpu.error()));
    ::close(vcpu_fd);
    return fail(EIO);
  }
  remember(vcpu_fd, {.vm = vm, .vcpu = *vcpu});
  return vcpu_fd;
}

int Attachment::on_vm(const std::shared_ptr<AttachedVm>& vm, int fd, unsigned long request, std::uintptr_t argument) {
  const unsigned number = number_of(request);
  // The second form's argument begins like the first one's.
  if (number == set_memory || number == set_memory2)
    return vm->set_memory(*reinterpret_cast<const kvm_userspace_memory_region*>(argument),
                          [&] { return ioctl_call(fd, request, argument); });
  switch (request) {
    case KVM_CREATE_VCPU: return create_vcpu(vm, fd, request, argument);
    case KVM_X86_SET_MSR_FILTER:
      return answer(vm->set_msr_filter(*reinterpret_cast<const kvm_msr_filter*>(argument)), "the VMM's MSR filter");
    case KVM_GET_DIRTY_LOG:
      return vm->dirty_log(*reinterpret_cast<const kvm_dirty_log*>(argument),
                           [&] { return ioctl_call(fd, request, argument); });
    case KVM_ENABLE_CAP: {
      const auto wanted = *reinterpret_cast<const kvm_enable_cap*>(argument);
      if (is_withheld(wanted.cap)) return fail(EINVAL);
      const auto ask_kvm = [&](const kvm_enable_cap& asked) {
        return ioctl_call(fd, request, reinterpret_cast<std::uintptr_t>(&asked));
      };
      return wanted.cap == KVM_CAP_X86_USER_SPACE_MSR ? vm->enable_msr_exits(wanted, ask_kvm) : ask_kvm(wanted);
    }
    default: return ioctl_call(fd, request, argument);
  }
}

int Attachment::on_vcpu(AttachedVcpu& vcpu, int fd, unsigned long request, std::uintptr_t argument) {
  vcpu.touched();
  const auto ask_kvm = [&](kvm_msrs& list) { return ioctl_call(fd, request, reinterpret_cast<std::uintptr_t>(&list)); };
  const auto call_kvm = [&] { return ioctl_call(fd, request, argument); };
  switch (request) {
    case KVM_SET_CPUID2: {
      constexpr std::uint32_t max_leaves = 256;  // KVM_MAX_CPUID_ENTRIES
      const auto& list = *reinterpret_cast<const kvm_cpuid2*>(argument);
      if (list.nent > max_leaves) return fail(E2BIG);
      const CpuidTable theirs{std::vector<kvm_cpuid_entry2>(list.entries, list.entries + list.nent)};
      return answer(vcpu.set_cpuid(*options_.model, theirs), "CPUID");
    }
    case KVM_SET_GUEST_DEBUG: {
      const auto& how = *reinterpret_cast<const kvm_guest_debug*>(argument);
      // A VMM may say repeatedly that it debugs nothing. This is kept from KVM, so that our own breakpoints stay armed.
      const int answer = how.control == 0 ? 0 : call_kvm();
      if (answer == 0) vcpu.debug(how);
      return answer;
    }
    case KVM_GET_NESTED_STATE: return get_nested_state(vcpu, fd, request, argument);
    case KVM_SET_NESTED_STATE: return set_nested_state(vcpu, fd, request, argument);
    case KVM_SET_REGS:
    case KVM_SET_SREGS:
    case KVM_SET_SREGS2: {
      const int answer = call_kvm();
      if (answer == 0) vcpu.wrote_registers();
      return answer;
    }
    case KVM_SET_TSC_KHZ: {
      const int answer = call_kvm();
      if (answer == 0) vcpu.set_tsc_rate();
      return answer;
    }
    case KVM_GET_MSRS: return vcpu.get_msrs(*reinterpret_cast<kvm_msrs*>(argument), ask_kvm);
    case KVM_SET_MSRS: {
      const auto& list = *reinterpret_cast<const kvm_msrs*>(argument);
      if (!is_served(list)) return fail(E2BIG);
      MsrListCopy copy{list};
      keep_microcode(copy.entries(), bios_sign_id(*options_.model));
      return vcpu.set_msrs(copy.list(), ask_kvm);
    }
    default: return call_kvm();
  }
}

// KVM_GET_MSRS on /dev/kvm, not on a vCPU: the features that a vCPU may have.
int Attachment::feature_msrs(int fd, kvm_msrs& list) const {
  return serve_msrs(
      list,
      {.is_ours = [](std::uint32_t index) { return vpmu::MsrIndex{index} == vpmu::msr::IA32_PERF_CAPABILITIES; },
       .serve =
           [&](kvm_msr_entry& entry) {
             entry.data = vpmu::perf_capabilities(vpmu::describe(options_.model->generation));
             return true;
           },
       .ask_kvm =
           [&](kvm_msrs& part) { return ioctl_call(fd, KVM_GET_MSRS, reinterpret_cast<std::uintptr_t>(&part)); }});
}

int Attachment::list_all_msrs(int fd, unsigned long request, std::uintptr_t argument) const {
  return list_msrs(
      *reinterpret_cast<kvm_msr_list*>(argument), pmu_msrs(options_.model->generation),
      [&](kvm_msr_list& list) { return ioctl_call(fd, request, reinterpret_cast<std::uintptr_t>(&list)); });
}

// If KVM has no such state (EINVAL), all of it is ours.
int Attachment::get_nested_state(AttachedVcpu& vcpu, int fd, unsigned long request, std::uintptr_t argument) {
  auto& state = *reinterpret_cast<kvm_nested_state*>(argument);
  const std::uint32_t room = state.size;
  const int answer = ioctl_call(fd, request, argument);
  const int error = errno;
  if (answer != 0 && error != EINVAL) return answer;
  const auto flags = state.flags;
  if (answer != 0) state.flags = KVM_STATE_NESTED_GIF_SET;
  const std::uint32_t kvms = std::exchange(state.size, room);
  if (vcpu.save(state)) return 0;
  state.size = kvms;
  state.flags = flags;
  errno = error;
  return answer;
}

// KVM does not get a state that is ours: its own is that of a processor without nested virtualization, before and
// after.
int Attachment::set_nested_state(AttachedVcpu& vcpu, int fd, unsigned long request, std::uintptr_t argument) {
  const auto& state = *reinterpret_cast<const kvm_nested_state*>(argument);
  if (!is_nested_state(state)) return fail(EINVAL);
  if (vcpu.restore(state)) return 0;
  const int answer = ioctl_call(fd, request, argument);
  if (answer != 0 && (errno != EINVAL || (state.flags & KVM_STATE_NESTED_GUEST_MODE) != 0)) return answer;
  vcpu.restore_none();
  return 0;
}

std::string Attachment::all_statistics() const {
  const std::shared_lock lock{mutex_};
  std::string text;
  for (const std::string& line : ended_) text += line + "\n";
  std::set<const AttachedVm*> written;
  for (const auto& [fd, it] : known_)
    if (written.insert(it.vm.get()).second) text += to_json(it.vm->statistics()) + "\n";
  return text;
}

// Writes without holding the lock, because closing the file calls our close(), which takes it.
void Attachment::write_statistics() {
  if (statistics_path_.empty()) return;
  const std::string text = all_statistics();
  if (text.empty()) return;  // a process without VMs, such as one that the VMM started
  auto file = OutputFile::open(statistics_path_,
                               {.what = "the statistics file", .advice = "give a writable path with VPMU_STATS"});
  const auto done = file ? file->replace(text) : Failure{file.error()};
  if (!done) log_->error("{}", describe(done.error()));
}

}  // namespace vmm
