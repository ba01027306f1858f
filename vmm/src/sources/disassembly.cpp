// Includes Zydis, as sources/instruction.cpp does.
#include "sources/disassembly.hpp"

#include <Zydis/Zydis.h>
#include <fmt/format.h>

#include <array>
#include <optional>

#include "vpmu/bits.hpp"

#pragma GCC diagnostic ignored "-Wswitch-enum"

namespace vmm {
namespace {

struct Decoded {
  ZydisDecodedInstruction in;
  std::array<ZydisDecodedOperand, ZYDIS_MAX_OPERAND_COUNT> operands;
};

std::optional<Decoded> decode(std::span<const std::byte> bytes, CodeSize size) {
  ZydisDecoder decoder;
  switch (size) {
    case CodeSize::bits64: ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64); break;
    case CodeSize::bits32: ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LEGACY_32, ZYDIS_STACK_WIDTH_32); break;
    case CodeSize::bits16: ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LEGACY_16, ZYDIS_STACK_WIDTH_16); break;
  }
  Decoded d{};
  if (!ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder, bytes.data(), bytes.size(), &d.in, d.operands.data()))) return std::nullopt;
  return d;
}

}  // namespace

std::string disassemble(std::span<const std::byte> bytes, CodeSize size) {
  const auto d = decode(bytes, size);
  std::array<char, 128> text{"not an instruction"};
  if (d) {
    ZydisFormatter formatter;
    ZydisFormatterInit(&formatter, ZYDIS_FORMATTER_STYLE_INTEL);
    ZydisFormatterFormatInstruction(&formatter, &d->in, d->operands.data(), d->in.operand_count_visible, text.data(), text.size(),
                                    ZYDIS_RUNTIME_ADDRESS_NONE, nullptr);
  }
  std::string out = fmt::format("{} (", text.data());
  for (const std::byte b : bytes.first(d ? d->in.length : bytes.size())) out += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return out + ")";
}

std::uint64_t undefined_flags(std::span<const std::byte> bytes, CodeSize size) {
  constexpr std::uint64_t cf = vpmu::bit(0), af = vpmu::bit(4), of = vpmu::bit(11);
  const auto d = decode(bytes, size);
  if (!d) return 0;
  const std::uint64_t always = d->in.cpu_flags->undefined;
  // Shifts by more than one bit, and out of the operand altogether.
  const bool by_one = d->in.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT && (d->in.opcode == 0xD0 || d->in.opcode == 0xD1);
  const std::uint64_t overflow = by_one ? 0 : of;
  const std::uint64_t carry = d->operands[0].size < 32 ? cf : 0;
  switch (d->in.mnemonic) {
    case ZYDIS_MNEMONIC_ROL:
    case ZYDIS_MNEMONIC_ROR:
    case ZYDIS_MNEMONIC_RCL:
    case ZYDIS_MNEMONIC_RCR: return overflow;
    case ZYDIS_MNEMONIC_SAR: return af | overflow;
    case ZYDIS_MNEMONIC_SHL:
    case ZYDIS_MNEMONIC_SHR:
    case ZYDIS_MNEMONIC_SHLD:
    case ZYDIS_MNEMONIC_SHRD: return af | overflow | carry;
    default: return always;
  }
}

}  // namespace vmm
