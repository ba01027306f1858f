#pragma once
#include <linux/kvm.h>

#include "exec/engine.hpp"
#include "vcpu/backend.hpp"

namespace vmm {

/// Whether misaligned accesses raise #AC: at CPL 3 with CR0.AM and RFLAGS.AC. SDM 3A 6.15, interrupt 17.
bool checks_alignment(const kvm_regs& regs, const kvm_sregs& sregs);
/// Whether a program's accesses must be checked one by one: for alignment; or because a segment of its 16- or 32-bit
/// code, unless it is null, has a limit or may not be read or written. SDM 3A 5.3, 5.5. Those of CPL 0 are not.
bool checks_accesses(const kvm_regs& regs, const kvm_sregs& sregs);
/// A vCPU's registers as the instruction engine takes them.
vpmu::exec::CpuState engine_state(const kvm_regs& regs, const kvm_sregs& sregs, PagingLimits limits);
/// The reverse. The engine changes no other registers: it does not run what loads segments or control registers.
kvm_regs kvm_state(const vpmu::exec::CpuState& state);

}  // namespace vmm
