#include "decode/system_instruction.hpp"

#include "decode/zydis.hpp"

// Zydis has hundreds of mnemonics; these switches name the few that matter.
#pragma GCC diagnostic ignored "-Wswitch-enum"

namespace vmm {
namespace {

std::uint8_t number(ZydisRegister reg) {
  const ZydisRegister whole = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, reg);
  return static_cast<std::uint8_t>(ZydisRegisterGetId(whole == ZYDIS_REGISTER_NONE ? reg : whole));
}

/// MOV to or from a segment, control or debug register.
std::optional<SystemInstruction> special_move(const Decoded& d) {
  SystemInstruction s{.bytes = static_cast<std::uint8_t>(d.all_operands[0].size / 8)};
  const auto move = [&](unsigned special, SystemOp op) {
    s.op = op;
    s.special = number(d.all_operands[special].reg.value);
    const ZydisDecodedOperand& other = d.all_operands[1 - special];
    if (other.type == ZYDIS_OPERAND_TYPE_REGISTER) s.gpr = number(other.reg.value);
    return s;
  };
  switch (register_class(d.all_operands[0])) {
    case ZYDIS_REGCLASS_SEGMENT: return move(0, SystemOp::write_segment);
    case ZYDIS_REGCLASS_CONTROL: return move(0, SystemOp::write_control);
    case ZYDIS_REGCLASS_DEBUG: return move(0, SystemOp::write_debug);
    default: break;
  }
  switch (register_class(d.all_operands[1])) {
    case ZYDIS_REGCLASS_SEGMENT: return move(1, SystemOp::read_segment);
    case ZYDIS_REGCLASS_CONTROL: return move(1, SystemOp::read_control);
    case ZYDIS_REGCLASS_DEBUG: return move(1, SystemOp::read_debug);
    default: return std::nullopt;
  }
}

std::optional<SystemInstruction> port_access(const Decoded& d, SystemOp op) {
  const ZydisDecodedOperand& port = d.all_operands[op == SystemOp::in ? 1 : 0];
  const ZydisDecodedOperand& data = d.all_operands[op == SystemOp::in ? 0 : 1];
  const bool by_dx = port.type == ZYDIS_OPERAND_TYPE_REGISTER;
  return SystemInstruction{.op = op,
                           .bytes = static_cast<std::uint8_t>(data.size / 8),
                           .by_dx = by_dx,
                           .immediate = by_dx ? std::uint8_t{0} : static_cast<std::uint8_t>(port.imm.value.u)};
}

/// INS and OUTS: the port is in DX.
std::optional<SystemInstruction> string_port_access(const Decoded& d, SystemOp op) {
  return SystemInstruction{.op = op,
                           .bytes = static_cast<std::uint8_t>(d.in.operand_width / 8),
                           .by_dx = true,
                           .rep = d.repeats(),
                           .address_bytes = static_cast<std::uint8_t>(d.in.address_width / 8)};
}

/// LDS and its like, and BOUND: a register and two values in memory.
std::optional<SystemInstruction> with_pair(const Decoded& d, SystemOp op) {
  SystemInstruction s{.op = op,
                      .gpr = number(d.all_operands[0].reg.value),
                      .bytes = static_cast<std::uint8_t>(d.all_operands[0].size / 8)};
  switch (d.in.mnemonic) {  // segment registers, as encoded
    case ZYDIS_MNEMONIC_LES: s.special = 0; break;
    case ZYDIS_MNEMONIC_LSS: s.special = 2; break;
    case ZYDIS_MNEMONIC_LDS: s.special = 3; break;
    case ZYDIS_MNEMONIC_LFS: s.special = 4; break;
    case ZYDIS_MNEMONIC_LGS: s.special = 5; break;
    default: break;
  }
  return s;
}

std::optional<SystemInstruction> enter_instruction(const Decoded& d) {
  return SystemInstruction{.op = SystemOp::enter,
                           .bytes = static_cast<std::uint8_t>(d.in.operand_width / 8),
                           .immediate = static_cast<std::uint16_t>(d.all_operands[0].imm.value.u),
                           .selector = static_cast<std::uint16_t>(d.all_operands[1].imm.value.u)};
}

/// An instruction that reads or writes a 16-bit word, in a register or in memory; LAR and LSL have it as their second
/// operand. `special` is the other operand's register, if there are two.
std::optional<SystemInstruction> with_selector(const Decoded& d, SystemOp op) {
  SystemInstruction s{.op = op, .bytes = static_cast<std::uint8_t>(d.all_operands[0].size / 8)};
  const bool two = op == SystemOp::lar || op == SystemOp::lsl;
  const ZydisDecodedOperand& selector = d.all_operands[two ? 1 : 0];
  if (selector.type == ZYDIS_OPERAND_TYPE_REGISTER) s.gpr = number(selector.reg.value);
  if (two) s.special = number(d.all_operands[0].reg.value);
  if (op == SystemOp::arpl) s.special = number(d.all_operands[1].reg.value);
  return s;
}

std::uint8_t operand_bytes(const Decoded& d) { return static_cast<std::uint8_t>(d.in.operand_width / 8); }

/// JMP and CALL to another segment.
std::optional<SystemInstruction> far_branch(const Decoded& d, SystemOp op) {
  if (d.in.meta.branch_type != ZYDIS_BRANCH_TYPE_FAR) return std::nullopt;
  SystemInstruction s{.op = op, .bytes = operand_bytes(d)};
  const ZydisDecodedOperand& to = d.all_operands[0];
  s.has_pointer = to.type == ZYDIS_OPERAND_TYPE_POINTER;
  if (s.has_pointer) {
    s.selector = to.ptr.segment;
    s.offset = to.ptr.offset;
  }
  return s;
}
std::optional<SystemInstruction> far_return(const Decoded& d) {
  if (d.in.meta.branch_type != ZYDIS_BRANCH_TYPE_FAR) return std::nullopt;
  SystemInstruction s{.op = SystemOp::far_return, .bytes = operand_bytes(d)};
  if (d.in.operand_count_visible != 0) s.immediate = static_cast<std::uint16_t>(d.all_operands[0].imm.value.u);
  return s;
}

/// PUSH and POP of a segment register.
std::optional<SystemInstruction> stack_move(const Decoded& d, SystemOp op) {
  const ZydisDecodedOperand& o = d.all_operands[0];
  if (register_class(o) != ZYDIS_REGCLASS_SEGMENT) return std::nullopt;
  return SystemInstruction{.op = op, .special = number(o.reg.value), .bytes = operand_bytes(d)};
}

/// LGDT and its like: a limit, and a base whose width is in `bytes`.
SystemInstruction table_access(const Decoded& d, SystemOp op) { return {.op = op, .bytes = operand_bytes(d)}; }

/// RDFSBASE and its relatives.
SystemInstruction base_access(const Decoded& d) {
  constexpr std::uint8_t fs = 4, gs = 5;
  const auto m = d.in.mnemonic;
  const bool reads = m == ZYDIS_MNEMONIC_RDFSBASE || m == ZYDIS_MNEMONIC_RDGSBASE;
  return {.op = reads ? SystemOp::read_base : SystemOp::write_base,
          .gpr = number(d.all_operands[0].reg.value),
          .special = m == ZYDIS_MNEMONIC_RDFSBASE || m == ZYDIS_MNEMONIC_WRFSBASE ? fs : gs,
          .bytes = static_cast<std::uint8_t>(d.all_operands[0].size / 8)};
}

std::optional<SystemInstruction> classify(const Decoded& d) {
  const auto plain = [](SystemOp op) { return std::optional{SystemInstruction{.op = op}}; };
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_CPUID: return plain(SystemOp::cpuid);
    case ZYDIS_MNEMONIC_RDMSR: return plain(SystemOp::rdmsr);
    case ZYDIS_MNEMONIC_WRMSR: return plain(SystemOp::wrmsr);
    case ZYDIS_MNEMONIC_RDTSC: return plain(SystemOp::rdtsc);
    case ZYDIS_MNEMONIC_RDPMC: return plain(SystemOp::rdpmc);
    case ZYDIS_MNEMONIC_LGDT: return table_access(d, SystemOp::lgdt);
    case ZYDIS_MNEMONIC_LIDT: return table_access(d, SystemOp::lidt);
    case ZYDIS_MNEMONIC_SGDT: return table_access(d, SystemOp::sgdt);
    case ZYDIS_MNEMONIC_SIDT: return table_access(d, SystemOp::sidt);
    case ZYDIS_MNEMONIC_LTR: return with_selector(d, SystemOp::ltr);
    case ZYDIS_MNEMONIC_LLDT: return with_selector(d, SystemOp::lldt);
    case ZYDIS_MNEMONIC_STR: return with_selector(d, SystemOp::str);
    case ZYDIS_MNEMONIC_SLDT: return with_selector(d, SystemOp::sldt);
    case ZYDIS_MNEMONIC_LAR: return with_selector(d, SystemOp::lar);
    case ZYDIS_MNEMONIC_LSL: return with_selector(d, SystemOp::lsl);
    case ZYDIS_MNEMONIC_VERR: return with_selector(d, SystemOp::verr);
    case ZYDIS_MNEMONIC_VERW: return with_selector(d, SystemOp::verw);
    case ZYDIS_MNEMONIC_LMSW: return with_selector(d, SystemOp::lmsw);
    case ZYDIS_MNEMONIC_SMSW: return with_selector(d, SystemOp::smsw);
    case ZYDIS_MNEMONIC_CLTS: return plain(SystemOp::clts);
    case ZYDIS_MNEMONIC_SYSCALL: return plain(SystemOp::syscall);
    case ZYDIS_MNEMONIC_SYSRET: return SystemInstruction{.op = SystemOp::sysret, .bytes = operand_bytes(d)};
    case ZYDIS_MNEMONIC_SYSENTER: return plain(SystemOp::sysenter);
    case ZYDIS_MNEMONIC_SYSEXIT: return SystemInstruction{.op = SystemOp::sysexit, .bytes = operand_bytes(d)};
    case ZYDIS_MNEMONIC_SWAPGS: return plain(SystemOp::swapgs);
    case ZYDIS_MNEMONIC_MOV: return special_move(d);
    case ZYDIS_MNEMONIC_XSETBV: return plain(SystemOp::xsetbv);
    case ZYDIS_MNEMONIC_XGETBV: return plain(SystemOp::xgetbv);
    case ZYDIS_MNEMONIC_RDFSBASE:
    case ZYDIS_MNEMONIC_RDGSBASE:
    case ZYDIS_MNEMONIC_WRFSBASE:
    case ZYDIS_MNEMONIC_WRGSBASE: return base_access(d);
    case ZYDIS_MNEMONIC_RDRAND:
    case ZYDIS_MNEMONIC_RDSEED:
      return SystemInstruction{.op = d.in.mnemonic == ZYDIS_MNEMONIC_RDRAND ? SystemOp::rdrand : SystemOp::rdseed,
                               .gpr = number(d.all_operands[0].reg.value),
                               .bytes = static_cast<std::uint8_t>(d.all_operands[0].size / 8)};
    case ZYDIS_MNEMONIC_INVLPG: return plain(SystemOp::invlpg);
    case ZYDIS_MNEMONIC_INVPCID:
      return SystemInstruction{.op = SystemOp::invpcid, .gpr = number(d.all_operands[0].reg.value)};
    case ZYDIS_MNEMONIC_INVD:
    case ZYDIS_MNEMONIC_WBINVD: return plain(SystemOp::wbinvd);
    case ZYDIS_MNEMONIC_IN: return port_access(d, SystemOp::in);
    case ZYDIS_MNEMONIC_OUT: return port_access(d, SystemOp::out);
    case ZYDIS_MNEMONIC_INSB:
    case ZYDIS_MNEMONIC_INSW:
    case ZYDIS_MNEMONIC_INSD: return string_port_access(d, SystemOp::ins);
    case ZYDIS_MNEMONIC_OUTSB:
    case ZYDIS_MNEMONIC_OUTSW:
    case ZYDIS_MNEMONIC_OUTSD: return string_port_access(d, SystemOp::outs);
    case ZYDIS_MNEMONIC_HLT: return plain(SystemOp::hlt);
    case ZYDIS_MNEMONIC_CLI: return plain(SystemOp::cli);
    case ZYDIS_MNEMONIC_STI: return plain(SystemOp::sti);
    case ZYDIS_MNEMONIC_POPF:
    case ZYDIS_MNEMONIC_POPFD:
    case ZYDIS_MNEMONIC_POPFQ: return SystemInstruction{.op = SystemOp::popf, .bytes = operand_bytes(d)};
    case ZYDIS_MNEMONIC_PUSH: return stack_move(d, SystemOp::push_segment);
    case ZYDIS_MNEMONIC_POP: return stack_move(d, SystemOp::pop_segment);
    case ZYDIS_MNEMONIC_IRET:
    case ZYDIS_MNEMONIC_IRETD:
    case ZYDIS_MNEMONIC_IRETQ: return SystemInstruction{.op = SystemOp::iret, .bytes = operand_bytes(d)};
    case ZYDIS_MNEMONIC_JMP: return far_branch(d, SystemOp::far_jump);
    case ZYDIS_MNEMONIC_CALL: return far_branch(d, SystemOp::far_call);
    case ZYDIS_MNEMONIC_INT3: return plain(SystemOp::int3);
    case ZYDIS_MNEMONIC_INT1: return plain(SystemOp::int1);
    case ZYDIS_MNEMONIC_INT:
      return SystemInstruction{.op = SystemOp::int_n,
                               .immediate = static_cast<std::uint8_t>(d.all_operands[0].imm.value.u)};
    case ZYDIS_MNEMONIC_UD0:
    case ZYDIS_MNEMONIC_UD1:
    case ZYDIS_MNEMONIC_UD2: return plain(SystemOp::ud);
    case ZYDIS_MNEMONIC_RSM: return plain(SystemOp::ud);  // outside of system-management mode. SDM 3B RSM
    case ZYDIS_MNEMONIC_INTO: return plain(SystemOp::into);
    case ZYDIS_MNEMONIC_BOUND: return with_pair(d, SystemOp::bound);
    case ZYDIS_MNEMONIC_ARPL: return with_selector(d, SystemOp::arpl);
    case ZYDIS_MNEMONIC_ENTER: return enter_instruction(d);
    case ZYDIS_MNEMONIC_LDS:
    case ZYDIS_MNEMONIC_LES:
    case ZYDIS_MNEMONIC_LFS:
    case ZYDIS_MNEMONIC_LGS:
    case ZYDIS_MNEMONIC_LSS: return with_pair(d, SystemOp::load_far_pointer);
    case ZYDIS_MNEMONIC_RET: return far_return(d);
    default: return std::nullopt;
  }
}

}  // namespace

std::optional<SystemInstruction> system_instruction(const Decoded& d) {
  auto s = classify(d);
  if (s) s->length = d.in.length;
  return s;
}

}  // namespace vmm
