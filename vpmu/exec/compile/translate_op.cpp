#include "exec/compile/translator.hpp"
#include "exec/host/host_flags.hpp"
#include "vpmu/x86.hpp"

#include <span>

/// The code for each kind of instruction but branches.
namespace vpmu::exec {
namespace {

constexpr unsigned equal = 4;  // of Jcc

}  // namespace

void Translator::write(std::size_t i) {
  if (forms_[i].is_flow()) put_vectors_back();
  behind_ = a_.label();
  const std::size_t first = outside_count_;
  prepare_flags(i);
  const bool mxcsr_was_here = mxcsr_is_here_, x87_was_here = x87_is_here_;
  write_kind(i);
  if (forms_[i].kind <= Kind::alone) {
    flags_in_host_ = false;
  } else if (forms_[i].flags == FlagUse::other || forms_[i].flags == FlagUse::sets_all) {
    flags_in_host_ = true;
    flags_in_state_ = false;
  }
  for (std::size_t n = first; n < outside_count_; ++n) {
    Outside& o = outside_[n];
    o.take_again = vectors_here_;
    o.x87_again = x87_is_here_;
    o.flags_again = flags_in_host_;
    if (mxcsr_is_here_ && !mxcsr_was_here) go_on_if(offsetof(CompiledState, no_mxcsr), i, o);
    if (x87_is_here_ && !x87_was_here) go_on_if(offsetof(CompiledState, x87_forbidden), i, o);
  }
  a_.here(behind_);
}
void Translator::write_kind(std::size_t i) {
  const GuestForm& f = forms_[i];
  const Op& op = block_.ops()[i];
  switch (f.kind) {
    case Kind::interpreted:
    case Kind::nothing: return;
    case Kind::alone: return run_alone(i);
    case Kind::plain:
    case Kind::rotate:
    case Kind::bit: return plain(i);
    case Kind::shift_count:
      if (flags_seen_[i] && !host_flags().shift) return shift_in_two(i);
      plain(i);
      if (flags_seen_[i] && !host_flags().shift_af) clear_af();
      return;
    case Kind::shift_cl: return shift_by_cl(i);
    case Kind::multiply: return multiply(i);
    case Kind::multiply_wide: return multiply_wide(i);
    case Kind::lea: return lea(f, op);
    case Kind::constant: return constant(f, op);
    case Kind::widen:
    case Kind::sign: return accumulator(f);
    case Kind::swap_bytes: return swap_bytes(f);
    case Kind::scan: return scan(i);
    case Kind::general: return general(i);
    case Kind::vector: return vector(i);
    case Kind::x87: return x87(i);
    case Kind::push:
    case Kind::push_constant: return push(i);
    case Kind::pop: return pop(i);
    case Kind::leave: return leave_frame(i);
    case Kind::jmp: save_flags(); return go(0);
    case Kind::jcc: return jcc(i);
    case Kind::call: return call(i);
    case Kind::ret: return ret(i);
    case Kind::jmp_indirect:
    case Kind::call_indirect: return indirect_jump(i);
  }
}

/// The first instruction of its kind has looked whether such code may run, and the interpreter ran it. If it ran with
/// an exception that is not masked, the code that follows must not.
void Translator::go_on_if(std::size_t condition, std::size_t i, Outside& o) {
  o.condition = in_state(condition);
  if (i + 1 < count_)
    o.rest = add_site(Site::Why::op, i + 1);
  else
    o.x87_again = false;  // nothing follows
}

void Translator::run_alone(std::size_t i) {
  put_vectors_back();
  forget_vectors();
  name_site(add_site(Site::Why::alone, i));
  a_.call({core_base, in_state(offsetof(CompiledState, run_alone))});
}

/// Everything of the instruction but its operands' ModRM byte.
void Translator::opcode_of(const GuestForm& f, unsigned reg, unsigned index, unsigned rm) {
  if (f.prefix_66) a_.bytes({0x66});
  if (f.repeat != 0 && f.map == 1) a_.bytes({f.repeat});
  a_.bytes({HostAssembler::rex(reg, index, rm, f.wide)});
  if (f.map == 1) a_.bytes({0x0F});
  a_.bytes({f.opcode});
}
void Translator::immediate_of(const GuestForm& f, const Op& op) {
  const std::size_t end = std::size_t{op.offset} + op.length;
  if (f.immediate_bytes > op.length || end > block_.code().size()) return a_.spoil();
  a_.copy(block_.code().subspan(end - f.immediate_bytes, f.immediate_bytes));
}

/// The same instruction. Registers that have no home are in RCX and, if there is no memory operand, RAX.
void Translator::plain(std::size_t i) {
  const GuestForm& f = forms_[i];
  const Op& op = block_.ops()[i];
  if (!f.modrm) {
    a_.bytes({f.opcode});
    return;
  }
  HostRegister at = none;
  if (f.memory) {
    at = address_of(op);
    look_up(at, op.bytes, f.stores, slowly(i));
  }
  const unsigned reg = f.reg_is_opcode ? f.reg & 7U : read(f.reg, scratch_c);
  if (f.memory) {
    opcode_of(f, reg, scratch_d, at);
    found_operand(reg, at);
  } else {
    const HostRegister rm = read(f.rm, scratch_a);
    opcode_of(f, reg, 0, rm);
    a_.bytes({HostAssembler::modrm(reg, rm)});
  }
  immediate_of(f, op);
  if (!f.memory && f.writes_rm) written(f.rm, place(f.rm, scratch_a));
  if (f.writes_reg) written(f.reg, place(f.reg, scratch_c));
}

void Translator::clear_af() {
  a_.lahf();
  a_.seto_al();
  a_.and_ah(~static_cast<unsigned>(x86::rflags::AF::mask) & 0xFFU);
  put_flags_back();
}
/// From AH, and OF from AL.
void Translator::put_flags_back() {
  a_.add_al(0x7F);
  a_.sahf();
}

bool Translator::shifts_in_two(std::size_t i) const {
  return flags_seen_[i] && !(host_flags().shift && host_flags().shift_af);
}
// The count goes to RCX when the operand has been found, and so a destination without a home to RAX.
void Translator::shift_by_cl(std::size_t i) {
  const GuestForm& f = forms_[i];
  const Op& op = block_.ops()[i];
  if (shifts_in_two(i)) return shift_in_two(i);
  HostRegister rm = none;
  if (f.memory) {
    rm = address_of(op);
    look_up(rm, op.bytes, true, slowly(i));
  } else {
    rm = read(f.rm, scratch_a);
  }
  a_.mov(scratch_c, homes[rcx]);
  opcode_of(f, f.reg & 7U, f.memory ? scratch_d : 0, rm);
  if (f.memory) {
    found_operand(f.reg & 7U, rm);
  } else {
    a_.bytes({HostAssembler::modrm(f.reg, rm)});
    written(f.rm, rm);
  }
}
/// Of a register: all but the last bit without a change of flags, then by 1, after which CPUs agree on OF. It is what
/// the interpreter has for any count. SDM 2B SAL.
void Translator::shift_in_two(std::size_t i) {
  const GuestForm& f = forms_[i];
  const unsigned count_bits = f.wide ? 6 : 5, shift = f.reg & 7U;
  const HostRegister rm = read(f.rm, scratch_a);
  const bool by_cl = f.kind == Kind::shift_cl;
  const unsigned count = static_cast<unsigned>(block_.ops()[i].imm) & ((1U << count_bits) - 1);
  if (by_cl) {
    // The count that counts, without a change of flags. By 0 none changes: the interpreter does that.
    a_.rorx(scratch_c, homes[rcx], count_bits);
    a_.mov_constant(scratch_d, 64 - count_bits);
    a_.shrx(scratch_c, scratch_c, scratch_d);
    a_.test(scratch_c, scratch_c);
    a_.jump_if(equal, slowly(i));
    a_.lea(scratch_c, scratch_c, none, 0, -1);
  } else if (count > 1) {
    a_.mov_constant(scratch_c, count - 1);
  }
  if (by_cl || count > 1) a_.shift_by(rm, rm, scratch_c, shift, f.wide);
  a_.shift_by_1(rm, shift, f.wide);
  written(f.rm, rm);
  if (!host_flags().shift_af) clear_af();
}

// CF and OF are as the CPU leaves them, the others as the interpreter does.
// CF is OF's; TEST clears both.
void Translator::multiply(std::size_t i) {
  plain(i);
  if (!flags_seen_[i]) return;
  const GuestForm& f = forms_[i];
  const HostRegister result = place(f.reg, scratch_c);
  a_.seto_al();
  if (f.prefix_66) a_.bytes({0x66});
  a_.bytes({HostAssembler::rex(result, 0, result, f.wide), 0x85, HostAssembler::modrm(result, result)});  // TEST
  a_.lahf();
  a_.or_ah_al();
  put_flags_back();
}
void Translator::multiply_wide(std::size_t i) {
  const GuestForm& f = forms_[i];
  HostRegister factor = none;
  if (f.memory) {
    const HostRegister at = address_of(block_.ops()[i]);
    look_up(at, block_.ops()[i].bytes, false, slowly(i));
    load_found(scratch_c, at, f.wide);
    factor = scratch_c;
  } else {
    factor = read(f.rm, scratch_c);
  }
  a_.mov(scratch_a, homes[rax]);
  a_.bytes({HostAssembler::rex(0, 0, factor, f.wide), 0xF7, HostAssembler::modrm(f.reg, factor)});
  a_.mov(homes[rax], scratch_a);
  a_.mov(homes[rdx], scratch_d);
}

void Translator::lea(const GuestForm& f, const Op& op) {
  const HostRegister to = place(f.reg, scratch_a);
  const bool is_in_code = op.b == block_rip * 8;
  if (is_in_code || (op.b == zero * 8 && op.x == zero * 8)) {
    const auto value = static_cast<std::uint64_t>(std::int64_t{op.disp});
    if (is_in_code)
      place_in_code(scratch_c, op.disp);
    else
      a_.mov_constant(scratch_c, f.bytes == 8 ? value : static_cast<std::uint32_t>(value));
    a_.lea(f.bytes == 2 ? read(f.reg, scratch_a) : to, scratch_c, none, 0, 0, f.bytes);
  } else {
    const HostRegister base = op.b == zero * 8 ? none : read(op.b / 8, scratch_d);
    const HostRegister index = op.x == zero * 8 ? none : read(op.x / 8, scratch_c);
    if (f.bytes == 2) read(f.reg, scratch_a);
    a_.lea(to, base, index, op.scale, op.disp, f.bytes);
  }
  written(f.reg, to);
}
void Translator::constant(const GuestForm& f, const Op& op) {
  const HostRegister to = place(f.reg, scratch_a);
  a_.mov_constant(to, f.bytes == 8 ? static_cast<std::uint64_t>(op.imm) : static_cast<std::uint32_t>(op.imm));
  written(f.reg, to);
}
// CBW, CWDE, CDQE; CWD, CDQ, CQO, which leave the upper bits that they do not write.
void Translator::accumulator(const GuestForm& f) {
  a_.mov(scratch_a, homes[rax]);
  if (f.kind == Kind::sign) a_.mov(scratch_d, homes[rdx]);
  if (f.prefix_66) a_.bytes({0x66});
  a_.bytes({HostAssembler::rex(0, 0, 0, f.wide), f.opcode});
  if (f.kind == Kind::sign)
    a_.mov(homes[rdx], scratch_d);
  else
    a_.mov(homes[rax], scratch_a);
}
void Translator::swap_bytes(const GuestForm& f) {
  const HostRegister reg = read(f.reg, scratch_a);
  a_.bytes({HostAssembler::rex(0, 0, reg, f.wide), 0x0F, 0xC8U | (reg & 7U)});
  written(f.reg, reg);
}

// The flags that the manual leaves undefined are 0, as the interpreter has them: AND makes OF so.
void Translator::scan(std::size_t i) {
  plain(i);
  if (!flags_seen_[i]) return;
  constexpr auto zf = static_cast<unsigned>(x86::rflags::ZF::mask), cf = static_cast<unsigned>(x86::rflags::CF::mask);
  a_.lahf();
  a_.and_ah(forms_[i].repeat != 0 ? zf | cf : zf);
  a_.sahf();
}

/// The host's form of it, with the guest's homes for its scratch registers. No register is both read and written, but
/// RDX by MULX. SDM 2A 2.3.5.
void Translator::general(std::size_t i) {
  const HostForm& h = *forms_[i].host;
  const Encoding& e = h.encoding;
  HostRegister rm = scratch_c;
  if (h.bytes != 0) {
    const HostRegister at = address_of(block_.ops()[i]);
    look_up(at, h.bytes, false, slowly(i));
    load_found(scratch_c, at, e.w);
  }
  HostRegister reg = none, vvvv = none;
  std::uint8_t guest_reg{}, guest_vvvv{};
  bool writes_vvvv = false;
  for (const HostGpr& g : std::span{h.gprs}.first(h.gpr_count)) {
    switch (g.scratch) {
      case HostForm::for_reg: reg = place(guest_reg = g.guest, scratch_a); break;
      case HostForm::for_rm: rm = read(g.guest, scratch_c); break;
      case HostForm::for_vvvv:
        writes_vvvv = g.written;
        guest_vvvv = g.guest;
        vvvv = writes_vvvv ? place(g.guest, scratch_d) : read(g.guest, scratch_d);
        break;
      default: a_.mov(scratch_d, homes[g.guest]); break;
    }
  }
  const unsigned in_reg = reg == none ? e.reg : reg;
  const unsigned in_vvvv = vvvv == none ? e.vvvv : vvvv;
  a_.bytes({0xC4, (in_reg < 8 ? 0x80U : 0U) | 0x40U | (rm < 8 ? 0x20U : 0U) | e.map,
            (e.w ? 0x80U : 0U) | (~in_vvvv & 0xFU) << 3U | (e.l ? 4U : 0U) | e.pp(), e.opcode,
            0xC0U | (in_reg & 7U) << 3U | (rm & 7U)});
  if (e.immediate) a_.bytes({*e.immediate});
  if (writes_vvvv) written(guest_vvvv, vvvv);
  if (reg != none) written(guest_reg, reg);
}

void Translator::move_rsp(std::int32_t by) { a_.lea(home_of_rsp, home_of_rsp, none, 0, by); }
/// Finds the word below the top of the stack, to be stored to.
void Translator::look_up_push(std::size_t i) {
  a_.lea(scratch_a, home_of_rsp, none, 0, -stack_word);
  look_up(scratch_a, word, true, slowly(i));
}
void Translator::push(std::size_t i) {
  look_up_push(i);
  if (forms_[i].kind == Kind::push) {
    a_.mov(found(scratch_a), read(forms_[i].reg, scratch_c));
  } else {
    a_.mov_constant(found(scratch_a), static_cast<std::int32_t>(block_.ops()[i].imm));
  }
  move_rsp(-stack_word);
}
// POP RSP leaves what was popped.
void Translator::pop(std::size_t i) {
  look_up(home_of_rsp, word, false, slowly(i));
  a_.mov(scratch_c, found(home_of_rsp));
  move_rsp(stack_word);
  written(forms_[i].reg, scratch_c);
}
void Translator::leave_frame(std::size_t i) {
  look_up(homes[rbp], word, false, slowly(i));
  a_.mov(scratch_c, found(homes[rbp]));
  a_.lea(home_of_rsp, homes[rbp], none, 0, stack_word);
  a_.mov(homes[rbp], scratch_c);
}

}  // namespace vpmu::exec
