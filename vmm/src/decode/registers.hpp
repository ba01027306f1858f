#pragma once
#include <linux/kvm.h>

#include <array>
#include <cstdint>

namespace vmm {

/// Where KVM keeps the general registers, by their number in instructions. SDM 2A table 2-2.
inline constexpr std::array<__u64 kvm_regs::*, 16> gpr_fields{
    &kvm_regs::rax, &kvm_regs::rcx, &kvm_regs::rdx, &kvm_regs::rbx, &kvm_regs::rsp, &kvm_regs::rbp,
    &kvm_regs::rsi, &kvm_regs::rdi, &kvm_regs::r8,  &kvm_regs::r9,  &kvm_regs::r10, &kvm_regs::r11,
    &kvm_regs::r12, &kvm_regs::r13, &kvm_regs::r14, &kvm_regs::r15};

/// EDX:EAX, the operand of WRMSR and XSETBV.
inline std::uint64_t edx_eax(const kvm_regs& regs) { return (regs.rdx & 0xFFFF'FFFF) << 32 | (regs.rax & 0xFFFF'FFFF); }
/// Sets them to the halves of a value; the upper halves of the registers are cleared.
inline void set_edx_eax(kvm_regs& regs, std::uint64_t value) {
  regs.rax = value & 0xFFFF'FFFF;
  regs.rdx = value >> 32;
}

}  // namespace vmm
