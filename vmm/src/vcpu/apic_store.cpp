#include "vcpu/apic_store.hpp"

#include <array>
#include <cstddef>
#include <span>

#include "support/x86.hpp"
#include "vpmu/address.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

/// MOV [EDI], EAX; OUT 0EDH, AL, which exits; a jump back to OUT, in case the kernel itself handles that port.
constexpr std::array<std::uint8_t, 6> code{0x89, 0x07, 0xE6, 0xED, 0xEB, 0xFC};
constexpr std::uint64_t code_at = 0xFEEF'F000;
constexpr std::uint64_t stored_at = code_at + 2;

struct alignas(vpmu::page_size) CodePage {
  std::array<std::uint8_t, vpmu::page_size> bytes{};
};
constexpr CodePage page = [] {
  CodePage p;
  for (std::size_t i = 0; i < code.size(); ++i) p.bytes[i] = code[i];
  return p;
}();

/// SDM 3A figure 2-7; 2.2.1 (IA32_EFER).
/// SDM 3C 23.7, APM 2 15.4: set while a processor may run guests, and while it runs one.

/// Base 0, limit 4 GiB, ring 0. SDM 3A 3.4.5.1.
kvm_segment flat(std::uint16_t selector, std::uint8_t type) {
  kvm_segment s{};
  s.limit = 0xFFFF'FFFF;
  s.selector = selector;
  s.type = type;
  s.present = s.db = s.s = s.g = 1;
  return s;
}

kvm_sregs without_paging(kvm_sregs sregs) {
  constexpr std::uint8_t code_read_accessed = 11, data_write_accessed = 3;
  sregs.cs = flat(0x08, code_read_accessed);
  sregs.ss = sregs.ds = sregs.es = flat(0x10, data_write_accessed);
  sregs.cr0 = (sregs.cr0 | x86::cr0::PE::mask) & ~x86::cr0::PG::mask;
  sregs.cr4 &= ~x86::cr4::PCIDE::mask;  // needs IA-32e mode
  sregs.efer &= ~(x86::efer::LME::mask | x86::efer::LMA::mask);
  return sregs;
}

/// No event is being delivered, and NMIs are blocked.
kvm_vcpu_events with_nmis_blocked(const kvm_vcpu_events& guests) {
  kvm_vcpu_events events{};
  events.flags = KVM_VCPUEVENT_VALID_SHADOW | (guests.flags & KVM_VCPUEVENT_VALID_PAYLOAD);
  events.nmi.masked = 1;
  return events;
}

/// The vCPU's own state, kept while it runs our instruction.
class Guests {
 public:
  static Result<Guests> take(Vcpu& vcpu) {
    Guests g{vcpu};
    VMM_ASSIGN(g.regs_, vcpu.regs());
    VMM_ASSIGN(g.sregs_, vcpu.sregs());
    VMM_ASSIGN(g.events_, vcpu.events());
    VMM_ASSIGN(g.debug_, vcpu.debugregs());
    return g;
  }
  /// In system management mode, RAM may lie at the APIC's address.
  [[nodiscard]] bool may_be_left() const { return events_.smi.smm == 0 && events_.smi.pending == 0; }
  /// Whether a nested guest may be running: these are then its registers, and FEE00000H is an address of its own.
  [[nodiscard]] bool may_be_nested() const {
    return x86::cr4::VMXE::test(sregs_.cr4) || x86::efer::SVME::test(sregs_.efer);
  }
  [[nodiscard]] std::uint64_t apic_base() const { return sregs_.apic_base & ~vpmu::low_bits(12); }

  Result<void> leave_for(std::uint32_t address, std::uint32_t value) {
    if (x86::dr7::LG::test(debug_.dr7)) {
      kvm_debugregs none = debug_;
      none.dr7 = x86::dr7::fixed;
      VMM_TRY(vcpu_->set_debugregs(none));
    }
    kvm_regs regs{};
    regs.rip = code_at;
    regs.rdi = address;
    regs.rax = value;
    regs.rflags = x86::rflags::fixed | x86::rflags::RF::mask;
    VMM_TRY(vcpu_->set_regs(regs));
    VMM_TRY(vcpu_->set_sregs(without_paging(sregs_)));
    return vcpu_->set_events(with_nmis_blocked(events_));
  }
  Result<void> give_back() {
    VMM_TRY(vcpu_->set_regs(regs_));
    VMM_TRY(vcpu_->set_sregs(sregs_));
    VMM_TRY(vcpu_->set_events(events_));
    return x86::dr7::LG::test(debug_.dr7) ? vcpu_->set_debugregs(debug_) : Result<void>{};
  }

 private:
  explicit Guests(Vcpu& vcpu) : vcpu_{&vcpu} {}
  Vcpu* vcpu_;
  kvm_regs regs_{};
  kvm_sregs sregs_{};
  kvm_vcpu_events events_{};
  kvm_debugregs debug_{};
};

Result<ApicStore> run_store(Vcpu& vcpu, Guests& guests) {
  VMM_ASSIGN(const Exit exit, vcpu.run());
  const auto* const interrupted = std::get_if<Interrupted>(&exit);
  VMM_ASSIGN(const kvm_regs after, vcpu.regs());
  // KVM has processed an INIT: the vCPU's old state must not be written back.
  if (after.rip < code_at || after.rip >= code_at + code.size())
    return ApicStore{.stored = Stored::not_now, .exit = exit};
  if (interrupted != nullptr && interrupted->kicked) vcpu.interrupt_run();
  VMM_TRY(guests.give_back());
  if (after.rip >= stored_at) return ApicStore{.stored = Stored::done};
  const bool goes_on = interrupted != nullptr || std::holds_alternative<Debug>(exit);
  return ApicStore{.stored = goes_on ? Stored::not_now : Stored::never};
}

}  // namespace

Result<void> prepare_apic_stores(Vm& vm) {
  const int slots = vm.check(KVM_CAP_NR_MEMSLOTS);
  if (slots <= 0) return {};
  return vm.map_read_only(static_cast<std::uint32_t>(slots - 1), vpmu::GuestPhysical{code_at},
                          std::as_bytes(std::span{page.bytes}));
}

Result<ApicStore> store_to_apic(Vcpu& vcpu, std::uint32_t offset, std::uint32_t value) {
  std::optional<kvm_mp_state> halted;
  if (!vcpu.is_running()) {
    VMM_ASSIGN(const kvm_mp_state state, vcpu.mp_state());
    if (state.mp_state != KVM_MP_STATE_RUNNABLE && state.mp_state != KVM_MP_STATE_HALTED)
      return ApicStore{.stored = Stored::not_now};
    if (state.mp_state == KVM_MP_STATE_HALTED) halted = state;
  }
  VMM_ASSIGN(Guests guests, Guests::take(vcpu));
  if (guests.apic_base() != x86::apic_base::base_after_reset || guests.may_be_nested())
    return ApicStore{.stored = Stored::never};
  if (!guests.may_be_left()) return ApicStore{.stored = Stored::not_now};
  if (halted) VMM_TRY(vcpu.set_mp_state({.mp_state = KVM_MP_STATE_RUNNABLE}));
  VMM_TRY(guests.leave_for(static_cast<std::uint32_t>(x86::apic_base::base_after_reset) + offset, value));
  VMM_ASSIGN(ApicStore result, run_store(vcpu, guests));
  if (halted && !result.exit) VMM_TRY(vcpu.set_mp_state(*halted));
  return result;
}

}  // namespace vmm
