#include "decode/zydis.hpp"
#include "support/x86.hpp"

// Zydis has hundreds of mnemonics; these switches name the few that matter.
#pragma GCC diagnostic ignored "-Wswitch-enum"

namespace vmm {
namespace {

constexpr std::uint64_t cf = x86::rflags::CF::mask, af = x86::rflags::AF::mask, of = x86::rflags::OF::mask;
constexpr std::uint64_t status_flags = x86::rflags::status;

std::uint64_t undefined_flags(const Decoded& d) {
  // OF is undefined for shifts by more than one bit, CF for shifts by more bits than the operand has.
  const bool by_one = d.in.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT && (d.in.opcode == 0xD0 || d.in.opcode == 0xD1);
  const std::uint64_t overflow = by_one ? 0 : of;
  const std::uint64_t carry = d.all_operands[0].size < 32 ? cf : 0;
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_ROL:
    case ZYDIS_MNEMONIC_ROR:
    case ZYDIS_MNEMONIC_RCL:
    case ZYDIS_MNEMONIC_RCR: return overflow;
    case ZYDIS_MNEMONIC_SAR: return af | overflow;
    case ZYDIS_MNEMONIC_SHL:
    case ZYDIS_MNEMONIC_SHR:
    case ZYDIS_MNEMONIC_SHLD:
    case ZYDIS_MNEMONIC_SHRD: return af | overflow | carry;
    default: return d.in.cpu_flags->undefined;
  }
}

bool stores_flags(ZydisMnemonic m) {
  return m == ZYDIS_MNEMONIC_PUSHFQ || m == ZYDIS_MNEMONIC_PUSHF || m == ZYDIS_MNEMONIC_LAHF;
}

}  // namespace

// Shifts, rotates and repetitions have no `given` flags, because a count of 0 leaves all flags unchanged.
FlagUse flag_use(const Decoded& d) {
  const ZydisAccessedFlags& flags = *d.in.cpu_flags;
  FlagUse use{.asked = stores_flags(d.in.mnemonic) ? status_flags : flags.tested & status_flags,
              .undefined = undefined_flags(d)};
  const bool shifts = d.in.meta.category == ZYDIS_CATEGORY_SHIFT || d.in.meta.category == ZYDIS_CATEGORY_ROTATE;
  if (!d.repeats() && !shifts) use.given = (flags.modified | flags.set_0 | flags.set_1) & status_flags & ~use.undefined;
  return use;
}

}  // namespace vmm
