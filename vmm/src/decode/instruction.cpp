#include "decode/instruction.hpp"

#include <Zydis/Zydis.h>
#include <fmt/format.h>
#include <linux/kvm.h>

#include <algorithm>
#include <array>

#include "decode/zydis.hpp"
#include "exec/instruction_set.hpp"
#include "vpmu/bits.hpp"

// Zydis has hundreds of categories and mnemonics; these switches name the few that matter.
#pragma GCC diagnostic ignored "-Wswitch-enum"

namespace vmm {
namespace {

/// Whether the instruction works on more of the machine than registers and memory.
bool is_of_the_system(ZydisInstructionCategory category) {
  switch (category) {
    case ZYDIS_CATEGORY_SYSTEM:
    case ZYDIS_CATEGORY_SYSCALL:
    case ZYDIS_CATEGORY_SYSRET:
    case ZYDIS_CATEGORY_INTERRUPT:
    case ZYDIS_CATEGORY_IO:
    case ZYDIS_CATEGORY_IOSTRINGOP:
    case ZYDIS_CATEGORY_VTX: return true;
    default: return false;
  }
}

/// The class of a register operand that the instruction writes; ZYDIS_REGCLASS_INVALID for all else.
ZydisRegisterClass written_class(const ZydisDecodedOperand& o) {
  return (o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0 ? register_class(o) : ZYDIS_REGCLASS_INVALID;
}

// False if a single-step by KVM would be visible to the guest, get lost, or not end at the next instruction.
bool is_steppable(const ZydisDecodedInstruction& i, std::span<const ZydisDecodedOperand> operands) {
  if (is_of_the_system(i.meta.category)) return false;
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
  return std::ranges::none_of(operands,
                              [](const ZydisDecodedOperand& o) { return written_class(o) == ZYDIS_REGCLASS_SEGMENT; });
}

bool is_quiet(const ZydisDecodedInstruction& i, std::span<const ZydisDecodedOperand> operands) {
  if (is_of_the_system(i.meta.category) || i.meta.category == ZYDIS_CATEGORY_WAITPKG) return false;
  switch (i.mnemonic) {
    case ZYDIS_MNEMONIC_RDTSC:
    case ZYDIS_MNEMONIC_RDTSCP:
    case ZYDIS_MNEMONIC_HLT:
    case ZYDIS_MNEMONIC_MWAIT:
    case ZYDIS_MNEMONIC_MWAITX:
    case ZYDIS_MNEMONIC_XSETBV: return false;
    default: break;
  }
  return std::ranges::none_of(operands, [](const ZydisDecodedOperand& o) {
    const auto c = written_class(o);
    return c == ZYDIS_REGCLASS_CONTROL || c == ZYDIS_REGCLASS_DEBUG;
  });
}

/// Masked moves, gathers, XSAVE and its relatives.
bool is_partial(const ZydisDecodedInstruction& i) {
  switch (i.mnemonic) {
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

VectorOperands vector_operands(std::span<const ZydisDecodedOperand> operands) {
  VectorOperands kind = VectorOperands::none;
  for (const ZydisDecodedOperand& o : operands) {
    const ZydisRegisterClass c = register_class(o);
    if (c == ZYDIS_REGCLASS_MMX) return VectorOperands::mmx;
    if (c == ZYDIS_REGCLASS_XMM) kind = VectorOperands::sse;
  }
  return kind;
}

/// What a mnemonic alone determines, for the forms of it that exist.
struct MnemonicTraits {
  std::array<vpmu::InstructionClass, 3> kind{};  ///< By VectorOperands.
  std::array<FusionPart, 2> fusion{};            ///< By compares_memory_with_immediate().
  std::string_view name;
};

/// A table, because comparing names for each instruction would cost more than decoding it.
const MnemonicTraits& traits_of(ZydisMnemonic mnemonic) {
  static const auto table = [] {
    std::array<MnemonicTraits, ZYDIS_MNEMONIC_MAX_VALUE + 1> all{};
    for (std::size_t i = 0; i < all.size(); ++i) {
      const char* const text = ZydisMnemonicGetString(static_cast<ZydisMnemonic>(i));
      const std::string_view name = text != nullptr ? text : "";
      for (const VectorOperands v : {VectorOperands::none, VectorOperands::mmx, VectorOperands::sse})
        all[i].kind[static_cast<std::size_t>(v)] = instruction_class(name, v);
      all[i].fusion = {fusion_part(name, false), fusion_part(name, true)};
      all[i].name = name;
    }
    return all;
  }();
  return table[static_cast<std::size_t>(mnemonic)];
}

bool compares_memory_with_immediate(std::span<const ZydisDecodedOperand> operands) {
  return operands.size() > 1 && operands[0].type == ZYDIS_OPERAND_TYPE_MEMORY &&
         operands[1].type == ZYDIS_OPERAND_TYPE_IMMEDIATE;
}

bool is_never_there(const ZydisDecodedInstruction& i) {
  switch (i.meta.isa_set) {
    case ZYDIS_ISA_SET_CLWB:
    case ZYDIS_ISA_SET_INVPCID:
    case ZYDIS_ISA_SET_MONITOR:
    case ZYDIS_ISA_SET_RDPID:
    case ZYDIS_ISA_SET_RTM:
    case ZYDIS_ISA_SET_SMX:
    case ZYDIS_ISA_SET_VTX: return true;
    default: break;
  }
  return i.encoding == ZYDIS_INSTRUCTION_ENCODING_EVEX || i.encoding == ZYDIS_INSTRUCTION_ENCODING_XOP;
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

std::optional<Decoded> decode(std::span<const std::byte> bytes, CodeMode mode) {
  std::optional<Decoded> d{std::in_place};
  const ZydisDecoder& decoder = vpmu::exec::zydis_decoder(mode);
  if (!ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder, bytes.data(), bytes.size(), &d->in, d->all_operands.data())))
    return std::nullopt;
  return d;
}

}  // namespace

std::optional<Instruction> decode_instruction(std::span<const std::byte> bytes, CodeMode mode) {
  const auto d = decode(bytes, mode);
  if (!d) return std::nullopt;
  const ZydisDecodedInstruction& i = d->in;
  const MnemonicTraits& traits = traits_of(i.mnemonic);
  // VEX and EVEX forms are AVX's; no event here asks for them.
  const bool legacy = i.encoding == ZYDIS_INSTRUCTION_ENCODING_LEGACY;
  const auto vectors = legacy ? vector_operands(d->operands()) : VectorOperands::none;
  Instruction out{
      .length = i.length,
      .mnemonic = traits.name,
      .partial = is_partial(i),
      .quiet = is_quiet(i, d->operands()),
      .rep = d->repeats(),
      .early_end = early_end(i),
      .stores_flags = stores_all_flags(i.mnemonic),
      .privileged = (i.attributes & ZYDIS_ATTRIB_IS_PRIVILEGED) != 0 || i.meta.category == ZYDIS_CATEGORY_IOSTRINGOP,
      .never_there = is_never_there(i),
      .raises = raises(i),
      .branch = vpmu::exec::branch_kind(i, d->all_operands[0]),
      .kind = traits.kind[static_cast<std::size_t>(vectors)],
      .fusion = traits.fusion[compares_memory_with_immediate(d->operands()) ? 1 : 0],
      .flags = flag_use(*d),
      .gather = gather(*d),
      .system = system_instruction(*d)};
  out.ends_block = out.branch != vpmu::BranchKind::none || i.mnemonic == ZYDIS_MNEMONIC_HLT;
  out.steppable = set_operands(*d, out) && is_steppable(i, d->operands());
  // XCHG with memory locks without the prefix. SDM 3A 8.1.2.1.
  out.locked = (i.attributes & ZYDIS_ATTRIB_HAS_LOCK) != 0 || (i.mnemonic == ZYDIS_MNEMONIC_XCHG && out.load);
  return out;
}

std::string_view mnemonic_of(std::span<const std::byte> bytes, CodeMode mode) {
  ZydisDecodedInstruction i;
  const ZyanStatus status =
      ZydisDecoderDecodeInstruction(&vpmu::exec::zydis_decoder(mode), nullptr, bytes.data(), bytes.size(), &i);
  return ZydisMnemonicGetString(ZYAN_SUCCESS(status) ? i.mnemonic : ZYDIS_MNEMONIC_INVALID);
}

std::string disassemble(std::span<const std::byte> bytes, CodeMode mode) {
  const auto d = decode(bytes, mode);
  std::array<char, 128> text{"not an instruction"};
  if (d) {
    ZydisFormatter formatter;
    ZydisFormatterInit(&formatter, ZYDIS_FORMATTER_STYLE_INTEL);
    ZydisFormatterFormatInstruction(&formatter, &d->in, d->all_operands.data(), d->in.operand_count_visible,
                                    text.data(), text.size(), ZYDIS_RUNTIME_ADDRESS_NONE, nullptr);
  }
  std::string out = fmt::format("{} (", text.data());
  for (const std::byte b : bytes.first(d ? d->in.length : bytes.size()))
    out += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return out + ")";
}

CodeMode code_mode(const kvm_sregs& sregs) {
  constexpr std::uint64_t efer_lma = vpmu::bit(10);
  if ((sregs.efer & efer_lma) != 0 && sregs.cs.l != 0) return CodeMode::bits64;
  return sregs.cs.db != 0 ? CodeMode::bits32 : CodeMode::bits16;
}

vpmu::GuestLinear instruction_pointer(const kvm_regs& regs, const kvm_sregs& sregs) {
  return vpmu::GuestLinear{regs.rip + (code_mode(sregs) == CodeMode::bits64 ? 0 : sregs.cs.base)};
}

}  // namespace vmm
