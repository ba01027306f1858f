#include "exec/decode/decoding.hpp"

/// From Zydis to ops: the stack, branches and strings of 16- and 32-bit code.
namespace vpmu::exec {
namespace {

Run push_op(Decoding& d, unsigned bytes) {
  if (d.is_immediate(0)) {
    d.op.imm = d.at(0).imm.value.s;
    return op_narrow_push(Form::reg_imm, bytes);
  }
  if (!set_source(d, 0)) return nullptr;  // of a segment register
  return op_narrow_push(d.is_memory(0) ? Form::reg_mem : Form::reg_reg, bytes);
}

/// Near branches, conditional ones apart.
Run branch_op(Decoding& d, unsigned bytes) {
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_JMP:
    case ZYDIS_MNEMONIC_CALL: {
      const bool call = d.in.mnemonic == ZYDIS_MNEMONIC_CALL;
      if (d.is_immediate(0)) return call ? op_narrow(Narrow::call, bytes) : op_jmp();
      if (!set_source(d, 0)) return nullptr;
      if (d.is_memory(0)) return op_narrow(call ? Narrow::call_memory : Narrow::jmp_memory, bytes);
      return op_narrow(call ? Narrow::call_register : Narrow::jmp_register, bytes);
    }
    case ZYDIS_MNEMONIC_RET:
      if (d.is_immediate(0)) d.op.imm = static_cast<std::int64_t>(d.at(0).imm.value.u);
      return op_narrow(Narrow::ret, bytes);
    default: return nullptr;
  }
}

}  // namespace

Run narrow_stack_op(Decoding& d) {
  const unsigned bytes = d.in.operand_width / 8U;
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_PUSH: return push_op(d, bytes);
    case ZYDIS_MNEMONIC_POP: return set_destination(d) ? op_narrow_pop(d.is_memory(0), bytes) : nullptr;
    case ZYDIS_MNEMONIC_PUSHA:
    case ZYDIS_MNEMONIC_PUSHAD: return op_narrow(Narrow::push_all, bytes);
    case ZYDIS_MNEMONIC_POPA:
    case ZYDIS_MNEMONIC_POPAD: return op_narrow(Narrow::pop_all, bytes);
    case ZYDIS_MNEMONIC_PUSHF:
    case ZYDIS_MNEMONIC_PUSHFD: return op_narrow(Narrow::push_flags, bytes);
    case ZYDIS_MNEMONIC_POPF:
    case ZYDIS_MNEMONIC_POPFD: return op_narrow(Narrow::pop_flags, bytes);
    case ZYDIS_MNEMONIC_LEAVE: return op_narrow(Narrow::leave, bytes);
    case ZYDIS_MNEMONIC_ENTER: return set_frame(d) ? op_narrow(Narrow::enter, bytes) : nullptr;
    default: return nullptr;
  }
}

Run decimal_op(Decoding& d) {
  const auto with_base = [&](Decimal what) {
    d.op.imm = static_cast<std::int64_t>(d.at(0).imm.value.u & 0xFF);
    return op_decimal(what);
  };
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_AAA: return op_decimal(Decimal::aaa);
    case ZYDIS_MNEMONIC_AAS: return op_decimal(Decimal::aas);
    case ZYDIS_MNEMONIC_DAA: return op_decimal(Decimal::daa);
    case ZYDIS_MNEMONIC_DAS: return op_decimal(Decimal::das);
    case ZYDIS_MNEMONIC_AAM: return with_base(Decimal::aam);
    case ZYDIS_MNEMONIC_AAD: return with_base(Decimal::aad);
    case ZYDIS_MNEMONIC_SALC: return op_decimal(Decimal::salc);
    default: return nullptr;
  }
}

bool set_frame(Decoding& d) {
  d.op.imm = static_cast<std::int64_t>(d.at(0).imm.value.u);
  return d.at(1).imm.value.u % 32 == 0;
}

// A branch with 16 bits in 32-bit code goes to the first 64 KiB, where nobody has code.
Run narrow_branch_op(Decoding& d) {
  const bool cuts_ip = d.mode == CodeMode::bits32 && d.in.operand_width == 16;
  return cuts_ip ? nullptr : branch_op(d, d.in.operand_width / 8U);
}

Run loop_op(Decoding& d) {
  note_address_size(d);
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_LOOP: return op_loop(Loop::loop);
    case ZYDIS_MNEMONIC_LOOPE: return op_loop(Loop::while_equal);
    case ZYDIS_MNEMONIC_LOOPNE: return op_loop(Loop::while_not_equal);
    case ZYDIS_MNEMONIC_JCXZ:
    case ZYDIS_MNEMONIC_JECXZ:
    case ZYDIS_MNEMONIC_JRCXZ: return op_loop(Loop::jcxz);
    default: return nullptr;
  }
}

}  // namespace vpmu::exec
