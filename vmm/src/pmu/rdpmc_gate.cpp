#include "pmu/rdpmc_gate.hpp"

#include <array>
#include <cstring>

#include "support/x86.hpp"
#include "vcpu/handlers.hpp"
#include "vcpu/segments.hpp"

namespace vmm {
namespace {

constexpr std::array<std::byte, 2> rdpmc_opcode{std::byte{0x0F}, std::byte{0x33}};

/// IRET's checks of the segments that it returns to. SDM 2A IRET. The guest's tables may hold anything, and KVM cannot
/// enter a vCPU whose segments are inconsistent. Conforming code is refused too: nobody reads counters from there.
bool can_return_to(const kvm_segment& cs, const kvm_segment& ss) {
  constexpr unsigned code = 8, conforming = 4, writable = 2;
  const unsigned rpl = cs.selector & 3;
  const bool code_ok =
      cs.s != 0 && cs.present != 0 && (cs.type & (code | conforming)) == code && cs.dpl == rpl && (cs.l & cs.db) == 0;
  const bool stack_ok = ss.s != 0 && ss.present != 0 && (ss.type & (code | writable)) == writable && ss.dpl == rpl;
  return code_ok && stack_ok && (ss.selector & 3U) == rpl;
}

}  // namespace

/// What the CPU pushes for #GP in IA-32e mode. SDM 3A figure 6-8.
struct RdpmcGate::Frame {
  std::uint64_t error_code, rip, cs, rflags, rsp, ss;
};

Result<void> RdpmcGate::update(bool in_use) {
  if (!in_use || statistics_.given_up != 0) {
    breakpoints_->set_gate(std::nullopt);
    return {};
  }
  if (breakpoints_->gate()) return {};
  VMM_ASSIGN(const kvm_sregs sregs, backend_->sregs());
  breakpoints_->set_gate(handler_of(*view_, sregs, x86::vector::GP));
  return {};
}

// Resumes at the handler, with RF set so that the breakpoint does not hit again on its first instruction. The delivery
// of a fault clears RF: if it is set already, this KVM ignores RF.
Result<void> RdpmcGate::let_through(kvm_regs regs) {
  if (x86::rflags::RF::test(regs.rflags)) {
    statistics_.given_up = 1;
    breakpoints_->set_gate(std::nullopt);
    return {};
  }
  // The guest may have a breakpoint there too; its #DB comes first, and its #DB handler sets RF itself.
  if (const std::uint64_t hit = breakpoints_->guests_at(vpmu::GuestLinear{regs.rip}); hit != 0)
    return breakpoints_->inject({.exception = 1, .pc = regs.rip, .dr6 = hit, .dr7 = 0});
  regs.rflags |= x86::rflags::RF::mask;
  return backend_->set_regs(regs);
}

// Emulates an IRET to the instruction after RDPMC.
Result<void> RdpmcGate::resume_after(const Frame& frame, std::uint64_t value, kvm_regs regs, kvm_sregs sregs) {
  if ((frame.cs & 3) != 0) {
    const auto cs = segment_of(*view_, sregs, static_cast<std::uint16_t>(frame.cs));
    const auto ss = segment_of(*view_, sregs, static_cast<std::uint16_t>(frame.ss));
    if (!cs || !ss || !can_return_to(*cs, *ss)) return let_through(regs);
    sregs.cs = *cs;
    sregs.ss = *ss;
    VMM_TRY(backend_->set_sregs(sregs));
  }
  regs.rax = value & 0xFFFF'FFFF;
  regs.rdx = value >> 32;
  regs.rip = frame.rip + rdpmc_opcode.size();
  regs.rsp = frame.rsp;
  regs.rflags = frame.rflags & ~(x86::rflags::RF::mask | x86::rflags::VM::mask);
  ++statistics_.served;
  VMM_TRY(backend_->set_regs(regs));
  if (!x86::rflags::TF::test(frame.rflags)) return {};
  // The guest single-steps itself: this is the trap after RDPMC. SDM 3B 17.3.1.4.
  return breakpoints_->inject({.exception = 1, .pc = regs.rip, .dr6 = x86::dr6::BS::mask, .dr7 = 0});
}

Result<void> RdpmcGate::on_fault_handler(const ReadCounter& value_of) {
  VMM_ASSIGN(const kvm_regs regs, backend_->regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend_->sregs());
  Frame frame{};
  std::array<std::byte, rdpmc_opcode.size()> opcode{};
  const bool readable = !view_->read(vpmu::GuestLinear{regs.rsp}, std::as_writable_bytes(std::span{&frame, 1})) &&
                        view_->fetch(vpmu::GuestLinear{frame.rip}, opcode, frame.cs & 3) == opcode.size();
  if (!readable || frame.error_code != 0 || opcode != rdpmc_opcode) {
    ++statistics_.other_faults;
    return let_through(regs);
  }
  const auto value = value_of(static_cast<std::uint32_t>(regs.rcx), frame.cs & 3, x86::cr4::PCE::test(sregs.cr4));
  if (!value) {
    ++statistics_.refused;
    return let_through(regs);
  }
  return resume_after(frame, *value, regs, sregs);
}

}  // namespace vmm
