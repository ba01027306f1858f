#pragma once
#include "decode/instruction.hpp"
#include "sources/source.hpp"
#include "sources/unhalted_clocks.hpp"

namespace vmm {

/// Describes one retired instruction to the PMU: operand addresses, branch, and the registers for a record. The
/// instruction ran from state `before` and `sregs` to registers `after`, and took `ticks`; cache levels and latencies
/// are unknown. `target_cpl` is the level that a far branch led to; empty means that of `sregs`.
Retired retired_instruction(const Instruction& instruction, const kvm_regs& before, const kvm_sregs& sregs,
                            const kvm_regs& after, const Ticks& ticks,
                            std::optional<unsigned> target_cpl = std::nullopt);

/// Makes a macro-fused pair of a compare and the branch behind it (rule P2a), whose time the compare's ticks hold.
void join(Retired& compare, const Retired& branch);

/// The delivery of an interrupt or exception before the instruction at `from`, to its handler at `to`.
vpmu::TakenBranch delivery(vpmu::GuestLinear from, unsigned cpl, vpmu::GuestLinear to, unsigned handler_cpl);

}  // namespace vmm
