#include "kvm/vcpu.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "kvm/ioctl.hpp"
#include "support/assert.hpp"
#include "support/x86.hpp"

namespace vmm {
namespace {

std::span<std::byte> bytes_at(void* base, std::uint64_t offset, std::size_t size) {
  return {static_cast<std::byte*>(base) + offset, size};
}

}  // namespace

Vcpu::Vcpu(std::uint32_t id, Fd fd, Mapping run, int sync_fields)
    : id_{id},
      fd_{std::move(fd)},
      mapping_{std::move(run)},
      run_{static_cast<kvm_run*>(mapping_.base())},
      sync_fields_{static_cast<std::uint64_t>(sync_fields)} {}

// Registers that this KVM does not take from kvm_run are written by ioctl.
Result<Exit> Vcpu::run(Runs what) {
  if ((dirty_ & ~sync_fields_) != 0) VMM_TRY(flush());
  return exit_after(enter(what), what);
}

bool Vcpu::run_to_device() {
  run_error_ = enter(Runs::anything);
  running_ = run_error_ == 0 && (run_->exit_reason == KVM_EXIT_IO || run_->exit_reason == KVM_EXIT_MMIO);
  return running_;
}

// A mark that somebody else has set stays: its owner clears it.
Result<Exit> Vcpu::exit_after(int error, Runs what) {
  // A step over HLT ends with a Debug exit too.
  const bool may_have_halted =
      run_->exit_reason == KVM_EXIT_INTR || (run_->exit_reason == KVM_EXIT_DEBUG && what == Runs::anything);
  running_ = error == 0 && !may_have_halted;
  if (error != 0 && error != EINTR && error != EAGAIN) return host_error("KVM_RUN", error);
  Exit exit = error == 0 ? decode_exit() : Interrupted{};
  if (auto* const interrupted = std::get_if<Interrupted>(&exit)) {
    std::uint8_t mark = kick_mark;
    interrupted->kicked = __atomic_compare_exchange_n(&run_->immediate_exit, &mark, std::uint8_t{0}, false,
                                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
  return exit;
}

// kvm_dirty_regs tells the kernel to take these groups from kvm_run on entry.
int Vcpu::enter(Runs what) {
  if (dirty_ != 0) {
    forget_interrupts_under_way();
    leave_what_others_send();
    run_->kvm_dirty_regs = std::exchange(dirty_, 0);
  }
  const int result = ioctl_call(fd_.get(), KVM_RUN, 0);
  const int error = result >= 0 ? 0 : errno;
  fresh_ = run_->kvm_valid_regs;
  if (what == Runs::anything) debugregs_.reset();
  return error;
}

// A kick that comes meanwhile overwrites the mark, and stays; so does one that was there before.
Result<std::optional<Exit>> Vcpu::complete_exit() {
  auto* const flag = &run_->immediate_exit;
  if ((dirty_ & ~sync_fields_) != 0) VMM_TRY(flush());
  const auto before = __atomic_exchange_n(flag, completing_mark, __ATOMIC_RELAXED);
  const int error = enter(Runs::anything);
  std::uint8_t mark = completing_mark;
  const bool kicked = !__atomic_compare_exchange_n(flag, &mark, before, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  if (kicked && before != 0 && before != kick_mark) __atomic_store_n(flag, before, __ATOMIC_RELAXED);
  if (error != 0 && error != EINTR && error != EAGAIN) return host_error("KVM_RUN", error);
  const Exit next = error == 0 ? decode_exit() : Exit{Interrupted{}};
  return std::holds_alternative<Interrupted>(next) ? std::nullopt : std::optional{next};
}

void Vcpu::forget() {
  VMM_ASSERT(dirty_ == 0);
  fresh_ = 0;
  debugregs_.reset();
  running_ = false;
}

Exit Vcpu::decode_exit() const {
  kvm_run& run = *run_;
  switch (run.exit_reason) {
    case KVM_EXIT_X86_RDMSR:
      return MsrRead{run.msr.index, static_cast<MsrReason>(run.msr.reason), {run.msr.data, run.msr.error}};
    case KVM_EXIT_X86_WRMSR:
      return MsrWrite{
          run.msr.index, run.msr.data, static_cast<MsrReason>(run.msr.reason), {run.msr.data, run.msr.error}};
    case KVM_EXIT_IO: {
      const auto data = bytes_at(&run, run.io.data_offset, std::size_t{run.io.size} * run.io.count);
      if (run.io.direction == KVM_EXIT_IO_IN) return PortRead{run.io.port, run.io.size, data};
      return PortWrite{run.io.port, run.io.size, data};
    }
    case KVM_EXIT_MMIO: {
      const vpmu::GuestPhysical at{run.mmio.phys_addr};
      const auto data = std::as_writable_bytes(std::span{run.mmio.data}).first(run.mmio.len);
      if (run.mmio.is_write != 0) return MmioWrite{at, data};
      return MmioRead{at, data};
    }
    case KVM_EXIT_DEBUG:
      return Debug{run.debug.arch.exception, run.debug.arch.pc, run.debug.arch.dr6, run.debug.arch.dr7};
    case KVM_EXIT_HLT: return Hlt{};
    case KVM_EXIT_SHUTDOWN: return Shutdown{};
    case KVM_EXIT_SYSTEM_EVENT: return SystemEvent{run.system_event.type};
    case KVM_EXIT_INTR:
    case KVM_EXIT_IRQ_WINDOW_OPEN: return Interrupted{};
    case KVM_EXIT_FAIL_ENTRY: return EntryFailed{run.fail_entry.hardware_entry_failure_reason};
    case KVM_EXIT_INTERNAL_ERROR: {
      InternalError error{run.internal.suberror, {}};
      for (std::size_t i = 0; i < error.data.size() && i < run.internal.ndata; ++i) {
        error.data[i] = run.internal.data[i];
      }
      return error;
    }
    default: return Unknown{run.exit_reason};
  }
}

Result<kvm_regs> Vcpu::regs() {
  if ((fresh_ & KVM_SYNC_X86_REGS) == 0) {
    VMM_TRY(VMM_IOCTL(fd_, KVM_GET_REGS, &run_->s.regs.regs));
    fresh_ |= KVM_SYNC_X86_REGS;
  }
  return run_->s.regs.regs;
}

Result<void> Vcpu::set_regs(const kvm_regs& regs) {
  run_->s.regs.regs = regs;
  fresh_ |= KVM_SYNC_X86_REGS;
  dirty_ |= KVM_SYNC_X86_REGS;
  return {};
}

Result<kvm_sregs> Vcpu::sregs() {
  if ((fresh_ & KVM_SYNC_X86_SREGS) == 0) {
    VMM_TRY(VMM_IOCTL(fd_, KVM_GET_SREGS, &run_->s.regs.sregs));
    fresh_ |= KVM_SYNC_X86_SREGS;
  }
  return run_->s.regs.sregs;
}

Result<void> Vcpu::set_sregs(const kvm_sregs& sregs) {
  run_->s.regs.sregs = sregs;
  fresh_ |= KVM_SYNC_X86_SREGS;
  dirty_ |= KVM_SYNC_X86_SREGS;
  return {};
}

Result<kvm_vcpu_events> Vcpu::events() {
  if ((fresh_ & KVM_SYNC_X86_EVENTS) == 0) {
    VMM_TRY(VMM_IOCTL(fd_, KVM_GET_VCPU_EVENTS, &run_->s.regs.events));
    fresh_ |= KVM_SYNC_X86_EVENTS;
  }
  return run_->s.regs.events;
}

Result<void> Vcpu::set_events(const kvm_vcpu_events& events) {
  run_->s.regs.events = events;
  fresh_ |= KVM_SYNC_X86_EVENTS;
  dirty_ |= KVM_SYNC_X86_EVENTS;
  return {};
}

// KVM sets bits in the copy's bitmap and never clears them (since Linux 5.14). On entry it injects what it finds there,
// whatever RFLAGS.IF says: an interrupt that was being delivered at an earlier exit would come again. events() has the
// one that is being delivered now.
void Vcpu::forget_interrupts_under_way() { std::ranges::fill(run_->s.regs.sregs.interrupt_bitmap, 0); }

// Another vCPU may have sent an NMI, an SMI or an INIT since the events were read: writing the old state back would
// lose it.
void Vcpu::leave_what_others_send() {
  if ((dirty_ & KVM_SYNC_X86_EVENTS) == 0) return;
  constexpr std::uint32_t others =
      KVM_VCPUEVENT_VALID_NMI_PENDING | KVM_VCPUEVENT_VALID_SIPI_VECTOR | KVM_VCPUEVENT_VALID_SMM;
  run_->s.regs.events.flags &= ~others;
}

Result<void> Vcpu::restore_events(const kvm_vcpu_events& events) {
  kvm_vcpu_events copy = events;
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_VCPU_EVENTS, &copy));
  fresh_ &= ~std::uint64_t{KVM_SYNC_X86_EVENTS};
  dirty_ &= ~std::uint64_t{KVM_SYNC_X86_EVENTS};
  return {};
}

Result<void> Vcpu::flush(std::uint64_t groups) {
  forget_interrupts_under_way();
  leave_what_others_send();
  const std::uint64_t now = dirty_ & groups;
  if ((now & KVM_SYNC_X86_SREGS) != 0) {
    VMM_TRY(VMM_IOCTL(fd_, KVM_SET_SREGS, &run_->s.regs.sregs));
  }
  if ((now & KVM_SYNC_X86_REGS) != 0) {
    VMM_TRY(VMM_IOCTL(fd_, KVM_SET_REGS, &run_->s.regs.regs));
  }
  if ((now & KVM_SYNC_X86_EVENTS) != 0) {
    VMM_TRY(VMM_IOCTL(fd_, KVM_SET_VCPU_EVENTS, &run_->s.regs.events));
  }
  dirty_ &= ~groups;
  return {};
}

Result<XsaveArea> Vcpu::xsave() const {
  XsaveArea area{};
  VMM_TRY(VMM_IOCTL(fd_, KVM_GET_XSAVE, area.data()));
  return area;
}

Result<void> Vcpu::set_xsave(const XsaveArea& area) {
  XsaveArea copy = area;
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_XSAVE, copy.data()));
  return {};
}

Result<std::uint64_t> Vcpu::xcr0() const {
  constexpr std::uint64_t x87_and_sse = x86::xcr0::x87::mask | x86::xcr0::SSE::mask;
  kvm_xcrs xcrs{};
  if (!VMM_IOCTL(fd_, KVM_GET_XCRS, &xcrs)) return x87_and_sse;
  for (std::uint32_t i = 0; i < xcrs.nr_xcrs && i < KVM_MAX_XCRS; ++i)
    if (xcrs.xcrs[i].xcr == 0) return xcrs.xcrs[i].value;
  return x87_and_sse;
}

Result<void> Vcpu::set_xcr0(std::uint64_t value) {
  VMM_ASSIGN(const std::uint64_t now, xcr0());
  if (now == value) return {};
  kvm_xcrs xcrs{};
  xcrs.nr_xcrs = 1;
  xcrs.xcrs[0].value = value;
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_XCRS, &xcrs));
  return {};
}

Result<kvm_debugregs> Vcpu::debugregs() {
  if (!debugregs_) {
    kvm_debugregs regs{};
    VMM_TRY(VMM_IOCTL(fd_, KVM_GET_DEBUGREGS, &regs));
    debugregs_ = regs;
  }
  return *debugregs_;
}

Result<void> Vcpu::set_debugregs(const kvm_debugregs& regs) {
  debugregs_.reset();
  kvm_debugregs copy = regs;
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_DEBUGREGS, &copy));
  return {};
}

Result<kvm_mp_state> Vcpu::mp_state() const {
  kvm_mp_state state{};
  VMM_TRY(VMM_IOCTL(fd_, KVM_GET_MP_STATE, &state));
  return state;
}

Result<void> Vcpu::set_mp_state(const kvm_mp_state& state) {
  running_ = false;
  kvm_mp_state copy = state;
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_MP_STATE, &copy));
  return {};
}

Result<void> Vcpu::set_guest_debug(const kvm_guest_debug& debug) {
  // Outside 64-bit code RIP is relative to CS's base, so KVM needs CS, too.
  const bool flat = (fresh_ & KVM_SYNC_X86_SREGS) != 0 && run_->s.regs.sregs.cs.l != 0;
  VMM_TRY(flush(flat ? std::uint64_t{KVM_SYNC_X86_REGS} : all_groups));
  // When KVM stops stepping it clears TF, which it takes for its own. A TF that was set for the guest meanwhile is set
  // again after that.
  const bool steps = (debug.control & KVM_GUESTDBG_SINGLESTEP) != 0;
  const bool keep_tf = std::exchange(stepping_, steps) && !steps && (fresh_ & KVM_SYNC_X86_REGS) != 0 &&
                       x86::rflags::TF::test(run_->s.regs.regs.rflags);
  kvm_guest_debug copy = debug;
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_GUEST_DEBUG, &copy));
  if (keep_tf) {
    dirty_ |= KVM_SYNC_X86_REGS;
    return {};
  }
  // KVM changes TF in RFLAGS when stepping goes on or off.
  fresh_ &= ~std::uint64_t{KVM_SYNC_X86_REGS};
  return {};
}

Result<kvm_lapic_state> Vcpu::lapic() const {
  kvm_lapic_state state{};
  VMM_TRY(VMM_IOCTL(fd_, KVM_GET_LAPIC, &state));
  return state;
}

Result<void> Vcpu::set_lapic(const kvm_lapic_state& state) {
  kvm_lapic_state copy = state;
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_LAPIC, &copy));
  return {};
}

Result<void> Vcpu::nmi() {
  // Writes pending events before the NMI. Written after it, they would say that no NMI is pending; dropped in favour of
  // KVM's, they would bring back an NMI masking that has ended.
  VMM_TRY(flush(KVM_SYNC_X86_EVENTS));
  VMM_TRY(VMM_IOCTL_VALUE(fd_, KVM_NMI, 0));
  // The copy of the pending events in kvm_run no longer holds.
  fresh_ &= ~std::uint64_t{KVM_SYNC_X86_EVENTS};
  return {};
}

Result<void> Vcpu::set_cpuid(const CpuidTable& table) {
  const auto& entries = table.entries();
  std::vector<kvm_cpuid_entry2> storage(entries.size() + 1);
  auto* const list = reinterpret_cast<kvm_cpuid2*>(storage.data());
  list->nent = static_cast<std::uint32_t>(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    list->entries[i] = entries[i];
  }
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_CPUID2, list));
  return {};
}

Result<std::uint32_t> Vcpu::tsc_khz() const {
  VMM_ASSIGN(const int khz, VMM_IOCTL_VALUE(fd_, KVM_GET_TSC_KHZ, 0));
  return static_cast<std::uint32_t>(khz);
}

Result<std::uint64_t> Vcpu::tsc_offset() const {
  std::uint64_t offset = 0;
  kvm_device_attr attribute{};
  attribute.group = KVM_VCPU_TSC_CTRL;
  attribute.attr = KVM_VCPU_TSC_OFFSET;
  attribute.addr = reinterpret_cast<std::uintptr_t>(&offset);
  VMM_TRY(VMM_IOCTL(fd_, KVM_GET_DEVICE_ATTR, &attribute));
  return offset;
}

Result<void> Vcpu::set_tsc_offset(std::uint64_t offset) {
  kvm_device_attr attribute{};
  attribute.group = KVM_VCPU_TSC_CTRL;
  attribute.attr = KVM_VCPU_TSC_OFFSET;
  attribute.addr = reinterpret_cast<std::uintptr_t>(&offset);
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_DEVICE_ATTR, &attribute));
  return {};
}

Fd Vcpu::statistics() const { return Fd{ioctl_call(fd_.get(), KVM_GET_STATS_FD, 0)}; }

Result<Translation> Vcpu::translate(vpmu::GuestLinear at) {
  VMM_TRY(flush());
  kvm_translation request{};
  request.linear_address = at.value();
  VMM_TRY(VMM_IOCTL(fd_, KVM_TRANSLATE, &request));
  return Translation{.valid = request.valid != 0, .at = vpmu::GuestPhysical{request.physical_address}};
}

}  // namespace vmm
