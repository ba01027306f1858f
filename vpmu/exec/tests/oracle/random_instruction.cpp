#include "exec/tests/oracle/random_instruction.hpp"

#include <Zydis/Zydis.h>

#include <array>

#include "exec/state/flags.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec::test {
namespace {

using Operands = std::array<ZydisDecodedOperand, ZYDIS_MAX_OPERAND_COUNT>;

int number_of(ZydisRegister reg) {
  const ZydisRegister whole = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, reg);
  if (reg >= ZYDIS_REGISTER_AH && reg <= ZYDIS_REGISTER_BH) return reg - ZYDIS_REGISTER_AH;
  return whole >= ZYDIS_REGISTER_RAX && whole <= ZYDIS_REGISTER_R15 ? whole - ZYDIS_REGISTER_RAX : -1;
}

/// Instructions that leave the process, trap, or give results that differ between CPUs.
bool is_excluded(const ZydisDecodedInstruction& in, const Operands& operands) {
  if (in.meta.branch_type != ZYDIS_BRANCH_TYPE_NONE) return true;
  if ((in.attributes & ZYDIS_ATTRIB_IS_PRIVILEGED) != 0) return true;
  switch (in.meta.category) {
    case ZYDIS_CATEGORY_SYSTEM:
    case ZYDIS_CATEGORY_SYSCALL:
    case ZYDIS_CATEGORY_SYSRET:
    case ZYDIS_CATEGORY_INTERRUPT:
    case ZYDIS_CATEGORY_IO:
    case ZYDIS_CATEGORY_IOSTRINGOP:
    case ZYDIS_CATEGORY_X87_ALU: return true;
    default: break;
  }
  switch (in.mnemonic) {
    case ZYDIS_MNEMONIC_STI:
    case ZYDIS_MNEMONIC_CLI:
    case ZYDIS_MNEMONIC_POPF:
    case ZYDIS_MNEMONIC_POPFQ:
    case ZYDIS_MNEMONIC_PUSHF:
    case ZYDIS_MNEMONIC_PUSHFQ:  // IF and the like differ
    case ZYDIS_MNEMONIC_LEAVE:   // RBP would have to point to memory
    case ZYDIS_MNEMONIC_RDTSC:
    case ZYDIS_MNEMONIC_RDPMC:
    case ZYDIS_MNEMONIC_HLT:
    case ZYDIS_MNEMONIC_PAUSE: return true;
    default: break;
  }
  for (unsigned i = 0; i < in.operand_count; ++i) {
    const auto& o = operands[i];
    if (o.type == ZYDIS_OPERAND_TYPE_REGISTER && number_of(o.reg.value) < 0 && o.reg.value != ZYDIS_REGISTER_RFLAGS)
      return true;
    if (o.type != ZYDIS_OPERAND_TYPE_MEMORY) continue;
    if (o.mem.segment == ZYDIS_REGISTER_FS || o.mem.segment == ZYDIS_REGISTER_GS || o.mem.base == ZYDIS_REGISTER_RIP)
      return true;
  }
  return false;
}

std::uint64_t count_of(const ZydisDecodedInstruction& in, const Operands& operands, const Registers& r) {
  const unsigned at = in.mnemonic == ZYDIS_MNEMONIC_SHLD || in.mnemonic == ZYDIS_MNEMONIC_SHRD ? 2 : 1;
  const std::uint64_t raw =
      operands[at].type == ZYDIS_OPERAND_TYPE_IMMEDIATE ? operands[at].imm.value.u : r.gpr[1] & 0xFF;
  return raw & (operands[0].size == 64 ? 63U : 31U);
}

// SDM volume 2, "Flags Affected" of each.
std::uint64_t undefined_flags(const ZydisDecodedInstruction& in, const Operands& operands, const Registers& r) {
  namespace f = x86::rflags;
  const std::uint64_t bits = operands[0].size;
  switch (in.mnemonic) {
    case ZYDIS_MNEMONIC_ROL:
    case ZYDIS_MNEMONIC_ROR:
    case ZYDIS_MNEMONIC_RCL:
    case ZYDIS_MNEMONIC_RCR: return count_of(in, operands, r) == 1 ? 0 : f::OF::mask;
    case ZYDIS_MNEMONIC_SHL:
    case ZYDIS_MNEMONIC_SHR:
    case ZYDIS_MNEMONIC_SAR:
    case ZYDIS_MNEMONIC_SHLD:
    case ZYDIS_MNEMONIC_SHRD: {
      const std::uint64_t n = count_of(in, operands, r);
      if (n == 0) return 0;
      return f::AF::mask | (n == 1 ? 0 : f::OF::mask) |
             (n >= bits && in.mnemonic != ZYDIS_MNEMONIC_SAR ? f::CF::mask : 0);
    }
    case ZYDIS_MNEMONIC_AND:
    case ZYDIS_MNEMONIC_OR:
    case ZYDIS_MNEMONIC_XOR:
    case ZYDIS_MNEMONIC_TEST: return f::AF::mask;
    case ZYDIS_MNEMONIC_MUL:
    case ZYDIS_MNEMONIC_IMUL: return f::SF::mask | f::ZF::mask | f::AF::mask | f::PF::mask;
    case ZYDIS_MNEMONIC_DIV:
    case ZYDIS_MNEMONIC_IDIV: return f::status;
    case ZYDIS_MNEMONIC_BSF:
    case ZYDIS_MNEMONIC_BSR: return f::CF::mask | f::OF::mask | f::SF::mask | f::AF::mask | f::PF::mask;
    case ZYDIS_MNEMONIC_BT:
    case ZYDIS_MNEMONIC_BTS:
    case ZYDIS_MNEMONIC_BTR:
    case ZYDIS_MNEMONIC_BTC: return f::OF::mask | f::SF::mask | f::AF::mask | f::PF::mask;
    case ZYDIS_MNEMONIC_LZCNT:
    case ZYDIS_MNEMONIC_TZCNT: return f::OF::mask | f::SF::mask | f::AF::mask | f::PF::mask;
    default: return 0;
  }
}

}  // namespace

std::uint64_t RandomInstruction::value() {
  static constexpr std::array<std::uint64_t, 12> edges{0,      1,      2,           0x7F,        0x80,  0xFF,
                                                       0x7FFF, 0x8000, 0x7FFF'FFFF, 0x8000'0000, ~0ULL, 1ULL << 63};
  switch (random_() % 4) {
    case 0: return edges[random_() % edges.size()];
    case 1: return random_() & 0xFF;
    default: return random_();
  }
}

std::vector<std::byte> RandomInstruction::random_bytes() {
  std::vector<std::byte> code;
  const auto add = [&](unsigned b) { code.push_back(static_cast<std::byte>(b)); };
  if (random_() % 5 == 0) add(0x66);
  if (random_() % 12 == 0) add(0xF0);
  if (random_() % 8 == 0) add(random_() % 2 == 0 ? 0xF2 : 0xF3);
  if (random_() % 2 == 0) add(0x40 | (random_() & 0xF));
  if (random_() % 3 == 0) add(0x0F);
  while (code.size() < 15) add(random_() & 0xFF);
  return code;
}

std::optional<Case> RandomInstruction::with(std::vector<std::byte> code) {
  static const ZydisDecoder decoder = [] {
    ZydisDecoder d;
    ZydisDecoderInit(&d, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
    return d;
  }();
  Case c{.code = std::move(code)};
  ZydisDecodedInstruction in;
  Operands operands;
  if (!ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder, c.code.data(), c.code.size(), &in, operands.data())))
    return std::nullopt;
  if (is_excluded(in, operands)) return std::nullopt;
  c.code.resize(in.length);
  for (auto& r : c.before.gpr) r = value();
  c.before.flags = 0x202 | (random_() & x86::rflags::status);
  const std::uint64_t middle = scratch_ + bytes_ / 2;
  c.before.gpr[4] = middle + (random_() % 512) * 8;
  const bool is_string = in.meta.category == ZYDIS_CATEGORY_STRINGOP;
  if (is_string) {
    c.before.gpr[1] = random_() % 20;  // RCX
    c.before.gpr[6] = middle + random_() % 4096;
    c.before.gpr[7] = middle - random_() % 4096;
    if (random_() % 4 == 0) c.before.flags |= x86::rflags::DF::mask;
  }
  for (unsigned i = 0; i < in.operand_count && !is_string; ++i) {
    const auto& o = operands[i];
    if (o.type != ZYDIS_OPERAND_TYPE_MEMORY || in.mnemonic == ZYDIS_MNEMONIC_LEA) continue;
    const int base = number_of(o.mem.base);
    const int index = o.mem.index == ZYDIS_REGISTER_NONE ? -1 : number_of(o.mem.index);
    if (base == 4 && index < 0 && o.mem.disp.value == 0) continue;  // the stack
    if (base < 0 || base == index || base == 4 || in.address_width != 64) return std::nullopt;
    const bool by_bit = in.mnemonic == ZYDIS_MNEMONIC_BT || in.mnemonic == ZYDIS_MNEMONIC_BTS ||
                        in.mnemonic == ZYDIS_MNEMONIC_BTR || in.mnemonic == ZYDIS_MNEMONIC_BTC;
    if (by_bit && operands[1].type == ZYDIS_OPERAND_TYPE_REGISTER) {
      const auto number = static_cast<unsigned>(number_of(operands[1].reg.value));
      if (number == static_cast<unsigned>(base)) return std::nullopt;
      c.before.gpr[number] = random_() % 20000 - 10000;
    }
    std::uint64_t to = middle + random_() % 4096;
    if (random_() % 4 != 0) to &= ~15ULL;
    c.before.gpr[static_cast<unsigned>(base)] =
        to - static_cast<std::uint64_t>(o.mem.disp.value) -
        (index < 0 ? 0 : c.before.gpr[static_cast<unsigned>(index)] * o.mem.scale);
  }
  ZydisFormatter formatter;
  ZydisFormatterInit(&formatter, ZYDIS_FORMATTER_STYLE_INTEL);
  std::array<char, 128> text{};
  ZydisFormatterFormatInstruction(&formatter, &in, operands.data(), in.operand_count_visible, text.data(), text.size(),
                                  0, nullptr);
  c.text = text.data();
  c.undefined = undefined_flags(in, operands, c.before);
  const bool no_bit = in.mnemonic == ZYDIS_MNEMONIC_BSF || in.mnemonic == ZYDIS_MNEMONIC_BSR;
  const int number = no_bit ? number_of(operands[0].reg.value) : -1;
  if (number >= 0) c.undefined_registers = 1U << static_cast<unsigned>(number);
  return c;
}

}  // namespace vpmu::exec::test
