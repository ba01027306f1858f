#pragma once
#include <utility>

#include "decode/system_instruction.hpp"
#include "processor/soft_state.hpp"
#include "processor/system_result.hpp"
#include "vcpu/guest_view.hpp"
#include "vpmu/observer.hpp"

/// What system instructions of all kinds have in common: checks, operands, and where they go on.
namespace vmm {

/// Whether the instruction is for CPL 0 only. SDM 3A 5.9.
[[nodiscard]] bool is_privileged(SystemOp op);
/// Whether RIP must be set behind the instruction: it has completed and is no branch, or raises a trap.
[[nodiscard]] bool goes_on_behind(SystemOp op, const SystemResult& result);

/// Runs an instruction by `execute()`, which does its work: checks its privilege before, and advances RIP when it has
/// completed; otherwise RIP is unchanged, except for traps.
template <class Execute>
SystemResult run_instruction(SoftState& s, const SystemInstruction& i, Execute&& execute) {
  if (is_privileged(i.op) && cpl_of(s.sregs) != 0) return raised_gp;
  const std::uint64_t next = s.regs.rip + i.length;
  SystemResult result = std::forward<Execute>(execute)();
  if (goes_on_behind(i.op, result)) s.regs.rip = next;
  return result;
}

/// The general register of the instruction.
[[nodiscard]] __u64& gpr(SoftState& s, const SystemInstruction& i);
/// Sets as much of the register as the instruction names; 32 bits clear the upper half. SDM 1 3.4.1.1.
void set_gpr(SoftState& s, const SystemInstruction& i, std::uint64_t value);
/// What the TLBs have lost by this instruction, if it changes_translations(). `operand`: INVLPG's. SDM 3A 4.10.4.1.
[[nodiscard]] vpmu::TlbFlush flush_by(SoftState& s, const SystemInstruction& i, std::optional<std::uint64_t> operand);
/// Writes a 16-bit word to memory, or to as much of a register as the instruction names.
SystemResult give(SoftState& s, GuestView& view, const SystemInstruction& i, std::optional<std::uint64_t> operand,
                  std::uint64_t value);
/// The selector operand of LTR and of moves to segment registers: a register, unless the operand has an address.
[[nodiscard]] std::optional<Exception> fetch_selector(SoftState& s, GuestView& view, const SystemInstruction& i,
                                                      std::optional<std::uint64_t> operand, std::uint16_t& selector);
/// Why a store would fault. A device can be written.
[[nodiscard]] vpmu::AccessResult write_fault(GuestView& view, vpmu::GuestLinear at, std::uint64_t bytes);

}  // namespace vmm
