#include "exec/host/host_assembler.hpp"

namespace vpmu::exec {
namespace {

constexpr unsigned has_sib = 4, no_displacement = 0x00, displacement_8 = 0x40, displacement_32 = 0x80;
constexpr bool fits_8(std::int32_t value) { return value == static_cast<std::int8_t>(value); }

}  // namespace

void HostAssembler::mov_constant(HostRegister to, std::uint64_t value) {
  if (value == static_cast<std::uint32_t>(value)) {
    in_opcode(0xB8, to);
    word32(value);
  } else if (value == static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(value)))) {
    registers(true, 0xC7, 0, to);
    word32(value);
  } else {
    bytes({rex(0, 0, to), 0xB8U | (to & 7U)});
    word64(value);
  }
}

// SDM 2A tables 2-2, 2-3: RSP and R12 as a base need a SIB byte, RBP and R13 a displacement.
void HostAssembler::operand(unsigned reg, Memory memory) {
  const unsigned low = memory.base & 7U;
  const bool has_index = memory.index != none;
  const unsigned mode = memory.disp == 0 && low != 5 ? no_displacement
                        : fits_8(memory.disp)        ? displacement_8
                                                     : displacement_32;
  bytes({mode | (reg & 7U) << 3U | (has_index ? has_sib : low)});
  if (has_index || low == has_sib) bytes({(has_index ? memory.index & 7U : 4U) << 3U | low});
  if (mode == displacement_8) bytes({static_cast<std::uint8_t>(memory.disp)});
  if (mode == displacement_32) word32(static_cast<std::uint32_t>(memory.disp));
}

void HostAssembler::lea(HostRegister to, HostRegister base, HostRegister index, unsigned scale, std::int32_t disp,
                        unsigned operand_bytes) {
  if (operand_bytes == 2) bytes({0x66});
  bytes({rex(to, index, base == none ? 0U : base, operand_bytes == 8), 0x8D});
  if (index == none && base != none) return operand(to, {base, disp});
  const unsigned reg = (to & 7U) << 3U;
  const unsigned low_index = index == none ? 4U : index & 7U;
  if (base == none) {
    bytes({has_sib | reg, scale << 6U | low_index << 3U | 5U});
    return word32(static_cast<std::uint32_t>(disp));
  }
  const unsigned mode = disp == 0 && (base & 7U) != 5 ? no_displacement
                        : fits_8(disp)                ? displacement_8
                                                      : displacement_32;
  bytes({mode | has_sib | reg, scale << 6U | low_index << 3U | (base & 7U)});
  if (mode == displacement_8) bytes({static_cast<std::uint8_t>(disp)});
  if (mode == displacement_32) word32(static_cast<std::uint32_t>(disp));
}

std::span<const std::byte> HostAssembler::finish() {
  for (const Use& use : uses_) {
    if (use.label >= places_.size() || places_[use.label] == nowhere)
      code_.spoil();
    else
      code_.replace_word32(use.at, static_cast<std::uint32_t>(places_[use.label] - (use.at + 4)));
  }
  return code_.written();
}

}  // namespace vpmu::exec
