#include "decode/instruction.hpp"

#include <fmt/format.h>
#include <linux/kvm.h>

#include <algorithm>
#include <array>

#include "decode/zydis.hpp"
#include "support/x86.hpp"

// Zydis has hundreds of categories and mnemonics; these switches name the few that matter.
#pragma GCC diagnostic ignored "-Wswitch-enum"

namespace vmm {
namespace {

/// The class of a register operand that the instruction writes; ZYDIS_REGCLASS_INVALID for all else.
ZydisRegisterClass written_class(const ZydisDecodedOperand& o) {
  return (o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0 ? register_class(o) : ZYDIS_REGCLASS_INVALID;
}

// False if a single-step by KVM would be visible to the guest, get lost, or not end at the next instruction.
bool is_steppable(const Decoded& d) {
  if (vpmu::exec::is_of_the_system(d)) return false;
  const ZydisDecodedInstruction& i = d.in;
  switch (i.mnemonic) {
    case ZYDIS_MNEMONIC_PUSHF:
    case ZYDIS_MNEMONIC_PUSHFD:
    case ZYDIS_MNEMONIC_PUSHFQ:
    case ZYDIS_MNEMONIC_POPF:
    case ZYDIS_MNEMONIC_POPFD:
    case ZYDIS_MNEMONIC_POPFQ:
    case ZYDIS_MNEMONIC_IRET:
    case ZYDIS_MNEMONIC_IRETD:
    case ZYDIS_MNEMONIC_IRETQ:
    case ZYDIS_MNEMONIC_STI:
    case ZYDIS_MNEMONIC_HLT:
    case ZYDIS_MNEMONIC_CPUID:
    case ZYDIS_MNEMONIC_UD0:
    case ZYDIS_MNEMONIC_UD1:
    case ZYDIS_MNEMONIC_UD2: return false;
    default: break;
  }
  // A load of a segment register may fault in many ways, and SS blocks the debug trap.
  return std::ranges::none_of(d.operands(),
                              [](const ZydisDecodedOperand& o) { return written_class(o) == ZYDIS_REGCLASS_SEGMENT; });
}

bool is_quiet(const Decoded& d) {
  const ZydisDecodedInstruction& i = d.in;
  if (vpmu::exec::is_of_the_system(d) || i.meta.category == ZYDIS_CATEGORY_WAITPKG) return false;
  switch (i.mnemonic) {
    case ZYDIS_MNEMONIC_RDTSC:
    case ZYDIS_MNEMONIC_RDTSCP:
    case ZYDIS_MNEMONIC_HLT:
    case ZYDIS_MNEMONIC_MWAIT:
    case ZYDIS_MNEMONIC_MWAITX:
    case ZYDIS_MNEMONIC_XSETBV: return false;
    default: break;
  }
  return std::ranges::none_of(d.operands(), [](const ZydisDecodedOperand& o) {
    const auto c = written_class(o);
    return c == ZYDIS_REGCLASS_CONTROL || c == ZYDIS_REGCLASS_DEBUG;
  });
}

/// Masked moves, gathers, XSAVE and its relatives.
bool is_partial(const ZydisDecodedInstruction& i) {
  switch (i.mnemonic) {
    case ZYDIS_MNEMONIC_MASKMOVQ:
    case ZYDIS_MNEMONIC_MASKMOVDQU:
    case ZYDIS_MNEMONIC_VMASKMOVDQU:
    case ZYDIS_MNEMONIC_VMASKMOVPS:
    case ZYDIS_MNEMONIC_VMASKMOVPD:
    case ZYDIS_MNEMONIC_VPMASKMOVD:
    case ZYDIS_MNEMONIC_VPMASKMOVQ: return true;
    default: break;
  }
  switch (i.meta.isa_set) {
    case ZYDIS_ISA_SET_AVX2GATHER:
    case ZYDIS_ISA_SET_XSAVE:
    case ZYDIS_ISA_SET_XSAVEC:
    case ZYDIS_ISA_SET_XSAVEOPT:
    case ZYDIS_ISA_SET_XSAVES: return true;
    default: return false;
  }
}

std::string_view name_of(ZydisMnemonic mnemonic) {
  const ZydisShortString* const name = ZydisMnemonicGetStringWrapped(mnemonic);
  return name != nullptr ? std::string_view{name->data, name->size} : std::string_view{};
}

/// Whether every processor that there is a model of has the instruction. SDM 1 5.1.
bool is_everywhere(const Decoded& d) {
  switch (d.in.meta.isa_set) {
    case ZYDIS_ISA_SET_I86:
    case ZYDIS_ISA_SET_I186:
    case ZYDIS_ISA_SET_I286REAL:
    case ZYDIS_ISA_SET_I286PROTECTED:
    case ZYDIS_ISA_SET_I386:
    case ZYDIS_ISA_SET_I486:
    case ZYDIS_ISA_SET_I486REAL:
    case ZYDIS_ISA_SET_PENTIUMREAL:
    case ZYDIS_ISA_SET_PPRO:
    case ZYDIS_ISA_SET_LONGMODE:
    case ZYDIS_ISA_SET_LAHF:
    case ZYDIS_ISA_SET_CMOV:
    case ZYDIS_ISA_SET_CMPXCHG16B:
    case ZYDIS_ISA_SET_CLFSH:
    case ZYDIS_ISA_SET_FAT_NOP:
    case ZYDIS_ISA_SET_PAUSE:
    case ZYDIS_ISA_SET_PREFETCH_NOP:
    case ZYDIS_ISA_SET_SSE_PREFETCH:
    case ZYDIS_ISA_SET_SSEMXCSR:
    case ZYDIS_ISA_SET_POPCNT:
    case ZYDIS_ISA_SET_RDPMC: return true;
    case ZYDIS_ISA_SET_LZCNT: return true;  // else it is BSR
    default: return vpmu::exec::is_reserved_nop(d);
  }
}

bool is_never_there(const Decoded& d) {
  const auto encoding = d.in.encoding;
  if (encoding != ZYDIS_INSTRUCTION_ENCODING_LEGACY && encoding != ZYDIS_INSTRUCTION_ENCODING_VEX) return true;
  return !is_everywhere(d) && !vpmu::exec::feature_needed(d);
}

EarlyEnd early_end(const ZydisDecodedInstruction& i) {
  const bool compares = i.meta.category == ZYDIS_CATEGORY_STRINGOP && (i.opcode & 0xF6U) == 0xA6;
  if (!compares) return EarlyEnd::nothing;
  if ((i.attributes & ZYDIS_ATTRIB_HAS_REPNE) != 0) return EarlyEnd::equality;
  return (i.attributes & ZYDIS_ATTRIB_HAS_REPE) != 0 ? EarlyEnd::difference : EarlyEnd::nothing;
}

bool stores_all_flags(ZydisMnemonic m) {
  return m == ZYDIS_MNEMONIC_PUSHF || m == ZYDIS_MNEMONIC_PUSHFD || m == ZYDIS_MNEMONIC_PUSHFQ;
}

Raises raises(const ZydisDecodedInstruction& i) {
  if (i.mnemonic == ZYDIS_MNEMONIC_DIV || i.mnemonic == ZYDIS_MNEMONIC_IDIV) return Raises::division;
  const bool plain = i.encoding == ZYDIS_INSTRUCTION_ENCODING_LEGACY && i.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT;
  if (!plain || (i.attributes & ZYDIS_ATTRIB_HAS_LOCK) != 0) return Raises::others;
  if (i.opcode == 0x9B || (i.opcode & 0xF8U) == 0xD8) return Raises::x87;
  // MOV to a segment register, and opcodes that are invalid with some ModRM bytes.
  return i.opcode == 0x8E || i.opcode == 0xF6 || i.opcode == 0xF7 ? Raises::others : Raises::nothing;
}

}  // namespace

std::optional<Instruction> decode_instruction(std::span<const std::byte> bytes, CodeMode mode) {
  Decoded d;
  if (!vpmu::exec::read_instruction(bytes, mode, d)) return std::nullopt;
  const ZydisDecodedInstruction& i = d.in;
  Instruction out{.length = i.length,
                  .mnemonic = name_of(i.mnemonic),
                  .partial = is_partial(i),
                  .quiet = is_quiet(d),
                  .rep = d.repeats(),
                  .early_end = early_end(i),
                  .stores_flags = stores_all_flags(i.mnemonic),
                  .privileged = (i.attributes & ZYDIS_ATTRIB_IS_PRIVILEGED) != 0,
                  .never_there = is_never_there(d),
                  .raises = raises(i),
                  .branch = vpmu::exec::branch_kind(d),
                  .kind = vpmu::exec::instruction_class(d),
                  .fusion = vpmu::exec::fusion_part(d),
                  .flags = flag_use(d),
                  .accesses = access_counts(d),
                  .gather = gather(d),
                  .system = system_instruction(d)};
  out.ends_block = out.branch != vpmu::BranchKind::none || i.mnemonic == ZYDIS_MNEMONIC_HLT;
  out.steppable = set_operands(d, out) && is_steppable(d);
  // XCHG with memory locks without the prefix. SDM 3A 8.1.2.1.
  out.locked = d.locked() || (i.mnemonic == ZYDIS_MNEMONIC_XCHG && out.load);
  return out;
}

std::string_view mnemonic_of(std::span<const std::byte> bytes, CodeMode mode) {
  Decoded d;
  const bool read = vpmu::exec::read_instruction(bytes, mode, d);
  return ZydisMnemonicGetString(read ? d.in.mnemonic : ZYDIS_MNEMONIC_INVALID);
}

std::string disassemble(std::span<const std::byte> bytes, CodeMode mode) {
  Decoded d;
  const bool read = vpmu::exec::read_instruction(bytes, mode, d);
  std::array<char, 128> text{"not an instruction"};
  if (read) {
    ZydisFormatter formatter;
    ZydisFormatterInit(&formatter, ZYDIS_FORMATTER_STYLE_INTEL);
    ZydisFormatterFormatInstruction(&formatter, &d.in, d.all_operands.data(), d.in.operand_count_visible, text.data(),
                                    text.size(), ZYDIS_RUNTIME_ADDRESS_NONE, nullptr);
  }
  std::string out = fmt::format("{} (", text.data());
  for (const std::byte b : bytes.first(read ? d.in.length : bytes.size()))
    out += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return out + ")";
}

CodeMode code_mode(const kvm_sregs& sregs) {
  if (x86::efer::LMA::test(sregs.efer) && sregs.cs.l != 0) return CodeMode::bits64;
  return sregs.cs.db != 0 ? CodeMode::bits32 : CodeMode::bits16;
}

vpmu::GuestLinear instruction_pointer(const kvm_regs& regs, const kvm_sregs& sregs) {
  return vpmu::GuestLinear{regs.rip + (code_mode(sregs) == CodeMode::bits64 ? 0 : sregs.cs.base)};
}

}  // namespace vmm
