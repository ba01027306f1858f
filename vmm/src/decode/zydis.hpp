#pragma once
#include <optional>

#include "decode/instruction.hpp"
#include "exec/decode/instruction.hpp"

/// For the files of decode/ only: nothing else in the VMM uses Zydis.
namespace vmm {

using Decoded = vpmu::exec::DecodedInstruction;

/// The class of a register operand; ZYDIS_REGCLASS_INVALID for all else.
inline ZydisRegisterClass register_class(const ZydisDecodedOperand& o) {
  return o.type == ZYDIS_OPERAND_TYPE_REGISTER ? ZydisRegisterGetClass(o.reg.value) : ZYDIS_REGCLASS_INVALID;
}

// Each extracts one aspect of the instruction.
std::optional<SystemInstruction> system_instruction(const Decoded& d);
std::optional<Gather> gather(const Decoded& d);
FlagUse flag_use(const Decoded& d);
AccessCounts access_counts(const Decoded& d);
/// Fills in Instruction::load, ::store and ::flushed. False: the instruction also touches what these cannot describe.
bool set_operands(const Decoded& d, Instruction& out);

}  // namespace vmm
