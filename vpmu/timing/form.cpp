#include "timing/form.hpp"

#include "exec/decode/instruction.hpp"

namespace vpmu::timing {
namespace {

std::string_view register_kind(const ZydisDecodedOperand& operand) {
  const bool by_opcode = operand.visibility == ZYDIS_OPERAND_VISIBILITY_IMPLICIT;
  switch (ZydisRegisterGetClass(operand.reg.value)) {
    case ZYDIS_REGCLASS_GPR8: return by_opcode && operand.reg.value == ZYDIS_REGISTER_CL ? "cl" : "r8";
    case ZYDIS_REGCLASS_GPR16: return "r16";
    case ZYDIS_REGCLASS_GPR32: return "r32";
    case ZYDIS_REGCLASS_GPR64: return "r64";
    case ZYDIS_REGCLASS_X87: return "st";
    case ZYDIS_REGCLASS_MMX: return "mm";
    case ZYDIS_REGCLASS_XMM: return "x";
    case ZYDIS_REGCLASS_YMM: return "y";
    default: return "sys";
  }
}

std::string kind(const ZydisDecodedOperand& operand) {
  switch (operand.type) {
    case ZYDIS_OPERAND_TYPE_REGISTER: return std::string{register_kind(operand)};
    case ZYDIS_OPERAND_TYPE_MEMORY:
      return operand.mem.type == ZYDIS_MEMOP_TYPE_AGEN ? "agen" : "m" + std::to_string(operand.size);
    case ZYDIS_OPERAND_TYPE_IMMEDIATE:
      if (operand.imm.is_relative) return "rel";
      return operand.visibility == ZYDIS_OPERAND_VISIBILITY_IMPLICIT ? "1" : "i";
    default: return "ptr";
  }
}

}  // namespace

std::string form_of(const exec::DecodedInstruction& i) {
  std::string form = ZydisMnemonicGetString(i.in.mnemonic);
  for (unsigned operand = 0; operand < i.visible(); ++operand) {
    form += operand == 0 ? ' ' : ',';
    form += kind(i.at(operand));
  }
  return form;
}

std::optional<Form> read_form(std::span<const std::byte> code) {
  exec::DecodedInstruction decoded;
  if (!exec::read_instruction(code, exec::CodeMode::bits64, decoded)) return std::nullopt;
  return Form{.name = form_of(decoded), .length = decoded.in.length};
}

}  // namespace vpmu::timing
