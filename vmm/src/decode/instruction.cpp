// Includes Zydis, as decode/system_instruction.cpp does; nobody else in the VMM.
#include "decode/instruction.hpp"

#include <Zydis/Zydis.h>
#include <fmt/format.h>
#include <linux/kvm.h>

#include <algorithm>
#include <array>

#include "decode/registers.hpp"
#include "vpmu/bits.hpp"

// Zydis has hundreds of categories and mnemonics; these switches name the few that matter.
#pragma GCC diagnostic ignored "-Wswitch-enum"

namespace vmm {
namespace {

constexpr std::int8_t rip_register = 16;
/// CF, PF, AF, ZF, SF and OF. SDM 1 3.4.3.
constexpr std::uint64_t status_flags = 0x8D5;

ZydisDecoder decoder_for(CodeSize size) {
  ZydisDecoder decoder;
  switch (size) {
    case CodeSize::bits64: ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64); break;
    case CodeSize::bits32: ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LEGACY_32, ZYDIS_STACK_WIDTH_32); break;
    case CodeSize::bits16: ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LEGACY_16, ZYDIS_STACK_WIDTH_16); break;
  }
  return decoder;
}

const ZydisDecoder& decoder(CodeSize size) {
  static const std::array decoders{decoder_for(CodeSize::bits16), decoder_for(CodeSize::bits32),
                                   decoder_for(CodeSize::bits64)};
  return decoders[static_cast<std::size_t>(size)];
}

struct Decoded {
  ZydisDecodedInstruction in;
  std::array<ZydisDecodedOperand, ZYDIS_MAX_OPERAND_COUNT> operands;
};

std::optional<Decoded> decode(std::span<const std::byte> bytes, CodeSize size) {
  std::optional<Decoded> d{std::in_place};
  if (!ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder(size), bytes.data(), bytes.size(), &d->in, d->operands.data())))
    return std::nullopt;
  return d;
}

std::int8_t register_number(ZydisRegister reg) {
  if (reg == ZYDIS_REGISTER_NONE) return -1;
  if (reg == ZYDIS_REGISTER_RIP || reg == ZYDIS_REGISTER_EIP) return rip_register;
  return ZydisRegisterGetId(ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, reg));
}

vpmu::BranchKind branch_kind(const ZydisDecodedInstruction& i, const ZydisDecodedOperand& target) {
  using vpmu::BranchKind;
  if (i.mnemonic == ZYDIS_MNEMONIC_IRET || i.mnemonic == ZYDIS_MNEMONIC_IRETD || i.mnemonic == ZYDIS_MNEMONIC_IRETQ)
    return BranchKind::far;
  const bool far = i.meta.branch_type == ZYDIS_BRANCH_TYPE_FAR;
  const bool relative = target.type == ZYDIS_OPERAND_TYPE_IMMEDIATE;
  switch (i.meta.category) {
    case ZYDIS_CATEGORY_COND_BR: return BranchKind::conditional;
    case ZYDIS_CATEGORY_UNCOND_BR:
      return far ? BranchKind::far : relative ? BranchKind::near_rel_jmp : BranchKind::near_ind_jmp;
    case ZYDIS_CATEGORY_CALL:
      return far ? BranchKind::far : relative ? BranchKind::near_rel_call : BranchKind::near_ind_call;
    case ZYDIS_CATEGORY_RET: return far ? BranchKind::far : BranchKind::near_ret;
    case ZYDIS_CATEGORY_SYSCALL:
    case ZYDIS_CATEGORY_SYSRET:
    case ZYDIS_CATEGORY_INTERRUPT: return BranchKind::far;
    default: return BranchKind::none;
  }
}

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

/// The class of a register operand that the instruction writes; empty for all else.
std::optional<ZydisRegisterClass> written_class(const ZydisDecodedOperand& o) {
  if (o.type != ZYDIS_OPERAND_TYPE_REGISTER || (o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) == 0) return std::nullopt;
  return ZydisRegisterGetClass(o.reg.value);
}

// What single-stepping through KVM would show to the guest, or lose, or not end on the next instruction.
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

/// Whether the operand's address and size fit MemoryOperand: no vector of addresses, no state save area.
bool is_describable(const ZydisDecodedOperand& o) {
  constexpr unsigned most_bits = 64 * 8;
  if (o.type != ZYDIS_OPERAND_TYPE_MEMORY || o.mem.type == ZYDIS_MEMOP_TYPE_AGEN) return true;
  return o.mem.type == ZYDIS_MEMOP_TYPE_MEM && o.size <= most_bits;
}

std::int8_t segment_number(const ZydisDecodedInstruction& i, ZydisRegister segment) {
  const bool is_flat =
      i.machine_mode == ZYDIS_MACHINE_MODE_LONG_64 && segment != ZYDIS_REGISTER_FS && segment != ZYDIS_REGISTER_GS;
  return is_flat ? std::int8_t{-1} : ZydisRegisterGetId(segment);
}

/// The stack that an instruction uses without naming it: an address size prefix does not change that pointer's width.
/// SDM 1 6.2.3.
bool is_implicit_stack(const ZydisDecodedOperand& o) {
  return o.visibility == ZYDIS_OPERAND_VISIBILITY_HIDDEN && o.mem.segment == ZYDIS_REGISTER_SS;
}

MemoryOperand memory_operand(const ZydisDecodedInstruction& i, const ZydisDecodedOperand& o) {
  const unsigned address_bits = is_implicit_stack(o) ? i.stack_width : i.address_width;
  MemoryOperand m{.base = register_number(o.mem.base),
                  .index = o.mem.type == ZYDIS_MEMOP_TYPE_VSIB ? std::int8_t{-1} : register_number(o.mem.index),
                  .scale = o.mem.scale == 0 ? std::uint8_t{1} : o.mem.scale,
                  .segment = segment_number(i, o.mem.segment),
                  .displacement = o.mem.disp.has_displacement ? o.mem.disp.value : 0,
                  .bytes = static_cast<std::uint16_t>(o.size / 8),
                  .address_bytes = static_cast<std::uint8_t>(address_bits / 8),
                  .linear_bytes = static_cast<std::uint8_t>(i.machine_mode == ZYDIS_MACHINE_MODE_LONG_64 ? 8 : 4),
                  .scattered = o.mem.type == ZYDIS_MEMOP_TYPE_VSIB};
  // PUSH and CALL store below the stack pointer that they find.
  const bool implicit_push = o.visibility == ZYDIS_OPERAND_VISIBILITY_HIDDEN && register_number(o.mem.base) == 4 &&
                             (o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
  if (implicit_push) m.displacement -= m.bytes;
  return m;
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

bool flushes_line(const ZydisDecodedInstruction& i) {
  return i.mnemonic == ZYDIS_MNEMONIC_CLFLUSH || i.mnemonic == ZYDIS_MNEMONIC_CLFLUSHOPT;
}

bool touches_memory(const ZydisDecodedInstruction& i, const ZydisDecodedOperand& o) {
  const bool hint = i.meta.category == ZYDIS_CATEGORY_PREFETCH || i.meta.category == ZYDIS_CATEGORY_NOP ||
                    i.meta.category == ZYDIS_CATEGORY_WIDENOP || i.mnemonic == ZYDIS_MNEMONIC_INVLPG;
  return !hint && o.type == ZYDIS_OPERAND_TYPE_MEMORY &&
         (o.mem.type == ZYDIS_MEMOP_TYPE_MEM || o.mem.type == ZYDIS_MEMOP_TYPE_VSIB);
}

VectorOperands vector_operands(std::span<const ZydisDecodedOperand> operands) {
  VectorOperands kind = VectorOperands::none;
  for (const ZydisDecodedOperand& o : operands) {
    const ZydisRegisterClass c =
        o.type == ZYDIS_OPERAND_TYPE_REGISTER ? ZydisRegisterGetClass(o.reg.value) : ZYDIS_REGCLASS_INVALID;
    if (c == ZYDIS_REGCLASS_MMX) return VectorOperands::mmx;
    if (c == ZYDIS_REGCLASS_XMM) kind = VectorOperands::sse;
  }
  return kind;
}

/// What a mnemonic says by its name alone, for the forms of it that exist.
struct MnemonicTraits {
  std::array<vpmu::InstructionClass, 3> kind{};  ///< By VectorOperands.
  std::array<FusionPart, 2> fusion{};            ///< By compares_memory_with_immediate().
};

/// Comparing names with each decoded instruction would cost more than decoding it.
const MnemonicTraits& traits_of(ZydisMnemonic mnemonic) {
  static const auto table = [] {
    std::array<MnemonicTraits, ZYDIS_MNEMONIC_MAX_VALUE + 1> all{};
    for (std::size_t i = 0; i < all.size(); ++i) {
      const char* const text = ZydisMnemonicGetString(static_cast<ZydisMnemonic>(i));
      const std::string_view name = text != nullptr ? text : "";
      for (const VectorOperands v : {VectorOperands::none, VectorOperands::mmx, VectorOperands::sse})
        all[i].kind[static_cast<std::size_t>(v)] = instruction_class(name, v);
      all[i].fusion = {fusion_part(name, false), fusion_part(name, true)};
    }
    return all;
  }();
  return table[static_cast<std::size_t>(mnemonic)];
}

bool compares_memory_with_immediate(std::span<const ZydisDecodedOperand> operands) {
  return operands.size() > 1 && operands[0].type == ZYDIS_OPERAND_TYPE_MEMORY &&
         operands[1].type == ZYDIS_OPERAND_TYPE_IMMEDIATE;
}

std::uint64_t segment_base(const kvm_sregs& s, std::int8_t number) {
  const std::array<std::uint64_t, 6> base{s.es.base, s.cs.base, s.ss.base, s.ds.base, s.fs.base, s.gs.base};
  return number >= 0 && number < 6 ? base[static_cast<std::uint8_t>(number)] : 0;
}

/// `value` cut to `bytes` bytes.
std::uint64_t cut(std::uint64_t value, unsigned bytes) { return value & vpmu::low_bits(bytes * 8); }

std::uint64_t register_value(const kvm_regs& r, std::int8_t number) {
  return number >= 0 && number < 16 ? r.*gpr_fields[static_cast<std::uint8_t>(number)] : 0;
}

}  // namespace

std::optional<Instruction> decode_instruction(std::span<const std::byte> bytes, CodeSize size) {
  const auto decoded = decode(bytes, size);
  if (!decoded) return std::nullopt;
  const ZydisDecodedInstruction& i = decoded->in;
  const auto operands = std::span{decoded->operands}.first(i.operand_count);
  Instruction out{.length = i.length,
                  .steppable = is_steppable(i, operands),
                  .quiet = is_quiet(i, operands),
                  .rep = (i.attributes & (ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE | ZYDIS_ATTRIB_HAS_REPNE)) != 0,
                  .branch = branch_kind(i, decoded->operands[0]),
                  .locked = (i.attributes & ZYDIS_ATTRIB_HAS_LOCK) != 0};
  out.partial = is_partial(i);
  out.ends_block = out.branch != vpmu::BranchKind::none || i.mnemonic == ZYDIS_MNEMONIC_HLT;
  for (const ZydisDecodedOperand& o : operands) {
    out.steppable = out.steppable && is_describable(o);
    if (!touches_memory(i, o)) continue;
    if (flushes_line(i)) {
      out.flushed = memory_operand(i, o);
      out.flushed->bytes = 1;
      continue;
    }
    if ((o.actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0) out.load = memory_operand(i, o);
    if ((o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0) out.store = memory_operand(i, o);
  }
  // VEX and EVEX forms are AVX's; no event here asks for them.
  const bool legacy = i.encoding == ZYDIS_INSTRUCTION_ENCODING_LEGACY;
  const MnemonicTraits& traits = traits_of(i.mnemonic);
  out.kind = traits.kind[static_cast<std::size_t>(legacy ? vector_operands(operands) : VectorOperands::none)];
  out.fusion = traits.fusion[compares_memory_with_immediate(operands) ? 1 : 0];
  // XCHG with memory locks without the prefix. SDM 3A 8.1.2.1.
  out.locked = out.locked || (i.mnemonic == ZYDIS_MNEMONIC_XCHG && out.load);
  return out;
}

std::string_view mnemonic_of(std::span<const std::byte> bytes, CodeSize size) {
  ZydisDecodedInstruction i;
  const ZyanStatus status = ZydisDecoderDecodeInstruction(&decoder(size), nullptr, bytes.data(), bytes.size(), &i);
  return ZydisMnemonicGetString(ZYAN_SUCCESS(status) ? i.mnemonic : ZYDIS_MNEMONIC_INVALID);
}

std::string disassemble(std::span<const std::byte> bytes, CodeSize size) {
  const auto d = decode(bytes, size);
  std::array<char, 128> text{"not an instruction"};
  if (d) {
    ZydisFormatter formatter;
    ZydisFormatterInit(&formatter, ZYDIS_FORMATTER_STYLE_INTEL);
    ZydisFormatterFormatInstruction(&formatter, &d->in, d->operands.data(), d->in.operand_count_visible, text.data(),
                                    text.size(), ZYDIS_RUNTIME_ADDRESS_NONE, nullptr);
  }
  std::string out = fmt::format("{} (", text.data());
  for (const std::byte b : bytes.first(d ? d->in.length : bytes.size()))
    out += fmt::format("{:02x}", std::to_integer<unsigned>(b));
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

// A count of 0 leaves all flags alone, and so does a repetition without an element.
FlagUse flag_use(std::span<const std::byte> bytes, CodeSize size) {
  const auto d = decode(bytes, size);
  if (!d) return {};
  const ZydisAccessedFlags& flags = *d->in.cpu_flags;
  FlagUse use{.asked = flags.tested & status_flags, .undefined = undefined_flags(bytes, size)};
  const bool repeats =
      (d->in.attributes & (ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE | ZYDIS_ATTRIB_HAS_REPNE)) != 0;
  const bool shifts = d->in.meta.category == ZYDIS_CATEGORY_SHIFT || d->in.meta.category == ZYDIS_CATEGORY_ROTATE;
  if (!repeats && !shifts) use.given = (flags.modified | flags.set_0 | flags.set_1) & status_flags & ~use.undefined;
  const bool stores = d->in.mnemonic == ZYDIS_MNEMONIC_PUSHFQ || d->in.mnemonic == ZYDIS_MNEMONIC_PUSHF ||
                      d->in.mnemonic == ZYDIS_MNEMONIC_LAHF;
  if (stores) use.asked = status_flags;
  return use;
}

vpmu::GuestLinear operand_address(const MemoryOperand& m, const Instruction& instruction, vpmu::GuestLinear ip,
                                  const kvm_regs& regs, const kvm_sregs& sregs) {
  auto a = static_cast<std::uint64_t>(m.displacement);
  a += m.base == rip_register ? ip.value() + instruction.length : register_value(regs, m.base);
  a += register_value(regs, m.index) * m.scale;
  return vpmu::GuestLinear{cut(cut(a, m.address_bytes) + segment_base(sregs, m.segment), m.linear_bytes)};
}

// SDM 2B MOV to control registers (0F 22), 2A INVLPG (0F 01 /7 with a memory operand).
bool drops_translations(std::span<const std::byte> instruction) {
  const auto byte = [&](std::size_t i) {
    return i < instruction.size() ? std::to_integer<unsigned>(instruction[i]) : 0U;
  };
  const std::size_t at = (byte(0) & 0xF0U) == 0x40 ? 1 : 0;  // REX
  if (byte(at) != 0x0F) return false;
  const unsigned mod = byte(at + 2) >> 6U;
  const unsigned extension = (byte(at + 2) >> 3U) & 7U;
  return byte(at + 1) == 0x22 || (byte(at + 1) == 0x01 && extension == 7 && mod != 3);
}

bool empties_caches(std::span<const std::byte> instruction) {
  constexpr std::byte two_bytes{0x0F}, invd{0x08}, wbinvd{0x09};
  return instruction.size() >= 2 && instruction[0] == two_bytes && (instruction[1] == invd || instruction[1] == wbinvd);
}

}  // namespace vmm
