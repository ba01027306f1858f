#pragma once
#include <Zydis/Zydis.h>

#include <array>
#include <optional>
#include <span>

#include "decode/instruction.hpp"

/// For the files of decode/ only: nothing else in the VMM uses Zydis.
namespace vmm {

/// One instruction as Zydis gives it.
struct Decoded {
  ZydisDecodedInstruction in;
  std::array<ZydisDecodedOperand, ZYDIS_MAX_OPERAND_COUNT> all_operands;

  [[nodiscard]] std::span<const ZydisDecodedOperand> operands() const {
    return std::span{all_operands}.first(in.operand_count);
  }
  [[nodiscard]] bool repeats() const {
    return (in.attributes & (ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE | ZYDIS_ATTRIB_HAS_REPNE)) != 0;
  }
};

/// The class of a register operand; ZYDIS_REGCLASS_INVALID for all else.
inline ZydisRegisterClass register_class(const ZydisDecodedOperand& o) {
  return o.type == ZYDIS_OPERAND_TYPE_REGISTER ? ZydisRegisterGetClass(o.reg.value) : ZYDIS_REGCLASS_INVALID;
}

// Each extracts one aspect of the instruction.
std::optional<SystemInstruction> system_instruction(const Decoded& d);
std::optional<Gather> gather(const Decoded& d);
FlagUse flag_use(const Decoded& d);
/// Fills in Instruction::load, ::store and ::flushed. False: the instruction also touches what these cannot describe.
bool set_operands(const Decoded& d, Instruction& out);

}  // namespace vmm
