// Long because it is one table: the opcodes.
#include "exec/guest_form.hpp"

#include "exec/host_routine.hpp"
#include "exec/ops.hpp"

/// Which instructions are compiled, by their opcodes. SDM 2C appendix A. In doubt, the interpreter runs an instruction.
namespace vpmu::exec {
namespace {

using Kind = GuestForm::Kind;

constexpr std::uint8_t ah = 4, bh = 7;
constexpr unsigned group_cmp = 7;

class Reader {
 public:
  Reader(std::span<const std::byte> code, const Op& op) : code_{code}, op_{op} {}

  GuestForm read() {
    f_.kind = Kind::interpreted;
    if (op_.run == op_unsupported()) return f_;
    if (op_.run == op_nop()) return nothing();
    if (!read_prefixes()) return f_;
    f_.bytes = f_.wide ? 8 : f_.prefix_66 ? 2 : 4;
    if (next_ == 0x0F) {
      f_.map = 1;
      f_.opcode = static_cast<std::uint8_t>(take());
      two_bytes();
    } else {
      f_.opcode = static_cast<std::uint8_t>(next_);
      one_byte();
    }
    f_.reg_is_opcode = f_.reg_is_opcode && f_.modrm;
    return f_;
  }

 private:
  unsigned take() { return at_ < code_.size() ? std::to_integer<unsigned>(code_[at_++]) : 0; }
  GuestForm nothing() {
    f_.kind = Kind::nothing;
    f_.flags = FlagUse::none;
    return f_;
  }
  void become(Kind kind, FlagUse flags) {
    f_.kind = kind;
    f_.flags = flags;
  }
  /// Never a branch: the code does not go on after it.
  void alone() { become((op_.events & event_branch) != 0 ? Kind::interpreted : Kind::alone, FlagUse::other); }

  /// Each at most once, LOCK and address size not at all, REX last. False: another kind was found.
  bool read_prefixes() {
    for (next_ = take();; next_ = take()) {
      if (next_ == 0x66 && !f_.prefix_66)
        f_.prefix_66 = true;
      else if ((next_ == 0xF2 || next_ == 0xF3) && f_.repeat == 0)
        f_.repeat = static_cast<std::uint8_t>(next_);
      else if (next_ == 0x26 || next_ == 0x2E || next_ == 0x36 || next_ == 0x3E || next_ == 0x64 || next_ == 0x65)
        continue;
      else
        break;
    }
    if (next_ == 0xF0 || next_ == 0x67 || next_ == 0xF2 || next_ == 0xF3 || next_ == 0x66) {
      alone();
      return false;
    }
    if (next_ >> 4 == 4) {
      rex_ = next_;
      f_.wide = (rex_ & 8) != 0;
      next_ = take();
    }
    return true;
  }

  void read_modrm() {
    const unsigned modrm = take();
    f_.modrm = true;
    f_.memory = modrm >> 6 != 3;
    f_.reg = static_cast<std::uint8_t>((modrm >> 3 & 7) | ((rex_ & 4) != 0 ? 8 : 0));
    f_.rm = static_cast<std::uint8_t>((modrm & 7) | ((rex_ & 1) != 0 ? 8 : 0));
  }
  /// AH, CH, DH and BH have no place in a host register.
  [[nodiscard]] bool is_high(std::uint8_t reg) const { return rex_ == 0 && reg >= ah && reg <= bh; }
  void without_high(bool reg_is_byte, bool rm_is_byte) {
    if ((reg_is_byte && !f_.reg_is_opcode && is_high(f_.reg)) || (rm_is_byte && !f_.memory && is_high(f_.rm))) alone();
  }
  [[nodiscard]] std::uint8_t word_immediate() const { return f_.bytes == 2 ? 2 : 4; }
  void accumulator_and_immediate(unsigned opcode, unsigned group) {
    f_.opcode = static_cast<std::uint8_t>(opcode);
    f_.modrm = f_.reg_is_opcode = true;
    f_.reg = static_cast<std::uint8_t>(group);
    f_.rm = rax;
    f_.immediate_bytes = f_.bytes == 1 ? 1 : word_immediate();
  }
  void register_in_opcode(std::uint8_t& to) const {
    to = static_cast<std::uint8_t>((f_.opcode & 7U) | ((rex_ & 1) != 0 ? 8U : 0U));
  }
  void set_byte() {
    if ((f_.opcode & 1) == 0) f_.bytes = 1;
  }

  /// ADD to CMP in their first forms.
  void arithmetic() {
    const unsigned group = f_.opcode >> 3;
    const unsigned form = f_.opcode & 7;
    set_byte();
    become(Kind::plain, group == 2 || group == 3 ? FlagUse::other : FlagUse::sets_all);
    if (form >= 4) {
      accumulator_and_immediate(f_.bytes == 1 ? 0x80 : 0x81, group);
      f_.writes_rm = group != group_cmp;
      return;
    }
    read_modrm();
    f_.writes_rm = form < 2 && group != group_cmp;
    f_.writes_reg = form >= 2 && group != group_cmp;
    f_.stores = f_.memory && f_.writes_rm;
    without_high(f_.bytes == 1, f_.bytes == 1);
  }
  /// The same by an immediate.
  void arithmetic_group() {
    if (f_.opcode == 0x82) return;
    if (f_.opcode == 0x80) f_.bytes = 1;
    f_.reg_is_opcode = true;
    read_modrm();
    const unsigned group = f_.reg & 7U;
    become(Kind::plain, group == 2 || group == 3 ? FlagUse::other : FlagUse::sets_all);
    f_.writes_rm = group != group_cmp;
    f_.stores = f_.memory && f_.writes_rm;
    f_.immediate_bytes = f_.opcode == 0x81 ? word_immediate() : 1;
    without_high(false, f_.bytes == 1);
  }
  void two_operands(FlagUse flags, bool writes_rm, bool writes_reg) {
    become(Kind::plain, flags);
    set_byte();
    read_modrm();
    f_.writes_rm = writes_rm;
    f_.writes_reg = writes_reg;
    f_.stores = f_.memory && writes_rm;
    without_high(f_.bytes == 1, f_.bytes == 1);
  }

  /// TEST, NOT, NEG, MUL, IMUL; DIV and IDIV are the interpreter's.
  void unary_group() {
    set_byte();
    f_.reg_is_opcode = true;
    read_modrm();
    switch (f_.reg & 7) {
      case 0:
        become(Kind::plain, FlagUse::sets_all);
        f_.immediate_bytes = f_.bytes == 1 ? 1 : word_immediate();
        break;
      case 2:
      case 3:
        become(Kind::plain, (f_.reg & 7) == 2 ? FlagUse::none : FlagUse::sets_all);
        f_.writes_rm = true;
        f_.stores = f_.memory;
        break;
      case 4:
      case 5:
        if (f_.bytes < 4) return alone();
        return become(Kind::multiply_wide, FlagUse::other);
      default: return alone();
    }
    without_high(false, f_.bytes == 1);
  }
  /// INC, DEC; CALL, JMP, PUSH.
  void last_group() {
    set_byte();
    f_.reg_is_opcode = true;
    read_modrm();
    const unsigned group = f_.reg & 7U;
    if (group <= 1) {
      become(Kind::plain, FlagUse::other);
      f_.writes_rm = true;
      f_.stores = f_.memory;
      return without_high(false, f_.bytes == 1);
    }
    if (f_.bytes == 1 || f_.prefix_66) return;
    if (group == 2) become(Kind::call_indirect, FlagUse::none);
    if (group == 4) become(Kind::jmp_indirect, FlagUse::none);
    if (group != 6) return;
    if (f_.memory) return alone();
    become(Kind::push, FlagUse::none);
    f_.reg = f_.rm;
  }

  void shift() {
    const bool by_cl = f_.opcode == 0xD2 || f_.opcode == 0xD3;
    const bool by_one = f_.opcode == 0xD0 || f_.opcode == 0xD1;
    set_byte();
    f_.reg_is_opcode = true;
    read_modrm();
    f_.writes_rm = true;
    f_.stores = f_.memory;
    const unsigned group = f_.reg & 7U;
    const unsigned count = static_cast<unsigned>(by_one ? 1 : op_.imm) & (f_.bytes == 8 ? 63U : 31U);
    const bool narrow = f_.bytes < 4;
    if (!by_cl && !by_one) f_.immediate_bytes = 1;
    if (by_cl) {
      if (narrow || group < 4 || group == 6) return alone();
      return become(Kind::shift_cl, FlagUse::other);
    }
    if (count == 0 || group == 6 || (narrow && count >= 8U * f_.bytes)) return alone();
    if (group >= 4)
      become(Kind::shift_count, FlagUse::sets_all);
    else if (group >= 2 && count == 1)
      become(Kind::plain, FlagUse::other);  // through CF
    else if (group < 2 && !narrow)
      become(Kind::rotate, FlagUse::other);
    else
      return alone();
    without_high(false, f_.bytes == 1);
  }

  void move_immediate() {
    const bool byte = f_.opcode < 0xB8;
    register_in_opcode(f_.rm);
    if (byte && is_high(f_.rm)) return alone();
    if (!byte && f_.bytes >= 4) {
      f_.reg = f_.rm;
      return become(Kind::constant, FlagUse::none);
    }
    become(Kind::plain, FlagUse::none);
    f_.bytes = byte ? 1 : 2;
    f_.opcode = byte ? 0xC6 : 0xC7;
    f_.modrm = f_.reg_is_opcode = f_.writes_rm = true;
    f_.immediate_bytes = f_.bytes;
  }
  void move_immediate_to_memory() {
    set_byte();
    f_.reg_is_opcode = true;
    read_modrm();
    if ((f_.reg & 7) != 0) return;
    become(Kind::plain, FlagUse::none);
    f_.writes_rm = true;
    f_.stores = f_.memory;
    f_.immediate_bytes = f_.bytes == 1 ? 1 : word_immediate();
    without_high(false, f_.bytes == 1);
  }
  void exchange() {
    if (f_.opcode >= 0x90) {
      become(Kind::plain, FlagUse::none);
      register_in_opcode(f_.rm);
      f_.reg = rax;
      f_.opcode = 0x87;
      f_.modrm = f_.writes_reg = f_.writes_rm = true;
      return;
    }
    two_operands(FlagUse::none, true, true);
    if (f_.memory) alone();  // locked
  }
  void multiply(std::uint8_t immediate) {
    become(Kind::multiply, FlagUse::sets_all);
    read_modrm();
    f_.writes_reg = true;
    f_.immediate_bytes = immediate;
  }
  void push_or_pop() {
    if (f_.prefix_66) return alone();
    register_in_opcode(f_.reg);
    become(f_.opcode < 0x58 ? Kind::push : Kind::pop, FlagUse::none);
  }

  void one_byte() {
    const unsigned o = f_.opcode;
    if (f_.repeat != 0 && (o < 0xA4 || o > 0xAF) && o != 0xC3 && o != 0xE8 && o != 0xE9 && o >> 4 != 7)
      return alone_or_interpreted(o);
    if (o < 0x40 && (o & 7) < 6) return arithmetic();
    if (o >= 0x50 && o < 0x60) return push_or_pop();
    if (o >= 0x70 && o < 0x80) return become(Kind::jcc, FlagUse::other);
    if (o >= 0x80 && o < 0x84) return arithmetic_group();
    if (o >= 0x90 && o < 0x98) return exchange();
    if (o >= 0xB0 && o < 0xC0) return move_immediate();
    switch (o) {
      case 0x63:
        if (f_.bytes == 2) return alone();
        become(Kind::plain, FlagUse::none);
        read_modrm();
        f_.writes_reg = true;
        return;
      case 0x68:
      case 0x6A:
        if (f_.prefix_66) return alone();
        return become(Kind::push_constant, FlagUse::none);
      case 0x69: return multiply(word_immediate());
      case 0x6B: return multiply(1);
      case 0x84:
      case 0x85: return two_operands(FlagUse::sets_all, false, false);
      case 0x86:
      case 0x87: return exchange();
      case 0x88:
      case 0x89: return two_operands(FlagUse::none, true, false);
      case 0x8A:
      case 0x8B: return two_operands(FlagUse::none, false, true);
      case 0x8D:
        read_modrm();
        f_.memory = false;
        f_.writes_reg = true;
        return become(Kind::lea, FlagUse::none);
      case 0x98: return become(Kind::widen, FlagUse::none);
      case 0x99: return become(Kind::sign, FlagUse::none);
      case 0xA8:
      case 0xA9:
        set_byte();
        become(Kind::plain, FlagUse::sets_all);
        return accumulator_and_immediate(f_.bytes == 1 ? 0xF6 : 0xF7, 0);
      case 0xC0:
      case 0xC1:
      case 0xD0:
      case 0xD1:
      case 0xD2:
      case 0xD3: return shift();
      case 0xC2:
      case 0xC3: return become(Kind::ret, FlagUse::none);
      case 0xC6:
      case 0xC7: return move_immediate_to_memory();
      case 0xC9: return f_.prefix_66 ? alone() : become(Kind::leave, FlagUse::none);
      case 0xE8: return become(Kind::call, FlagUse::none);
      case 0xE9:
      case 0xEB: return become(Kind::jmp, FlagUse::none);
      case 0xF5:
      case 0xF8:
      case 0xF9: return become(Kind::plain, FlagUse::other);  // CMC, CLC, STC
      case 0xF6:
      case 0xF7: return unary_group();
      case 0xFE:
      case 0xFF: return last_group();
      default: return alone_or_interpreted(o);
    }
  }

  /// For an instruction that is not compiled: whether the code after it is. Not if it may change which memory can be
  /// accessed, or where the code goes on.
  void alone_or_interpreted(unsigned o) {
    const bool strings = (o >= 0xA4 && o <= 0xA7) || (o >= 0xAA && o <= 0xAF);
    const bool x87 = o >= 0xD8 && o <= 0xDF;
    const bool vex = o == 0xC4 || o == 0xC5;
    const bool flags = o == 0x9E || o == 0x9F || o == 0xFA || o == 0xFC || o == 0xFD;
    const bool moves = o >= 0xA0 && o <= 0xA3;
    if (vex && (become_general() || become_vector())) return;
    if (strings || x87 || vex || flags || moves || o == 0x9B || o == 0x9C || o == 0x8F) alone();
  }

  void two_bytes() {
    const unsigned o = f_.opcode;
    if (o >= 0x80 && o < 0x90) return become(Kind::jcc, FlagUse::other);
    if (f_.repeat == 0xF3 && o == 0xB8) return population();
    if (f_.repeat != 0xF2 && (o == 0xBC || o == 0xBD)) return scan();
    if (f_.repeat != 0) return other_two_bytes();
    if (o >= 0x40 && o < 0x50) {
      become(Kind::plain, FlagUse::other);
      read_modrm();
      f_.writes_reg = true;
      return;
    }
    if (o >= 0x90 && o < 0xA0) {
      become(Kind::plain, FlagUse::other);
      f_.bytes = 1;
      read_modrm();
      f_.reg_is_opcode = f_.writes_rm = true;
      f_.stores = f_.memory;
      return without_high(false, true);
    }
    if (o >= 0xC8 && o < 0xD0) {
      if (f_.bytes == 2) return alone();
      register_in_opcode(f_.reg);
      return become(Kind::swap_bytes, FlagUse::none);
    }
    switch (o) {
      case 0xA3:
      case 0xAB:
      case 0xB3:
      case 0xBB:
      case 0xBA: return bit();
      case 0xAF: return multiply(0);
      case 0xB6:
      case 0xB7:
      case 0xBE:
      case 0xBF:
        become(Kind::plain, FlagUse::none);
        read_modrm();
        f_.writes_reg = true;
        return without_high(false, (o & 1) == 0);
      default: return other_two_bytes();
    }
  }
  void population() {
    become(Kind::plain, FlagUse::sets_all);
    read_modrm();
    f_.writes_reg = true;
  }
  /// A CPU that does not know the prefix ignores it: the op tells.
  void scan() {
    const bool up = f_.opcode == 0xBC;
    become(Kind::scan, FlagUse::sets_all);
    read_modrm();
    f_.writes_reg = true;
    const bool counts = op_.run == op_scan(up ? Scan::tzcnt : Scan::lzcnt, f_.memory, f_.bytes);
    if (counts) return;
    f_.repeat = 0;
    if (!host_flags().scan) alone();
  }
  void bit() {
    const bool by_constant = f_.opcode == 0xBA;
    f_.reg_is_opcode = by_constant;
    read_modrm();
    if (f_.memory && !by_constant) return alone();  // the bit may be anywhere
    const unsigned group = by_constant ? f_.reg & 7U : f_.opcode >> 3 & 7U;
    become(Kind::bit, FlagUse::other);
    f_.writes_rm = group != 4;
    f_.stores = f_.memory && f_.writes_rm;
    f_.immediate_bytes = by_constant ? 1 : 0;
  }
  void other_two_bytes() {
    const unsigned o = f_.opcode;
    if (become_vector()) return;
    const bool system = o < 0x10 || (o >= 0x20 && o < 0x28) || (o >= 0x30 && o < 0x38) || o == 0xA2 || o == 0xAA;
    if (!system) alone();
  }
  bool become_general() {
    const HostRoutine* const routine = routine_of(op_);
    if (routine == nullptr || !routine->form.vex || routine->form.unit != VectorUnit::none) return false;
    f_.general = &routine->form;
    become(Kind::general, routine->form.writes_flags ? FlagUse::other : FlagUse::none);
    f_.memory = routine->form.bytes != 0;
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

  std::span<const std::byte> code_;
  const Op& op_;
  GuestForm f_;
  std::size_t at_{};
  unsigned next_{};
  unsigned rex_{};
};

}  // namespace

GuestForm guest_form(std::span<const std::byte> code, const Op& op) { return Reader{code, op}.read(); }

}  // namespace vpmu::exec
