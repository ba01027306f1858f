#include <algorithm>
#include <string_view>

#include "exec/decode/instruction.hpp"
#include "exec/host/code_writer.hpp"
#include "exec/state/flags.hpp"
#include "vpmu/x86.hpp"

/// Which instructions run as the host's own, and how they are encoded for that.
namespace vpmu::exec {
namespace {

constexpr std::uint8_t for_reg = HostForm::for_reg, for_rm = HostForm::for_rm, for_vvvv = HostForm::for_vvvv;
constexpr unsigned memory_base = 6;  // RSI

/// Members of the sets on the list that do not run like this.
bool is_left_out(ZydisMnemonic mnemonic) {
  switch (mnemonic) {
    case ZYDIS_MNEMONIC_MASKMOVQ:  // which bytes they touch depends on data
    case ZYDIS_MNEMONIC_MASKMOVDQU:
    case ZYDIS_MNEMONIC_VMASKMOVDQU:
    case ZYDIS_MNEMONIC_VMASKMOVPS:
    case ZYDIS_MNEMONIC_VMASKMOVPD:
    case ZYDIS_MNEMONIC_VPMASKMOVD:
    case ZYDIS_MNEMONIC_VPMASKMOVQ:
    case ZYDIS_MNEMONIC_LDMXCSR:  // ops of their own
    case ZYDIS_MNEMONIC_VLDMXCSR:
    case ZYDIS_MNEMONIC_STMXCSR:
    case ZYDIS_MNEMONIC_VSTMXCSR:
    case ZYDIS_MNEMONIC_VZEROUPPER:
    case ZYDIS_MNEMONIC_VZEROALL:
    case ZYDIS_MNEMONIC_MOVNTI:
    case ZYDIS_MNEMONIC_LFENCE:
    case ZYDIS_MNEMONIC_MFENCE:
    case ZYDIS_MNEMONIC_SFENCE: return true;
    default: return false;
  }
}

bool is_fxsave_or_fxrstor(const ZydisDecodedInstruction& in) {
  return in.meta.isa_set == ZYDIS_ISA_SET_FXSAVE || in.meta.isa_set == ZYDIS_ISA_SET_FXSAVE64;
}

/// Whether its result, or whether it faults, may depend on MXCSR. In doubt it does, even if it has only MMX registers.
bool may_use_mxcsr(const ZydisDecodedInstruction& in) {
  if (in.meta.isa_ext == ZYDIS_ISA_EXT_X87 || is_fxsave_or_fxrstor(in)) return false;
  switch (in.meta.category) {
    case ZYDIS_CATEGORY_DATAXFER:
    case ZYDIS_CATEGORY_LOGICAL:
    case ZYDIS_CATEGORY_LOGICAL_FP:
    case ZYDIS_CATEGORY_AES:
    case ZYDIS_CATEGORY_VAES:
    case ZYDIS_CATEGORY_PCLMULQDQ:
    case ZYDIS_CATEGORY_VPCLMULQDQ:
    case ZYDIS_CATEGORY_STTNI:
    case ZYDIS_CATEGORY_BROADCAST:
    case ZYDIS_CATEGORY_MMX:
    case ZYDIS_CATEGORY_X87_ALU:
    case ZYDIS_CATEGORY_FCMOV: return false;
    default: break;
  }
  // Packed integers, and what only moves parts about.
  std::string_view name = ZydisMnemonicGetString(in.mnemonic);
  if (name.starts_with('v')) name.remove_prefix(1);
  if (name.starts_with('p')) return false;
  constexpr std::array<std::string_view, 7> movers{"unpck", "shufp", "blend", "insert", "extract", "lddqu", "mpsadbw"};
  return std::ranges::none_of(movers, [&](std::string_view mover) { return name.starts_with(mover); });
}

/// Whether it looks for pending exceptions: not the FN forms, nor FXSAVE and FXRSTOR, nor what older units had and now
/// does nothing.
bool waits(ZydisMnemonic mnemonic) {
  switch (mnemonic) {
    case ZYDIS_MNEMONIC_FNINIT:
    case ZYDIS_MNEMONIC_FNCLEX:
    case ZYDIS_MNEMONIC_FNSTCW:
    case ZYDIS_MNEMONIC_FNSTSW:
    case ZYDIS_MNEMONIC_FNSTENV:
    case ZYDIS_MNEMONIC_FNSAVE:
    case ZYDIS_MNEMONIC_FENI8087_NOP:
    case ZYDIS_MNEMONIC_FDISI8087_NOP:
    case ZYDIS_MNEMONIC_FSETPM287_NOP:
    case ZYDIS_MNEMONIC_FXSAVE:
    case ZYDIS_MNEMONIC_FXSAVE64:
    case ZYDIS_MNEMONIC_FXRSTOR:
    case ZYDIS_MNEMONIC_FXRSTOR64: return false;
    default: return true;
  }
}

/// SDM 2A 2.4, tables 2-15 to 2-21: who needs the operand aligned. VEX: only those with "aligned" in their name.
std::uint16_t alignment_of(const ZydisDecodedInstruction& in, std::uint16_t bytes) {
  constexpr std::uint16_t vector = 16;
  switch (in.mnemonic) {
    case ZYDIS_MNEMONIC_VMOVAPS:
    case ZYDIS_MNEMONIC_VMOVAPD:
    case ZYDIS_MNEMONIC_VMOVDQA:
    case ZYDIS_MNEMONIC_VMOVNTPS:
    case ZYDIS_MNEMONIC_VMOVNTPD:
    case ZYDIS_MNEMONIC_VMOVNTDQ:
    case ZYDIS_MNEMONIC_VMOVNTDQA: return bytes;
    case ZYDIS_MNEMONIC_FXSAVE:
    case ZYDIS_MNEMONIC_FXSAVE64:
    case ZYDIS_MNEMONIC_FXRSTOR:
    case ZYDIS_MNEMONIC_FXRSTOR64: return vector;
    case ZYDIS_MNEMONIC_MOVUPS:
    case ZYDIS_MNEMONIC_MOVUPD:
    case ZYDIS_MNEMONIC_MOVDQU:
    case ZYDIS_MNEMONIC_LDDQU:
    case ZYDIS_MNEMONIC_PCMPESTRI:
    case ZYDIS_MNEMONIC_PCMPESTRM:
    case ZYDIS_MNEMONIC_PCMPISTRI:
    case ZYDIS_MNEMONIC_PCMPISTRM: return 1;
    default: return in.encoding == ZYDIS_INSTRUCTION_ENCODING_LEGACY && bytes == vector ? vector : std::uint16_t{1};
  }
}

class HostFormer {
 public:
  explicit HostFormer(const DecodedInstruction& decoded) : in_{decoded.in}, decoded_{decoded} {}

  std::optional<HostForm> form(CpuFeature feature) {
    f_.feature = feature;
    f_.vex = in_.encoding == ZYDIS_INSTRUCTION_ENCODING_VEX;
    read_encoding();
    for (const ZydisDecodedOperand& operand : decoded_.operands())
      if (!add_operand(operand)) return std::nullopt;
    set_unit();
    set_flags();
    f_.waits = waits(in_.mnemonic);
    f_.makes_halves = in_.mnemonic == ZYDIS_MNEMONIC_VCVTPS2PH;
    f_.stores_environment = in_.mnemonic == ZYDIS_MNEMONIC_FNSTENV || in_.mnemonic == ZYDIS_MNEMONIC_FNSAVE;
    f_.control_in_memory = in_.mnemonic == ZYDIS_MNEMONIC_FXRSTOR || in_.mnemonic == ZYDIS_MNEMONIC_FXRSTOR64;
    f_.alignment = f_.bytes == 0 ? std::uint16_t{1} : alignment_of(in_, f_.bytes);
    encode();
    if (!out_.is_whole()) return std::nullopt;
    f_.length = static_cast<std::uint8_t>(out_.size());
    return f_;
  }

 private:
  /// The raw fields of REX and VEX; those of VEX are inverted. An instruction may repeat prefixes until it has 15
  /// bytes: what counts is whether there is a 66, and the last one of F2 and F3.
  void read_encoding() {
    const auto& raw = in_.raw;
    const bool r = f_.vex ? raw.vex.R == 0 : raw.rex.R != 0;
    const bool b = f_.vex ? raw.vex.B == 0 : raw.rex.B != 0;
    e_.reg = static_cast<std::uint8_t>(raw.modrm.reg | (r ? 8U : 0U));
    e_.rm = static_cast<std::uint8_t>(raw.modrm.rm | (b ? 8U : 0U));
    e_.w = f_.vex ? raw.vex.W != 0 : raw.rex.W != 0;
    e_.vex = f_.vex;
    if (f_.vex) {
      e_.l = raw.vex.L != 0;
      e_.vvvv = static_cast<std::uint8_t>(~raw.vex.vvvv & 0xFU);
      constexpr std::array<std::uint8_t, 4> repeats{0, 0, 0xF3, 0xF2};
      e_.prefix_66 = raw.vex.pp == 1;
      e_.repeat = repeats[raw.vex.pp & 3U];
    } else {
      for (const auto& prefix : std::span{raw.prefixes}.first(raw.prefix_count)) {
        e_.prefix_66 = e_.prefix_66 || prefix.value == 0x66;
        if (prefix.value == 0xF2 || prefix.value == 0xF3) e_.repeat = prefix.value;
      }
    }
    e_.map = map();
    e_.opcode = in_.opcode;
    e_.has_modrm = decoded_.has(ZYDIS_ATTRIB_HAS_MODRM);
    if (raw.imm[0].size == 8) e_.immediate = static_cast<std::uint8_t>(raw.imm[0].value.u);
    is_encodable_ = raw.imm[0].size <= 8 && raw.imm[1].size == 0;
  }

  bool add_operand(const ZydisDecodedOperand& o) {
    if (o.type == ZYDIS_OPERAND_TYPE_MEMORY) return add_memory(o);
    if (o.type != ZYDIS_OPERAND_TYPE_REGISTER) return true;
    const bool written = (o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
    switch (ZydisRegisterGetClass(o.reg.value)) {
      case ZYDIS_REGCLASS_XMM:
      case ZYDIS_REGCLASS_YMM: {
        const auto bit = static_cast<std::uint16_t>(1U << static_cast<unsigned>(ZydisRegisterGetId(o.reg.value) & 0xF));
        f_.vectors |= bit;
        if (!f_.vex || (o.actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0) f_.vectors_read |= bit;
        if (written) f_.vectors_written |= bit;
        return true;
      }
      case ZYDIS_REGCLASS_MMX:
      case ZYDIS_REGCLASS_X87: x87_ = true; return true;
      case ZYDIS_REGCLASS_GPR8:
      case ZYDIS_REGCLASS_GPR16:
      case ZYDIS_REGCLASS_GPR32:
      case ZYDIS_REGCLASS_GPR64: return add_gpr(o, written);
      case ZYDIS_REGCLASS_FLAGS:
      case ZYDIS_REGCLASS_INVALID: return true;  // RFLAGS are in cpu_flags; the x87 words belong to their unit
      default:
        return o.reg.value == ZYDIS_REGISTER_MXCSR || o.reg.value == ZYDIS_REGISTER_X87CONTROL ||
               o.reg.value == ZYDIS_REGISTER_X87STATUS || o.reg.value == ZYDIS_REGISTER_X87TAG;
    }
  }

  bool add_gpr(const ZydisDecodedOperand& o, bool written) {
    if (o.reg.value >= ZYDIS_REGISTER_AH && o.reg.value <= ZYDIS_REGISTER_BH) return false;
    const ZydisRegister whole = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, o.reg.value);
    HostGpr gpr{.guest = static_cast<std::uint8_t>(whole - ZYDIS_REGISTER_RAX), .scratch = 0, .written = written};
    switch (o.encoding) {
      case ZYDIS_OPERAND_ENCODING_MODRM_REG: gpr.scratch = e_.reg = for_reg; break;
      case ZYDIS_OPERAND_ENCODING_MODRM_RM: gpr.scratch = e_.rm = for_rm; break;
      case ZYDIS_OPERAND_ENCODING_NDSNDD: gpr.scratch = e_.vvvv = for_vvvv; break;
      default:
        constexpr std::uint8_t last_implicit = 2;  // RAX, RCX, RDX
        if (o.visibility == ZYDIS_OPERAND_VISIBILITY_EXPLICIT || gpr.guest > last_implicit) return false;
        gpr.scratch = gpr.guest;
        break;
    }
    if (f_.gpr_count == f_.gprs.size()) return false;
    f_.gprs[f_.gpr_count++] = gpr;
    return true;
  }

  bool add_memory(const ZydisDecodedOperand& o) {
    constexpr unsigned max = 512;
    const bool fits = o.mem.type == ZYDIS_MEMOP_TYPE_MEM && o.encoding == ZYDIS_OPERAND_ENCODING_MODRM_RM &&
                      o.size / 8 <= max && f_.bytes == 0;
    f_.bytes = static_cast<std::uint16_t>(o.size / 8);
    f_.stores = (o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
    const bool loads = (o.actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0;
    return fits && f_.bytes != 0 && loads != f_.stores;
  }

  /// Whether it works on general registers alone. To look for vector registers is not enough: CVTSD2SI r, m has none.
  [[nodiscard]] bool is_general() const {
    return f_.feature == CpuFeature::bmi1 || f_.feature == CpuFeature::bmi2 || f_.feature == CpuFeature::adx ||
           f_.feature == CpuFeature::movbe || in_.mnemonic == ZYDIS_MNEMONIC_CRC32;
  }

  void set_unit() {
    const bool fxsr = is_fxsave_or_fxrstor(in_);
    x87_ = x87_ || in_.meta.isa_ext == ZYDIS_ISA_EXT_X87 || in_.meta.isa_ext == ZYDIS_ISA_EXT_MMX ||
           in_.meta.category == ZYDIS_CATEGORY_X87_ALU || fxsr;
    f_.unit = x87_ ? VectorUnit::x87 : is_general() ? VectorUnit::none : f_.vex ? VectorUnit::avx : VectorUnit::sse;
    f_.uses_mxcsr = f_.unit != VectorUnit::none && may_use_mxcsr(in_);
    f_.mmx_and_sse = x87_ && (f_.vectors != 0 || fxsr || f_.uses_mxcsr);
  }

  void set_flags() {
    if (in_.cpu_flags == nullptr) return;
    const auto& c = *in_.cpu_flags;
    constexpr auto status = static_cast<std::uint32_t>(x86::rflags::status);
    const std::uint32_t determined = (c.modified | c.set_0 | c.set_1) & status;
    f_.writes_flags = ((determined | c.undefined) & status) != 0;
    // Flags that it leaves alone come out as they went in; those that no manual defines, as on this CPU.
    f_.reads_flags = (c.tested & status) != 0 || (f_.writes_flags && determined != status);
  }

  // SDM 2A 2.1, 2.2, 2.3: prefixes without segment and address size; REX or VEX; opcode; ModRM without SIB and
  // displacement; the immediate. REX is needed for its bits alone: the only 8-bit registers that are named are scratch
  // registers, R8 and up.
  void encode() {
    e_.memory = f_.bytes != 0;
    if (e_.memory) e_.rm = memory_base;
    f_.encoding = e_;
    const bool r = e_.reg >= 8;
    const bool b = e_.rm >= 8;
    if (!is_encodable_) out_.spoil();
    if (e_.vex) {
      out_.bytes({0xC4, (r ? 0U : 0x80U) | 0x40U | (b ? 0U : 0x20U) | e_.map,
                  (e_.w ? 0x80U : 0U) | (~unsigned{e_.vvvv} & 0xFU) << 3U | (e_.l ? 4U : 0U) | e_.pp()});
    } else {
      if (e_.prefix_66) out_.byte(0x66);
      if (e_.repeat != 0) out_.byte(e_.repeat);
      const unsigned rex = (e_.w ? 8U : 0U) | (r ? 4U : 0U) | (b ? 1U : 0U);
      if (rex != 0) out_.byte(0x40U | rex);
      if (e_.map != 0) out_.byte(0x0F);
      if (e_.map == 2) out_.byte(0x38);
      if (e_.map == 3) out_.byte(0x3A);
    }
    out_.byte(e_.opcode);
    if (e_.has_modrm) out_.byte(e_.modrm());
    if (e_.immediate) out_.byte(*e_.immediate);
  }

  [[nodiscard]] std::uint8_t map() const {
    switch (in_.opcode_map) {
      case ZYDIS_OPCODE_MAP_0F: return 1;
      case ZYDIS_OPCODE_MAP_0F38: return 2;
      case ZYDIS_OPCODE_MAP_0F3A: return 3;
      default: return 0;
    }
  }

  const ZydisDecodedInstruction& in_;
  const DecodedInstruction& decoded_;
  HostForm f_;
  Encoding e_;
  CodeWriter out_{f_.code};
  bool is_encodable_{};
  bool x87_{};
};

}  // namespace

std::optional<HostForm> host_form(const DecodedInstruction& i) {
  const ZydisDecodedInstruction& in = i.in;
  const bool encoded =
      in.encoding == ZYDIS_INSTRUCTION_ENCODING_LEGACY || in.encoding == ZYDIS_INSTRUCTION_ENCODING_VEX;
  const auto feature = host_feature(i);
  if (!encoded || !feature || is_left_out(in.mnemonic) || in.meta.category == ZYDIS_CATEGORY_PREFETCH)
    return std::nullopt;
  if (i.has(ZYDIS_ATTRIB_IS_PRIVILEGED) || in.meta.branch_type != ZYDIS_BRANCH_TYPE_NONE) return std::nullopt;
  return HostFormer{i}.form(*feature);
}

std::optional<HostForm> host_form(std::span<const std::byte> code, CodeMode mode) {
  DecodedInstruction i;
  return read_instruction(code, mode, i) ? host_form(i) : std::nullopt;
}

}  // namespace vpmu::exec
