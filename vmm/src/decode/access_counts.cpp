// How many loads and stores an instruction makes: micro-operations, as far as the manual's description of it shows
// them.
#include "decode/zydis.hpp"

// Zydis has hundreds of mnemonics; this switch names the few that matter.
#pragma GCC diagnostic ignored "-Wswitch-enum"

namespace vmm {
namespace {

/// SDM 2A ENTER: EBP is pushed; of a nested frame, the outer frames' pointers are copied, and then its own is pushed.
AccessCounts enter_accesses(const Decoded& d) {
  const auto level = static_cast<std::uint8_t>(d.all_operands[1].imm.value.u % 32);
  if (level == 0) return {};
  return {.loads = static_cast<std::uint8_t>(level - 1), .stores = static_cast<std::uint8_t>(level + 1)};
}

/// Outside of 64-bit code IRET pops SS and ESP only for another privilege level, which the instruction does not tell.
AccessCounts iret(const Decoded& d) {
  return {.loads = static_cast<std::uint8_t>(d.in.machine_mode == ZYDIS_MACHINE_MODE_LONG_64 ? 5 : 3)};
}

}  // namespace

// SDM 2A CMPS, CMPXCHG8B, BOUND, IRET, 2B PUSHA, POPA. What one element of a string instruction does.
AccessCounts access_counts(const Decoded& d) {
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_CMPSB:
    case ZYDIS_MNEMONIC_CMPSW:
    case ZYDIS_MNEMONIC_CMPSD:
    case ZYDIS_MNEMONIC_CMPSQ:
      return d.in.meta.category == ZYDIS_CATEGORY_STRINGOP ? AccessCounts{.loads = 2} : AccessCounts{};
    case ZYDIS_MNEMONIC_CMPXCHG16B: return {.loads = 2, .stores = 2};  // of 8 bytes each
    case ZYDIS_MNEMONIC_PUSHA:
    case ZYDIS_MNEMONIC_PUSHAD: return {.stores = 8};
    case ZYDIS_MNEMONIC_POPA:
    case ZYDIS_MNEMONIC_POPAD: return {.loads = 7};  // ESP's place is skipped
    case ZYDIS_MNEMONIC_BOUND: return {.loads = 2};
    case ZYDIS_MNEMONIC_ENTER: return enter_accesses(d);
    case ZYDIS_MNEMONIC_IRET:
    case ZYDIS_MNEMONIC_IRETD:
    case ZYDIS_MNEMONIC_IRETQ: return iret(d);
    default: break;
  }
  if (const auto g = gather(d)) return {.loads = g->count};
  return {};
}

}  // namespace vmm
