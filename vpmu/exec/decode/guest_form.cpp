#include "exec/decode/guest_form.hpp"

#include <algorithm>

#include "exec/decode/instruction.hpp"
#include "exec/host/host_flags.hpp"
#include "exec/host/host_routine.hpp"
#include "exec/interpret/ops.hpp"
#include "vpmu/x86.hpp"

/// Which instructions are compiled. In doubt, the interpreter runs an instruction.
namespace vpmu::exec {
namespace {

using Kind = GuestForm::Kind;

/// Groups of the first opcodes with an immediate, and of the shifts. SDM 2C appendix A, table A-6.
constexpr std::uint8_t group_add_of_bytes = 0x80, group_add = 0x81, group_test_of_bytes = 0xF6, group_test = 0xF7,
                       move_constant_of_bytes = 0xC6, move_constant = 0xC7, exchange_with_reg = 0x87, group_of_shl = 4;

bool is_high_byte(const ZydisDecodedOperand& o) {
  return o.type == ZYDIS_OPERAND_TYPE_REGISTER && o.reg.value >= ZYDIS_REGISTER_AH && o.reg.value <= ZYDIS_REGISTER_BH;
}

/// Whether it may change which memory can be accessed, or what the processor does: the code after it is not compiled
/// together with it.
bool changes_what_follows(const DecodedInstruction& i) {
  if (i.in.mnemonic == ZYDIS_MNEMONIC_SWAPGS) return false;  // compiled code takes the base from the core
  const auto category = i.in.meta.category;
  if (is_of_the_system(i) || category == ZYDIS_CATEGORY_SMAP || category == ZYDIS_CATEGORY_SEGOP) return true;
  switch (i.in.mnemonic) {
    case ZYDIS_MNEMONIC_CPUID:
    case ZYDIS_MNEMONIC_XGETBV:
    case ZYDIS_MNEMONIC_POPF:
    case ZYDIS_MNEMONIC_POPFQ: return true;
    default: break;
  }
  return std::ranges::any_of(i.operands(), [](const ZydisDecodedOperand& o) {
    if (o.type != ZYDIS_OPERAND_TYPE_REGISTER) return false;
    const ZydisRegisterClass of = ZydisRegisterGetClass(o.reg.value);
    return of == ZYDIS_REGCLASS_SEGMENT || of == ZYDIS_REGCLASS_CONTROL || of == ZYDIS_REGCLASS_DEBUG;
  });
}

FlagUse flag_use(const DecodedInstruction& i) {
  constexpr auto status = static_cast<std::uint32_t>(x86::rflags::status);
  if (i.in.cpu_flags == nullptr) return FlagUse::none;
  const auto& c = *i.in.cpu_flags;
  const std::uint32_t given = (c.modified | c.set_0 | c.set_1 | c.undefined) & status;
  const bool reads = (c.tested & status) != 0;
  if (given == 0) return reads ? FlagUse::reads : FlagUse::none;
  return given == status && !reads ? FlagUse::sets_all : FlagUse::other;
}

class GuestFormer {
 public:
  GuestFormer(const DecodedInstruction& instruction, const Op& op) : i_{instruction}, in_{instruction.in}, op_{op} {}

  GuestForm form() {
    read_encoding();
    // Each prefix that is in the guest's code but not in the translation would have to be without a meaning.
    if (i_.locked() || in_.address_width != 64) return alone();
    if (op_.run == op_switch_stack() || op_.run == op_client_request()) return interpreted();
    // AH, CH, DH and BH have no place in a host register.
    if (std::ranges::any_of(i_.operands().first(in_.operand_count_visible), is_high_byte)) return alone();
    choose();
    f_.stores = f_.stores || (f_.memory && f_.writes_rm);
    return f_;
  }

 private:
  void read_encoding() {
    const auto& raw = in_.raw;
    f_.bytes = static_cast<std::uint8_t>(in_.operand_width / 8);
    f_.prefix_66 = i_.has(ZYDIS_ATTRIB_HAS_OPERANDSIZE);
    f_.wide = raw.rex.W != 0;
    f_.map = in_.opcode_map == ZYDIS_OPCODE_MAP_0F ? 1 : 0;
    f_.opcode = in_.opcode;
    f_.modrm = i_.has(ZYDIS_ATTRIB_HAS_MODRM);
    f_.memory = f_.modrm && raw.modrm.mod != 3;
    f_.reg = static_cast<std::uint8_t>(raw.modrm.reg | (raw.rex.R != 0 ? 8U : 0U));
    f_.rm = static_cast<std::uint8_t>(raw.modrm.rm | (raw.rex.B != 0 ? 8U : 0U));
    f_.immediate_bytes = static_cast<std::uint8_t>(raw.imm[0].size / 8);
    bool names_reg = false;
    for (const ZydisDecodedOperand& o : i_.operands()) {
      const bool writes = (o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
      names_reg = names_reg || o.encoding == ZYDIS_OPERAND_ENCODING_MODRM_REG;
      if (o.encoding == ZYDIS_OPERAND_ENCODING_MODRM_REG) f_.writes_reg = writes;
      if (o.encoding == ZYDIS_OPERAND_ENCODING_MODRM_RM) f_.writes_rm = writes;
    }
    f_.reg_is_opcode = f_.modrm && !names_reg;
  }

  void become(Kind kind) { become(kind, flag_use(i_)); }
  void become(Kind kind, FlagUse flags) {
    f_.kind = kind;
    f_.flags = flags;
  }
  GuestForm interpreted() {
    become(Kind::interpreted, FlagUse::other);
    return f_;
  }
  /// The interpreter runs it; whether compiled code goes on after it.
  GuestForm alone() {
    if ((op_.events & event_branch) != 0 || changes_what_follows(i_)) return interpreted();
    become(Kind::alone, FlagUse::other);
    return f_;
  }
  [[nodiscard]] bool is_16_bits() const { return in_.operand_width == 16; }

  /// The register that the low bits of the opcode name.
  [[nodiscard]] std::uint8_t register_in_opcode() const {
    return static_cast<std::uint8_t>((in_.opcode & 7U) | (in_.raw.rex.B != 0 ? 8U : 0U));
  }
  /// Becomes the form with ModRM of an instruction that names a register without it.
  void with_modrm(std::uint8_t opcode, std::uint8_t reg, bool reg_is_opcode, std::uint8_t rm) {
    f_.opcode = opcode;
    f_.modrm = true;
    f_.reg_is_opcode = reg_is_opcode;
    f_.reg = reg;
    f_.rm = rm;
  }

  void choose() {
    switch (in_.mnemonic) {
      case ZYDIS_MNEMONIC_ADD:
      case ZYDIS_MNEMONIC_OR:
      case ZYDIS_MNEMONIC_ADC:
      case ZYDIS_MNEMONIC_SBB:
      case ZYDIS_MNEMONIC_AND:
      case ZYDIS_MNEMONIC_SUB:
      case ZYDIS_MNEMONIC_XOR:
      case ZYDIS_MNEMONIC_CMP: return arithmetic();
      case ZYDIS_MNEMONIC_TEST: return test();
      case ZYDIS_MNEMONIC_NOT:
      case ZYDIS_MNEMONIC_NEG:
      case ZYDIS_MNEMONIC_INC:
      case ZYDIS_MNEMONIC_DEC:
      case ZYDIS_MNEMONIC_MOVZX:
      case ZYDIS_MNEMONIC_MOVSX:
      case ZYDIS_MNEMONIC_CMC:
      case ZYDIS_MNEMONIC_CLC:
      case ZYDIS_MNEMONIC_STC: return become(Kind::plain);
      case ZYDIS_MNEMONIC_MOVSXD: return is_16_bits() ? void(alone()) : become(Kind::plain);
      case ZYDIS_MNEMONIC_POPCNT: f_.repeat = 0xF3; return become(Kind::plain);
      case ZYDIS_MNEMONIC_MUL: return multiply_wide();
      case ZYDIS_MNEMONIC_IMUL: return i_.visible() == 1 ? multiply_wide() : become(Kind::multiply);
      case ZYDIS_MNEMONIC_SHL:
      case ZYDIS_MNEMONIC_SHR:
      case ZYDIS_MNEMONIC_SAR:
      case ZYDIS_MNEMONIC_ROL:
      case ZYDIS_MNEMONIC_ROR:
      case ZYDIS_MNEMONIC_RCL:
      case ZYDIS_MNEMONIC_RCR: return shift();
      case ZYDIS_MNEMONIC_MOV: return move();
      case ZYDIS_MNEMONIC_XCHG: return exchange();
      case ZYDIS_MNEMONIC_LEA: f_.memory = false; return become(Kind::lea);
      case ZYDIS_MNEMONIC_CBW:
      case ZYDIS_MNEMONIC_CWDE:
      case ZYDIS_MNEMONIC_CDQE: return become(Kind::widen);
      case ZYDIS_MNEMONIC_CWD:
      case ZYDIS_MNEMONIC_CDQ:
      case ZYDIS_MNEMONIC_CQO: return become(Kind::sign);
      case ZYDIS_MNEMONIC_BSWAP:
        f_.reg = register_in_opcode();
        return is_16_bits() ? void(alone()) : become(Kind::swap_bytes);
      case ZYDIS_MNEMONIC_BT:
      case ZYDIS_MNEMONIC_BTS:
      case ZYDIS_MNEMONIC_BTR:
      case ZYDIS_MNEMONIC_BTC: return bit();
      case ZYDIS_MNEMONIC_BSF:
      case ZYDIS_MNEMONIC_BSR:
      case ZYDIS_MNEMONIC_TZCNT:
      case ZYDIS_MNEMONIC_LZCNT: return scan();
      case ZYDIS_MNEMONIC_PUSH: return push();
      case ZYDIS_MNEMONIC_POP:
        f_.reg = register_in_opcode();
        return f_.modrm || is_16_bits() ? void(alone()) : become(Kind::pop);
      case ZYDIS_MNEMONIC_LEAVE: return is_16_bits() ? void(alone()) : become(Kind::leave);
      case ZYDIS_MNEMONIC_RET: return become(Kind::ret);
      case ZYDIS_MNEMONIC_JMP: return become(i_.is_immediate(0) ? Kind::jmp : Kind::jmp_indirect);
      case ZYDIS_MNEMONIC_CALL: return become(i_.is_immediate(0) ? Kind::call : Kind::call_indirect);
      default: return other();
    }
  }

  void arithmetic() {
    become(Kind::plain);
    if (f_.modrm) return;
    with_modrm(f_.bytes == 1 ? group_add_of_bytes : group_add, in_.opcode >> 3U, true, rax);
    f_.writes_rm = in_.mnemonic != ZYDIS_MNEMONIC_CMP;
  }
  void test() {
    become(Kind::plain);
    if (!f_.modrm) with_modrm(f_.bytes == 1 ? group_test_of_bytes : group_test, 0, true, rax);
    if (f_.reg_is_opcode) f_.reg = 0;
  }
  void multiply_wide() { return f_.bytes < 4 ? void(alone()) : become(Kind::multiply_wide, FlagUse::other); }

  void shift() {
    const bool rotates = in_.mnemonic == ZYDIS_MNEMONIC_ROL || in_.mnemonic == ZYDIS_MNEMONIC_ROR;
    const bool through_carry = in_.mnemonic == ZYDIS_MNEMONIC_RCL || in_.mnemonic == ZYDIS_MNEMONIC_RCR;
    const bool narrow = f_.bytes < 4;
    if (in_.mnemonic == ZYDIS_MNEMONIC_SHL) f_.reg = group_of_shl;  // or 6, its other name
    if (i_.is_register(1))
      return narrow || rotates || through_carry ? void(alone()) : become(Kind::shift_cl, FlagUse::other);
    const unsigned count = static_cast<unsigned>(op_.imm) & (f_.bytes == 8 ? 63U : 31U);
    if (count == 0 || (narrow && count >= 8U * f_.bytes)) return void(alone());
    if (through_carry) return count == 1 ? become(Kind::plain, FlagUse::other) : void(alone());
    if (rotates) return narrow ? void(alone()) : become(Kind::rotate, FlagUse::other);
    become(Kind::shift_count, FlagUse::sets_all);
  }

  void move() {
    if (changes_what_follows(i_)) return void(alone());
    become(Kind::plain);
    if (f_.modrm) return;
    if (!i_.is_immediate(1)) return void(alone());  // an address of 64 bits
    f_.reg = register_in_opcode();
    if (f_.bytes >= 4) return become(Kind::constant);
    with_modrm(f_.bytes == 1 ? move_constant_of_bytes : move_constant, 0, true, f_.reg);
    f_.writes_rm = true;
  }
  void exchange() {
    become(Kind::plain);
    if (f_.memory) return void(alone());  // locked
    if (f_.modrm) return;
    with_modrm(exchange_with_reg, rax, false, register_in_opcode());
    f_.writes_reg = f_.writes_rm = true;
  }
  void bit() {
    become(Kind::bit, FlagUse::other);
    if (f_.memory && i_.is_register(1)) alone();  // the bit may be anywhere
  }
  /// A CPU that does not know the prefix ignores it: the op tells.
  void scan() {
    const bool up = in_.opcode == 0xBC;
    become(Kind::scan, FlagUse::sets_all);
    const bool counts = op_.run == op_scan(up ? Scan::tzcnt : Scan::lzcnt, f_.memory, f_.bytes);
    if (counts)
      f_.repeat = 0xF3;
    else if (!host_flags().scan)
      alone();
  }
  void push() {
    if (is_16_bits() || f_.memory || changes_what_follows(i_)) return void(alone());
    if (i_.is_immediate(0)) return become(Kind::push_constant);
    f_.reg = f_.modrm ? f_.rm : register_in_opcode();
    become(Kind::push);
  }

  /// Jcc, CMOVcc and SETcc; what runs in the interpreter's own form; the rest.
  void other() {
    switch (in_.meta.category) {
      case ZYDIS_CATEGORY_COND_BR:
        // Not LOOP and JRCXZ.
        if (f_.map == 1 || (in_.opcode & 0xF0U) == 0x70) return become(Kind::jcc);
        return void(alone());
      case ZYDIS_CATEGORY_CMOV: return become(Kind::plain);
      case ZYDIS_CATEGORY_SETCC: f_.reg_is_opcode = true; return become(Kind::plain);
      default: break;
    }
    if (!become_vector() && !become_hosts()) alone();
  }
  bool become_hosts() {
    const HostRoutine* const routine = routine_of(op_);
    if (routine == nullptr) return false;
    const HostForm& host = routine->form;
    const bool general = host.vex && host.unit == VectorUnit::none;
    if (!general && !can_run_in_place(host)) return false;
    f_.host = &host;
    become(general ? Kind::general : Kind::x87, host.writes_flags || host.reads_flags ? FlagUse::other : FlagUse::none);
    f_.memory = host.bytes != 0;
    f_.stores = host.stores;
    return true;
  }
  bool become_vector() {
    if (op_.run == op_vzero(false)) {
      f_.vector = {.is_avx = true, .zeroes_uppers = true};
    } else {
      const HostRoutine* const routine = routine_of(op_);
      const auto form = routine == nullptr ? std::nullopt : vector_form(routine->form);
      if (!form) return false;
      f_.vector = *form;
    }
    become(Kind::vector, f_.vector.writes_flags ? FlagUse::sets_all : FlagUse::none);
    f_.memory = f_.vector.bytes != 0;
    f_.stores = f_.vector.stores;
    return true;
  }

  const DecodedInstruction& i_;
  const ZydisDecodedInstruction& in_;
  const Op& op_;
  GuestForm f_;
};

/// Whether it is this x87 operation with memory. SDM 2C appendix A, tables.
bool is_memory_form(const Encoding& e, unsigned opcode, unsigned operation) {
  return e.map == 0 && e.opcode == opcode && e.memory && (e.reg & 7U) == operation;
}
bool is_x87(const Encoding& e) { return e.map == 0 && e.opcode >= 0xD8 && e.opcode <= 0xDF; }
/// FLDENV, FRSTOR: they may unmask exceptions, and make some pending.
bool loads_environment(const Encoding& e) { return is_memory_form(e, 0xD9, 4) || is_memory_form(e, 0xDD, 4); }

}  // namespace

bool loads_control_word(const HostForm& h) { return is_memory_form(h.encoding, 0xD9, 5); }
bool is_fnstsw_ax(const HostForm& h) {
  return h.encoding.map == 0 && h.encoding.opcode == 0xDF && h.encoding.modrm() == 0xE0;
}
bool can_run_in_place(const HostForm& h) {
  const Encoding& e = h.encoding;
  if (h.unit != VectorUnit::x87 || h.mmx_and_sse || h.stores_environment || h.control_in_memory) return false;
  if (e.prefix_66 || e.repeat != 0) return false;
  if (is_fnstsw_ax(h)) return true;
  constexpr unsigned wait = 0x9B;
  return h.gpr_count == 0 && (e.map != 0 || e.opcode == wait || (is_x87(e) && !loads_environment(e)));
}

GuestForm guest_form(std::span<const std::byte> code, const Op& op) {
  if (op.run == op_unsupported()) return {};
  if (op.run == op_nop() || is_prefetch(op)) return {.kind = Kind::nothing, .flags = FlagUse::none};
  DecodedInstruction i;
  return read_instruction(code, CodeMode::bits64, i) ? GuestFormer{i, op}.form() : GuestForm{};
}

}  // namespace vpmu::exec
