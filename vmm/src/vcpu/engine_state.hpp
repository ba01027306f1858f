#pragma once
#include <linux/kvm.h>

#include "exec/engine.hpp"

namespace vmm {

/// A vCPU's registers as the instruction engine takes them.
vpmu::exec::CpuState engine_state(const kvm_regs& regs, const kvm_sregs& sregs);
/// The reverse. The engine changes no other registers: it does not run what loads segments or control registers.
kvm_regs kvm_state(const vpmu::exec::CpuState& state);

}  // namespace vmm
