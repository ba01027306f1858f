#include "exec/decode/macro_fusion.hpp"

#include "exec/decode/instruction.hpp"

namespace vpmu::exec {
namespace {

Fusion condition_of(ZydisMnemonic m) {
  switch (m) {
    case ZYDIS_MNEMONIC_JZ:
    case ZYDIS_MNEMONIC_JNZ:
    case ZYDIS_MNEMONIC_JL:
    case ZYDIS_MNEMONIC_JNL:
    case ZYDIS_MNEMONIC_JLE:
    case ZYDIS_MNEMONIC_JNLE: return Fusion::with_zero_and_signed;
    case ZYDIS_MNEMONIC_JB:
    case ZYDIS_MNEMONIC_JNB:
    case ZYDIS_MNEMONIC_JBE:
    case ZYDIS_MNEMONIC_JNBE: return Fusion::with_carry_too;
    case ZYDIS_MNEMONIC_JS:
    case ZYDIS_MNEMONIC_JNS:
    case ZYDIS_MNEMONIC_JO:
    case ZYDIS_MNEMONIC_JNO:
    case ZYDIS_MNEMONIC_JP:
    case ZYDIS_MNEMONIC_JNP: return Fusion::with_all;
    default: return Fusion::none;
  }
}

Fusion first_of(ZydisMnemonic m) {
  switch (m) {
    case ZYDIS_MNEMONIC_TEST:
    case ZYDIS_MNEMONIC_AND: return Fusion::with_all;
    case ZYDIS_MNEMONIC_CMP:
    case ZYDIS_MNEMONIC_ADD:
    case ZYDIS_MNEMONIC_SUB: return Fusion::with_carry_too;
    case ZYDIS_MNEMONIC_INC:
    case ZYDIS_MNEMONIC_DEC: return Fusion::with_zero_and_signed;
    default: return Fusion::none;
  }
}

}  // namespace

FusionPart fusion_part(const DecodedInstruction& i) {
  const ZydisMnemonic m = i.in.mnemonic;
  FusionPart part{.first = first_of(m),
                  .condition = condition_of(m),
                  .compares = m == ZYDIS_MNEMONIC_CMP || m == ZYDIS_MNEMONIC_TEST};
  // None that stores, and none of memory and a constant.
  if (i.is_memory(0) && (!part.compares || i.is_immediate(1))) part.first = Fusion::none;
  return part;
}

}  // namespace vpmu::exec
