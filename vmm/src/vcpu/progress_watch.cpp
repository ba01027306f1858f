#include "vcpu/progress_watch.hpp"

#include <fmt/format.h>

#include <cstring>

namespace vmm {
namespace {

std::string text_of(const kvm_regs& r) {
  return fmt::format(
      "RIP {:#x} RFLAGS {:#x} RAX {:#x} RBX {:#x} RCX {:#x} RDX {:#x} RSI {:#x} RDI {:#x} RBP {:#x} RSP {:#x} "
      "R8 {:#x} R9 {:#x} R10 {:#x} R11 {:#x} R12 {:#x} R13 {:#x} R14 {:#x} R15 {:#x}",
      r.rip, r.rflags, r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
      r.r14, r.r15);
}
std::string text_of(const kvm_sregs& s) {
  return fmt::format(" CS {:#x} base {:#x} SS {:#x} CR0 {:#x} CR2 {:#x} CR3 {:#x} CR4 {:#x} EFER {:#x}", s.cs.selector,
                     s.cs.base, s.ss.selector, s.cr0, s.cr2, s.cr3, s.cr4, s.efer);
}
std::string text_of(const kvm_debugregs& d) {
  return fmt::format(" DR0 {:#x} DR1 {:#x} DR2 {:#x} DR3 {:#x} DR6 {:#x} DR7 {:#x}", d.db[0], d.db[1], d.db[2], d.db[3],
                     d.dr6, d.dr7);
}
std::string text_of(const kvm_vcpu_events& e) {
  return fmt::format(
      " exception {} injected {} pending {}, interrupt {} injected {}, shadow {}, NMI pending {} masked {}",
      e.exception.nr, e.exception.injected, e.exception.pending, e.interrupt.nr, e.interrupt.injected,
      e.interrupt.shadow, e.nmi.pending, e.nmi.masked);
}
/// What cannot be read is left out: the rest is worth having.
template <class T>
std::string text_if(const Result<T>& state) {
  return state ? text_of(*state) : std::string{};
}

}  // namespace

bool ProgressWatch::stands(const kvm_regs& regs) {
  if (std::memcmp(&regs, &regs_, sizeof regs) != 0) {
    regs_ = regs;
    turns_ = 0;
  }
  return ++turns_ >= max_turns;
}

Failure ProgressWatch::failure(VcpuBackend& backend) {
  return host_error(
      fmt::format("internal error: the vCPU stands still: in {} turns it has run no instruction, taken no "
                  "event and waited for nothing, at {}{}{}{}",
                  max_turns, text_if(backend.regs()), text_if(backend.sregs()), text_if(backend.debugregs()),
                  text_if(backend.events())),
      0, "this is a fault of the VMM, not of the guest: report this line");
}

}  // namespace vmm
