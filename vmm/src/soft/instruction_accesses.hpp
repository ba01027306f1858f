#pragma once
#include <optional>
#include <vector>

#include "decode/instruction.hpp"
#include "exec/engine.hpp"
#include "processor/debug_registers.hpp"

namespace vmm {

/// The memory accesses of the next instruction, as far as its operands determine them: what it loads, then what it
/// stores. Those of a gather are its elements'.
[[nodiscard]] std::vector<Access> accesses_of(const Instruction& i, const SoftState& s);
/// All accesses of an instruction at which the engine has stopped, and `missing`, the one that failed: operands may not
/// determine it.
[[nodiscard]] std::vector<Access> reached_accesses(const Instruction& i, const SoftState& s,
                                                   const std::optional<vpmu::exec::MissingAccess>& missing);

/// The width of the count of a repeated string instruction. SDM 2B REP.
[[nodiscard]] unsigned count_bytes(const Instruction& i);
/// Whether iterations of a repeated string instruction follow the next one.
[[nodiscard]] bool repeats(const Instruction& i, const kvm_regs& regs);

}  // namespace vmm
