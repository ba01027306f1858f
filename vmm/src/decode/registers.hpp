#pragma once
#include <linux/kvm.h>

#include <array>

namespace vmm {

/// Where KVM keeps the general registers, by their number in instructions. SDM 2A table 2-2.
inline constexpr std::array<__u64 kvm_regs::*, 16> gpr_fields{
    &kvm_regs::rax, &kvm_regs::rcx, &kvm_regs::rdx, &kvm_regs::rbx, &kvm_regs::rsp, &kvm_regs::rbp,
    &kvm_regs::rsi, &kvm_regs::rdi, &kvm_regs::r8,  &kvm_regs::r9,  &kvm_regs::r10, &kvm_regs::r11,
    &kvm_regs::r12, &kvm_regs::r13, &kvm_regs::r14, &kvm_regs::r15};

}  // namespace vmm
