#pragma once
#include "decode/instruction.hpp"
#include "sources/source.hpp"

namespace vmm {

/// What the PMU is told of one instruction that ran from the state `before` and `sregs` to the registers `after`:
/// addresses of its operands, its branch, and the registers that a record shows. It took `cycles` of every clock; cache
/// levels and latencies are unknown. `target_cpl` is the level that a far branch led to; empty for that of `sregs`.
Retired retired_instruction(const Instruction& instruction, const kvm_regs& before, const kvm_sregs& sregs,
                            const kvm_regs& after, std::uint32_t cycles,
                            std::optional<unsigned> target_cpl = std::nullopt);

/// The delivery of an interrupt or exception before the instruction at `from`, to its handler at `to`.
vpmu::TakenBranch delivery(vpmu::GuestLinear from, unsigned cpl, vpmu::GuestLinear to, unsigned handler_cpl);

}  // namespace vmm
