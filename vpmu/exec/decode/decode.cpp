#include <Zydis/Zydis.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <span>
#include <utility>

#include "exec/decode/decoded_block.hpp"
#include "exec/decode/decoding.hpp"
#include "exec/interpret/ops.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/x86.hpp"

/// From Zydis to ops.
namespace vpmu::exec {

std::optional<std::uint8_t> offset_of(ZydisRegister reg) {
  if (reg >= ZYDIS_REGISTER_AH && reg <= ZYDIS_REGISTER_BH)
    return static_cast<std::uint8_t>((reg - ZYDIS_REGISTER_AH) * 8 + 1);
  const ZydisRegister whole = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, reg);
  if (whole < ZYDIS_REGISTER_RAX || whole > ZYDIS_REGISTER_R15) return std::nullopt;
  return static_cast<std::uint8_t>((whole - ZYDIS_REGISTER_RAX) * 8);
}

bool set_register(const Decoding& d, unsigned operand, std::uint8_t& to) {
  const auto offset = offset_of(d.at(operand).reg.value);
  if (offset) to = *offset;
  return offset.has_value();
}

namespace {

/// In 64-bit code only FS and GS have bases.
std::uint8_t segment_base(const Decoding& d, ZydisRegister segment) {
  const bool narrow = d.mode != CodeMode::bits64;
  switch (segment) {
    case ZYDIS_REGISTER_ES: return narrow ? es_base * 8 : zero * 8;
    case ZYDIS_REGISTER_CS: return narrow ? cs_base * 8 : zero * 8;
    case ZYDIS_REGISTER_SS: return narrow ? ss_base * 8 : zero * 8;
    case ZYDIS_REGISTER_DS: return narrow ? ds_base * 8 : zero * 8;
    case ZYDIS_REGISTER_FS: return fs_base * 8;
    case ZYDIS_REGISTER_GS: return gs_base * 8;
    default: return zero * 8;
  }
}

}  // namespace

void note_address_size(Decoding& d) {
  if (d.in.address_width == 32) d.op.scale |= scale_32_bits;
  if (d.in.address_width == 16) d.op.scale |= scale_16_bits;
  if (d.mode != CodeMode::bits64) d.op.scale |= scale_wraps;
}

bool set_memory(Decoding& d, unsigned operand) {
  const auto& o = d.at(operand);
  d.op.b = d.op.x = zero * 8;
  d.op.scale = 0;
  std::int64_t disp = o.mem.disp.value;
  if (o.mem.base == ZYDIS_REGISTER_RIP) {
    d.op.b = block_rip * 8;
    disp += d.op.offset + d.in.length;
  } else if (o.mem.base != ZYDIS_REGISTER_NONE) {
    const auto base = offset_of(o.mem.base);
    if (!base) return false;
    d.op.b = *base;
  }
  if (o.mem.index != ZYDIS_REGISTER_NONE) {
    const auto index = offset_of(o.mem.index);
    if (!index) return false;
    d.op.x = *index;
    d.op.scale = o.mem.scale == 8 ? 3 : o.mem.scale == 4 ? 2 : o.mem.scale == 2 ? 1 : 0;
  }
  d.op.seg = segment_base(d, o.mem.segment);
  note_address_size(d);
  d.op.disp = static_cast<std::int32_t>(disp);
  d.op.bytes = static_cast<std::uint16_t>(d.bytes(operand));
  return d.op.disp == disp || d.in.address_width != 64;
}

bool set_destination(Decoding& d) {
  return d.is_register(0) ? set_register(d, 0, d.op.d) : d.is_memory(0) && set_memory(d, 0);
}
bool set_source(Decoding& d, unsigned i) {
  return d.is_register(i) ? set_register(d, i, d.op.s) : d.is_memory(i) && set_memory(d, i);
}

namespace {

Address address_of(const Op& op) {
  if (op.seg != zero * 8 || (op.scale & scale_any) != 0) return Address::any;
  return op.x == zero * 8 ? Address::base : Address::base_and_index;
}

/// Registers and memory of a two-operand instruction; empty for combinations that have no form.
std::optional<Form> form_of(Decoding& d) {
  if (d.is_register(0)) {
    if (!set_register(d, 0, d.op.d)) return std::nullopt;
    if (d.is_register(1)) return set_register(d, 1, d.op.s) ? std::optional{Form::reg_reg} : std::nullopt;
    if (d.is_memory(1)) return set_memory(d, 1) ? std::optional{Form::reg_mem} : std::nullopt;
    if (d.is_immediate(1)) {
      d.op.imm = d.at(1).imm.value.s;
      return Form::reg_imm;
    }
    return std::nullopt;
  }
  if (!d.is_memory(0) || !set_memory(d, 0)) return std::nullopt;
  if (d.is_register(1)) return set_register(d, 1, d.op.s) ? std::optional{Form::mem_reg} : std::nullopt;
  if (!d.is_immediate(1)) return std::nullopt;
  d.op.imm = d.at(1).imm.value.s;
  return Form::mem_imm;
}

template <class What>
struct Row {
  ZydisMnemonic mnemonic;
  What what;
};
template <class What, std::size_t N>
std::optional<What> find(const std::array<Row<What>, N>& rows, ZydisMnemonic mnemonic) {
  for (const auto& row : rows)
    if (row.mnemonic == mnemonic) return row.what;
  return std::nullopt;
}

constexpr std::array<Row<Alu>, 9> alus{{{ZYDIS_MNEMONIC_ADD, Alu::add},
                                        {ZYDIS_MNEMONIC_OR, Alu::bit_or},
                                        {ZYDIS_MNEMONIC_ADC, Alu::adc},
                                        {ZYDIS_MNEMONIC_SBB, Alu::sbb},
                                        {ZYDIS_MNEMONIC_AND, Alu::bit_and},
                                        {ZYDIS_MNEMONIC_SUB, Alu::sub},
                                        {ZYDIS_MNEMONIC_XOR, Alu::bit_xor},
                                        {ZYDIS_MNEMONIC_CMP, Alu::cmp},
                                        {ZYDIS_MNEMONIC_TEST, Alu::test}}};
constexpr std::array<Row<Unary>, 4> unaries{{{ZYDIS_MNEMONIC_INC, Unary::inc},
                                             {ZYDIS_MNEMONIC_DEC, Unary::dec},
                                             {ZYDIS_MNEMONIC_NOT, Unary::bit_not},
                                             {ZYDIS_MNEMONIC_NEG, Unary::neg}}};
constexpr std::array<Row<Shift>, 7> shifts{{{ZYDIS_MNEMONIC_ROL, Shift::rol},
                                            {ZYDIS_MNEMONIC_ROR, Shift::ror},
                                            {ZYDIS_MNEMONIC_RCL, Shift::rcl},
                                            {ZYDIS_MNEMONIC_RCR, Shift::rcr},
                                            {ZYDIS_MNEMONIC_SHL, Shift::shl},
                                            {ZYDIS_MNEMONIC_SHR, Shift::shr},
                                            {ZYDIS_MNEMONIC_SAR, Shift::sar}}};
constexpr std::array<Row<BitOp>, 4> bit_ops{{{ZYDIS_MNEMONIC_BT, BitOp::bt},
                                             {ZYDIS_MNEMONIC_BTS, BitOp::bts},
                                             {ZYDIS_MNEMONIC_BTR, BitOp::btr},
                                             {ZYDIS_MNEMONIC_BTC, BitOp::btc}}};
constexpr std::array<Row<Scan>, 5> scans{{{ZYDIS_MNEMONIC_BSF, Scan::bsf},
                                          {ZYDIS_MNEMONIC_BSR, Scan::bsr},
                                          {ZYDIS_MNEMONIC_TZCNT, Scan::tzcnt},
                                          {ZYDIS_MNEMONIC_LZCNT, Scan::lzcnt},
                                          {ZYDIS_MNEMONIC_POPCNT, Scan::popcnt}}};
struct StringKind {
  String what;
  std::uint8_t bytes;
};
constexpr std::array<Row<StringKind>, 20> strings{
    {{ZYDIS_MNEMONIC_MOVSB, {String::movs, 1}}, {ZYDIS_MNEMONIC_MOVSW, {String::movs, 2}},
     {ZYDIS_MNEMONIC_MOVSD, {String::movs, 4}}, {ZYDIS_MNEMONIC_MOVSQ, {String::movs, 8}},
     {ZYDIS_MNEMONIC_STOSB, {String::stos, 1}}, {ZYDIS_MNEMONIC_STOSW, {String::stos, 2}},
     {ZYDIS_MNEMONIC_STOSD, {String::stos, 4}}, {ZYDIS_MNEMONIC_STOSQ, {String::stos, 8}},
     {ZYDIS_MNEMONIC_LODSB, {String::lods, 1}}, {ZYDIS_MNEMONIC_LODSW, {String::lods, 2}},
     {ZYDIS_MNEMONIC_LODSD, {String::lods, 4}}, {ZYDIS_MNEMONIC_LODSQ, {String::lods, 8}},
     {ZYDIS_MNEMONIC_SCASB, {String::scas, 1}}, {ZYDIS_MNEMONIC_SCASW, {String::scas, 2}},
     {ZYDIS_MNEMONIC_SCASD, {String::scas, 4}}, {ZYDIS_MNEMONIC_SCASQ, {String::scas, 8}},
     {ZYDIS_MNEMONIC_CMPSB, {String::cmps, 1}}, {ZYDIS_MNEMONIC_CMPSW, {String::cmps, 2}},
     {ZYDIS_MNEMONIC_CMPSD, {String::cmps, 4}}, {ZYDIS_MNEMONIC_CMPSQ, {String::cmps, 8}}}};

/// Jcc, SETcc and CMOVcc in the order of their codes.
constexpr std::array jumps{ZYDIS_MNEMONIC_JO, ZYDIS_MNEMONIC_JNO, ZYDIS_MNEMONIC_JB,  ZYDIS_MNEMONIC_JNB,
                           ZYDIS_MNEMONIC_JZ, ZYDIS_MNEMONIC_JNZ, ZYDIS_MNEMONIC_JBE, ZYDIS_MNEMONIC_JNBE,
                           ZYDIS_MNEMONIC_JS, ZYDIS_MNEMONIC_JNS, ZYDIS_MNEMONIC_JP,  ZYDIS_MNEMONIC_JNP,
                           ZYDIS_MNEMONIC_JL, ZYDIS_MNEMONIC_JNL, ZYDIS_MNEMONIC_JLE, ZYDIS_MNEMONIC_JNLE};
constexpr std::array sets{ZYDIS_MNEMONIC_SETO, ZYDIS_MNEMONIC_SETNO, ZYDIS_MNEMONIC_SETB,  ZYDIS_MNEMONIC_SETNB,
                          ZYDIS_MNEMONIC_SETZ, ZYDIS_MNEMONIC_SETNZ, ZYDIS_MNEMONIC_SETBE, ZYDIS_MNEMONIC_SETNBE,
                          ZYDIS_MNEMONIC_SETS, ZYDIS_MNEMONIC_SETNS, ZYDIS_MNEMONIC_SETP,  ZYDIS_MNEMONIC_SETNP,
                          ZYDIS_MNEMONIC_SETL, ZYDIS_MNEMONIC_SETNL, ZYDIS_MNEMONIC_SETLE, ZYDIS_MNEMONIC_SETNLE};
constexpr std::array moves{ZYDIS_MNEMONIC_CMOVO, ZYDIS_MNEMONIC_CMOVNO, ZYDIS_MNEMONIC_CMOVB,  ZYDIS_MNEMONIC_CMOVNB,
                           ZYDIS_MNEMONIC_CMOVZ, ZYDIS_MNEMONIC_CMOVNZ, ZYDIS_MNEMONIC_CMOVBE, ZYDIS_MNEMONIC_CMOVNBE,
                           ZYDIS_MNEMONIC_CMOVS, ZYDIS_MNEMONIC_CMOVNS, ZYDIS_MNEMONIC_CMOVP,  ZYDIS_MNEMONIC_CMOVNP,
                           ZYDIS_MNEMONIC_CMOVL, ZYDIS_MNEMONIC_CMOVNL, ZYDIS_MNEMONIC_CMOVLE, ZYDIS_MNEMONIC_CMOVNLE};
template <std::size_t N>
std::optional<unsigned> condition(const std::array<ZydisMnemonic, N>& table, ZydisMnemonic mnemonic) {
  for (unsigned i = 0; i < N; ++i)
    if (table[i] == mnemonic) return i;
  return std::nullopt;
}

Run two_operands(Decoding& d, Alu what) {
  const auto form = form_of(d);
  if (!form) return nullptr;
  if (d.locked()) return op_locked_alu(what, *form == Form::mem_imm, d.bytes(0));
  if (what == Alu::cmp || what == Alu::test) d.found.comparison = {what, *form, d.bytes(0)};
  return op_alu(what, *form, d.bytes(0), address_of(d.op));
}

Run shift(Decoding& d, Shift what) {
  if (!set_destination(d)) return nullptr;
  const bool by_cl = d.is_register(1);
  if (!by_cl) d.op.imm = d.at(1).imm.value.s;
  return op_shift(what, by_cl, d.is_memory(0), d.bytes(0));
}

Run double_shift(Decoding& d, bool left) {
  if (!set_destination(d) || !set_register(d, 1, d.op.s)) return nullptr;
  const bool by_cl = d.is_register(2);
  if (!by_cl) d.op.imm = d.at(2).imm.value.s;
  return op_double_shift(left, by_cl, d.is_memory(0), d.bytes(0));
}

Run bit_op(Decoding& d, BitOp what) {
  const auto form = form_of(d);
  if (!form) return nullptr;
  const bool by_register = *form == Form::reg_reg || *form == Form::mem_reg;
  d.op.imm &= 8 * d.bytes(0) - 1;
  return op_bit(what, by_register, d.is_memory(0), d.locked(), d.bytes(0));
}

Run string_op(Decoding& d, StringKind kind) {
  d.op.seg = zero * 8;
  for (unsigned i = 0; i < d.in.operand_count; ++i) {
    if (!d.is_memory(i)) continue;
    // The one at RDI is in ES, whatever prefixes say.
    const bool at_rsi = d.at(i).mem.base == ZYDIS_REGISTER_RSI || d.at(i).mem.base == ZYDIS_REGISTER_ESI ||
                        d.at(i).mem.base == ZYDIS_REGISTER_SI;
    if (at_rsi) d.op.seg = segment_base(d, d.at(i).mem.segment);
    d.op.bytes = static_cast<std::uint16_t>(kind.bytes);
  }
  const bool equal = (d.in.attributes & (ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE)) != 0;
  const bool not_equal = (d.in.attributes & ZYDIS_ATTRIB_HAS_REPNE) != 0;
  const Repeat repeat = equal ? Repeat::while_equal : not_equal ? Repeat::while_not_equal : Repeat::none;
  note_address_size(d);
  return op_string(kind.what, repeat, kind.bytes, d.in.address_width == 64);
}

/// Near branches: they end their block.
Run branch(Decoding& d) {
  d.found.ends_block = true;
  const auto to = [&] { d.found.to = d.op.offset + d.in.length + d.at(0).imm.value.s; };
  if (const auto cc = condition(jumps, d.in.mnemonic)) {
    to();
    d.found.jump_if = cc;
    return op_jcc(*cc);
  }
  if (d.in.meta.branch_type == ZYDIS_BRANCH_TYPE_FAR) return nullptr;
  if (const Run run = loop_op(d)) {
    to();
    return run;
  }
  if (d.mode != CodeMode::bits64) {
    if (d.is_immediate(0) && d.in.mnemonic != ZYDIS_MNEMONIC_RET) to();
    return narrow_branch_op(d);
  }
  if (d.in.operand_width == 16) return nullptr;
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_JMP:
    case ZYDIS_MNEMONIC_CALL: {
      const bool call = d.in.mnemonic == ZYDIS_MNEMONIC_CALL;
      if (d.is_immediate(0)) {
        to();
        return call ? op_call() : op_jmp();
      }
      if (!set_source(d, 0)) return nullptr;
      return call ? op_call_indirect(d.is_memory(0)) : op_jmp_indirect(d.is_memory(0));
    }
    case ZYDIS_MNEMONIC_RET:
      if (d.is_immediate(0)) d.op.imm = static_cast<std::int64_t>(d.at(0).imm.value.u);
      return op_ret();
    default: return nullptr;
  }
}

/// MOV with an address of 64 bits in the instruction. SDM 2A MOV (A0 to A3).
Run absolute_move(Decoding& d) {
  const unsigned memory = d.is_memory(0) ? 0 : 1;
  const auto& o = d.at(memory);
  if (!set_register(d, 1 - memory, d.op.d)) return nullptr;
  d.op.imm = o.mem.disp.value;
  d.op.bytes = static_cast<std::uint16_t>(d.bytes(memory));
  d.op.seg = segment_base(d, o.mem.segment);
  return op_mov_absolute(memory == 0, d.bytes(memory));
}

Run system_op(Decoding& d) {
  const auto change = [&](std::uint64_t clear, std::uint64_t flip) {
    d.op.imm = static_cast<std::int64_t>(clear);
    d.op.disp = static_cast<std::int32_t>(flip);
    return op_change_flags();
  };
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_CLC: return change(x86::rflags::CF::mask, 0);
    case ZYDIS_MNEMONIC_STC: return change(x86::rflags::CF::mask, x86::rflags::CF::mask);
    case ZYDIS_MNEMONIC_CMC: return change(0, x86::rflags::CF::mask);
    case ZYDIS_MNEMONIC_CLD: return change(x86::rflags::DF::mask, 0);
    case ZYDIS_MNEMONIC_STD: return change(x86::rflags::DF::mask, x86::rflags::DF::mask);
    case ZYDIS_MNEMONIC_CLI: return change(x86::rflags::IF::mask, 0);
    case ZYDIS_MNEMONIC_STI: return op_sti();
    case ZYDIS_MNEMONIC_SWAPGS: return d.mode == CodeMode::bits64 ? op_swapgs() : nullptr;
    case ZYDIS_MNEMONIC_LAHF: return op_lahf();
    case ZYDIS_MNEMONIC_SAHF: return op_sahf();
    case ZYDIS_MNEMONIC_CPUID: d.found.alone = true; return op_cpuid();
    case ZYDIS_MNEMONIC_RDMSR: d.found.alone = true; return op_rdmsr();
    case ZYDIS_MNEMONIC_WRMSR: d.found.alone = true; return op_wrmsr();
    case ZYDIS_MNEMONIC_RDPMC: d.found.alone = true; return op_rdpmc();
    case ZYDIS_MNEMONIC_RDTSC: d.found.alone = true; return op_rdtsc();
    case ZYDIS_MNEMONIC_RDTSCP: d.found.alone = true; return op_rdtscp();
    case ZYDIS_MNEMONIC_STAC:
    case ZYDIS_MNEMONIC_CLAC:
      return d.guest_has(CpuFeature::smap) ? op_set_ac(d.in.mnemonic == ZYDIS_MNEMONIC_STAC) : nullptr;
    case ZYDIS_MNEMONIC_LFENCE:
    case ZYDIS_MNEMONIC_SFENCE:
    case ZYDIS_MNEMONIC_MFENCE: return op_fence();
    case ZYDIS_MNEMONIC_CLFLUSHOPT:
      if (!d.guest_has(CpuFeature::clflushopt)) return nullptr;
      [[fallthrough]];
    case ZYDIS_MNEMONIC_CLFLUSH: return set_memory(d, 0) ? op_flush_line() : nullptr;
    case ZYDIS_MNEMONIC_NOP:
      // The register forms of 0F 0D are a NOP for one vendor and #UD for another.
      return d.in.opcode_map == ZYDIS_OPCODE_MAP_0F && d.in.opcode == 0x0D ? nullptr : op_nop();
    case ZYDIS_MNEMONIC_PAUSE: return op_nop();
    case ZYDIS_MNEMONIC_PREFETCHT0:
    case ZYDIS_MNEMONIC_PREFETCHNTA: return set_memory(d, 0) ? op_prefetch(Prefetch::to_l1) : nullptr;
    case ZYDIS_MNEMONIC_PREFETCHT1:
    case ZYDIS_MNEMONIC_PREFETCHT2: return set_memory(d, 0) ? op_prefetch(Prefetch::to_l2) : nullptr;
    case ZYDIS_MNEMONIC_PREFETCHW: return set_memory(d, 0) ? op_prefetch(Prefetch::to_write) : nullptr;
    default: return nullptr;
  }
}

/// XCHG RBX, RBX.
bool may_be_client_request(const Decoding& d) {
  const auto is_rbx = [&d](unsigned n) { return d.is_register(n) && d.at(n).reg.value == ZYDIS_REGISTER_RBX; };
  return is_rbx(0) && is_rbx(1);
}

/// MOV RSP, [RSI + 32 bits].
bool may_switch_task(const Decoding& d) {
  if (!d.is_register(0) || d.at(0).reg.value != ZYDIS_REGISTER_RSP || !d.is_memory(1)) return false;
  const auto& memory = d.at(1).mem;
  return memory.base == ZYDIS_REGISTER_RSI && memory.index == ZYDIS_REGISTER_NONE && d.in.raw.disp.size == 32 &&
         memory.segment == ZYDIS_REGISTER_DS;
}

Run move_op(Decoding& d) {
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_MOV:
    case ZYDIS_MNEMONIC_MOVNTI: {
      if (d.is_register(1) && d.at(1).reg.value >= ZYDIS_REGISTER_CR0 && d.at(1).reg.value <= ZYDIS_REGISTER_CR15) {
        d.op.imm = d.at(1).reg.value - ZYDIS_REGISTER_CR0;
        return set_register(d, 0, d.op.d) ? op_read_control() : nullptr;
      }
      if (d.is_register(0) && d.at(0).reg.value == ZYDIS_REGISTER_CR8) {
        d.found.alone = true;
        return set_register(d, 1, d.op.d) ? op_write_cr8() : nullptr;
      }
      const bool absolute = d.in.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT && d.in.opcode >= 0xA0 && d.in.opcode <= 0xA3;
      if (absolute && d.in.address_width == 64) return absolute_move(d);
      const auto form = form_of(d);
      if (form && d.mode == CodeMode::bits64 && may_switch_task(d)) {
        d.found.alone = true;
        return op_switch_stack();
      }
      return form ? op_mov(*form, d.bytes(0), address_of(d.op)) : nullptr;
    }
    case ZYDIS_MNEMONIC_MOVZX:
    case ZYDIS_MNEMONIC_MOVSX:
    case ZYDIS_MNEMONIC_MOVSXD:
      if (!set_register(d, 0, d.op.d) || !set_source(d, 1)) return nullptr;
      return op_extend(d.in.mnemonic != ZYDIS_MNEMONIC_MOVZX, d.is_memory(1), d.bytes(1), d.bytes(0));
    case ZYDIS_MNEMONIC_LEA:
      if (!set_register(d, 0, d.op.d) || !set_memory(d, 1)) return nullptr;
      d.op.seg = zero * 8;  // of no meaning
      return op_lea(d.bytes(0), address_of(d.op));
    case ZYDIS_MNEMONIC_XCHG: {
      if (d.mode == CodeMode::bits64 && may_be_client_request(d)) {
        d.found.alone = true;
        return op_client_request();
      }
      if (d.is_register(0) && d.is_register(1))
        return set_register(d, 0, d.op.d) && set_register(d, 1, d.op.s) ? op_xchg_registers(d.bytes(0)) : nullptr;
      const unsigned memory = d.is_memory(0) ? 0 : 1;
      return set_memory(d, memory) && set_register(d, 1 - memory, d.op.s) ? op_xchg_memory(d.bytes(memory)) : nullptr;
    }
    case ZYDIS_MNEMONIC_CMPXCHG: return form_of(d) ? op_cmpxchg(d.is_memory(0), d.locked(), d.bytes(0)) : nullptr;
    case ZYDIS_MNEMONIC_XADD: return form_of(d) ? op_xadd(d.is_memory(0), d.locked(), d.bytes(0)) : nullptr;
    case ZYDIS_MNEMONIC_CMPXCHG8B: return set_memory(d, 0) ? op_cmpxchg8b() : nullptr;
    case ZYDIS_MNEMONIC_CMPXCHG16B: return set_memory(d, 0) ? op_cmpxchg16b() : nullptr;
    case ZYDIS_MNEMONIC_BSWAP: return set_register(d, 0, d.op.d) ? op_bswap(d.bytes(0)) : nullptr;
    case ZYDIS_MNEMONIC_CBW: return op_widen_accumulator(2);
    case ZYDIS_MNEMONIC_CWDE: return op_widen_accumulator(4);
    case ZYDIS_MNEMONIC_CDQE: return op_widen_accumulator(8);
    case ZYDIS_MNEMONIC_CWD: return op_sign_to_d(2);
    case ZYDIS_MNEMONIC_CDQ: return op_sign_to_d(4);
    case ZYDIS_MNEMONIC_CQO: return op_sign_to_d(8);
    case ZYDIS_MNEMONIC_PUSH:
      if (d.is_immediate(0)) {
        d.op.imm = d.at(0).imm.value.s;
        return op_push(Form::reg_imm, d.in.operand_width / 8U);
      }
      if (!set_source(d, 0)) return nullptr;
      return op_push(d.is_memory(0) ? Form::reg_mem : Form::reg_reg, d.in.operand_width / 8U);
    case ZYDIS_MNEMONIC_POP: return set_destination(d) ? op_pop(d.is_memory(0), d.in.operand_width / 8U) : nullptr;
    case ZYDIS_MNEMONIC_PUSHF:
    case ZYDIS_MNEMONIC_PUSHFQ: return op_pushf(d.in.operand_width / 8U);
    case ZYDIS_MNEMONIC_POPF:
    case ZYDIS_MNEMONIC_POPFQ: return op_popf(d.in.operand_width / 8U);
    case ZYDIS_MNEMONIC_LEAVE: return d.in.operand_width == 64 ? op_leave() : nullptr;
    case ZYDIS_MNEMONIC_ENTER: return d.in.operand_width == 64 && set_frame(d) ? op_enter() : nullptr;
    case ZYDIS_MNEMONIC_XLAT:
      for (unsigned i = 0; i < d.in.operand_count; ++i)
        if (d.is_memory(i)) d.op.seg = segment_base(d, d.at(i).mem.segment);
      note_address_size(d);
      d.op.bytes = 1;
      return op_xlat();
    default: return nullptr;
  }
}

Run multiply_op(Decoding& d) {
  const bool is_signed = d.in.mnemonic == ZYDIS_MNEMONIC_IMUL || d.in.mnemonic == ZYDIS_MNEMONIC_IDIV;
  const bool divides = d.in.mnemonic == ZYDIS_MNEMONIC_DIV || d.in.mnemonic == ZYDIS_MNEMONIC_IDIV;
  if (!divides && d.in.mnemonic != ZYDIS_MNEMONIC_MUL && !is_signed) return nullptr;
  if (d.visible() == 1) {
    if (!set_source(d, 0)) return nullptr;
    return divides ? op_divide(is_signed, d.is_memory(0), d.bytes(0))
                   : op_multiply(is_signed, d.is_memory(0), d.bytes(0));
  }
  if (!set_register(d, 0, d.op.d) || !set_source(d, 1)) return nullptr;
  if (d.visible() == 3) d.op.imm = d.at(2).imm.value.s;
  return op_multiply_two(d.is_memory(1), d.visible() == 3, d.bytes(0));
}

/// SDM 2A LZCNT, 2B TZCNT: a CPU without them ignores the prefix.
Scan scan_of(const Decoding& d, Scan what) {
  if (what == Scan::tzcnt && !d.guest_has(CpuFeature::bmi1)) return Scan::bsf;
  if (what == Scan::lzcnt && !d.guest_has(CpuFeature::lzcnt)) return Scan::bsr;
  return what;
}

Run choose(Decoding& d) {
  const auto m = d.in.mnemonic;
  if (is_reserved_nop(d)) return op_nop();
  if (d.mode != CodeMode::bits64)
    for (const Run run : {narrow_stack_op(d), decimal_op(d)})
      if (run != nullptr) return run;
  if (const auto what = find(alus, m)) return two_operands(d, *what);
  if (const auto what = find(unaries, m)) {
    if (!set_destination(d)) return nullptr;
    return d.locked() ? op_locked_unary(*what, d.bytes(0)) : op_unary(*what, d.is_memory(0), d.bytes(0));
  }
  if (const auto what = find(shifts, m)) return shift(d, *what);
  if (m == ZYDIS_MNEMONIC_SHLD || m == ZYDIS_MNEMONIC_SHRD) return double_shift(d, m == ZYDIS_MNEMONIC_SHLD);
  if (const auto what = find(bit_ops, m)) return bit_op(d, *what);
  if (const auto what = find(scans, m))
    return set_register(d, 0, d.op.d) && set_source(d, 1) ? op_scan(scan_of(d, *what), d.is_memory(1), d.bytes(0))
                                                          : nullptr;
  if (d.in.meta.category == ZYDIS_CATEGORY_STRINGOP) {
    const auto what = find(strings, m);
    return what ? string_op(d, *what) : nullptr;
  }
  if (const auto cc = condition(sets, m)) return set_destination(d) ? op_setcc(*cc, d.is_memory(0)) : nullptr;
  if (const auto cc = condition(moves, m))
    return set_register(d, 0, d.op.d) && set_source(d, 1) ? op_cmov(*cc, d.is_memory(1), d.bytes(0)) : nullptr;
  if (d.in.meta.branch_type != ZYDIS_BRANCH_TYPE_NONE) return branch(d);
  if (const Run run = multiply_op(d)) return run;
  if (const Run run = move_op(d)) return run;
  if (const Run run = system_op(d)) return run;
  return vector_op(d);
}

std::uint8_t events_of(const Decoding& d) {
  std::uint8_t events = d.in.meta.branch_type != ZYDIS_BRANCH_TYPE_NONE ? event_branch : 0;
  if (d.in.mnemonic == ZYDIS_MNEMONIC_LEA || d.in.mnemonic == ZYDIS_MNEMONIC_NOP ||
      d.in.mnemonic == ZYDIS_MNEMONIC_CLFLUSH || d.in.mnemonic == ZYDIS_MNEMONIC_CLFLUSHOPT || is_reserved_nop(d))
    return events;
  if (d.in.meta.category == ZYDIS_CATEGORY_PREFETCH) return event_load;
  for (unsigned i = 0; i < d.in.operand_count; ++i) {
    if (!d.is_memory(i)) continue;
    if ((d.at(i).actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0) events |= event_load;
    if ((d.at(i).actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0) events |= event_store;
    if (d.locked() || d.in.mnemonic == ZYDIS_MNEMONIC_XCHG) events |= event_locked;
  }
  return events;
}

/// Where an instruction that accesses one place in memory does so, if that can be told from its op.
std::uint8_t place_of(const Decoding& d) {
  if (d.in.meta.category == ZYDIS_CATEGORY_PREFETCH) return 0;  // the place need not be mapped
  constexpr unsigned max = 32;                                  // longer ones are done in parts
  const ZydisDecodedOperand* memory = nullptr;
  for (unsigned i = 0; i < d.in.operand_count; ++i) {
    if (!d.is_memory(i)) continue;
    if (memory != nullptr) return 0;
    memory = &d.at(i);
  }
  if (memory == nullptr) return 0;
  // Which part of it, or which other places, depends on vector registers.
  if (d.op.run == op_masked_move() || d.op.run == op_gather() || d.op.run == op_xlat()) return 0;
  if (memory->visibility == ZYDIS_OPERAND_VISIBILITY_HIDDEN)
    return memory->mem.base == ZYDIS_REGISTER_RSP && memory->size == 64 ? event_at_stack : 0;
  const bool bit_string = find(bit_ops, d.in.mnemonic).has_value() && d.is_register(1);
  const bool absolute = memory->mem.base == ZYDIS_REGISTER_NONE && d.in.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT &&
                        (d.in.opcode & 0xFCU) == 0xA0;
  if (bit_string || absolute || d.in.meta.category == ZYDIS_CATEGORY_STRINGOP) return 0;
  // Of those that change memory only these load first and then store; the others do both in one.
  const bool loads_first = find(alus, d.in.mnemonic) || find(unaries, d.in.mnemonic) || find(shifts, d.in.mnemonic);
  const bool changes = (memory->actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0 &&
                       (memory->actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
  if (changes && (d.locked() || !loads_first)) return 0;
  return d.op.bytes * 8U == memory->size && d.op.bytes <= max ? event_at_operand : 0;
}

/// Decodes the instruction at `offset` of the block's code into `d`. False when it is not all there.
bool decode_one(std::span<const std::byte> code, std::size_t offset, Decoding& d) {
  if (!read_instruction(code.subspan(offset), d.mode, d)) return false;
  d.found = {};
  d.op = Op{.b = zero * 8,
            .x = zero * 8,
            .seg = zero * 8,
            .length = d.in.length,
            .offset = static_cast<std::uint16_t>(offset)};
  d.op.run = choose(d);
  if (d.op.run == nullptr) {
    d.op.run = op_unsupported();
    d.found.ends_block = true;
  }
  d.op.events = events_of(d);
  if ((d.op.events & (event_load | event_store)) != 0) d.op.events |= place_of(d);
  return true;
}

}  // namespace

// Outside of 64-bit code, addresses have 32 bits. SDM 1 3.3.4.
bool DecodedBlock::decode(std::uint64_t rip, CodeMode mode, std::span<const std::byte> code, HostRoutines& routines) {
  std::size_t count = 0;
  std::size_t at = 0;
  std::optional<Comparison> comparison;
  Decoding d{&routines, mode};
  const std::uint64_t addresses = low_bits(mode == CodeMode::bits64 ? 64 : 32);
  facts = {.offset = static_cast<std::uint16_t>(rip % page_size), .mode = mode};
  while (count < Block::max_ops && decode_one(code, at, d)) {
    if (d.found.alone && count > 0) break;
    if (count == 0) facts.first_alone = d.op.run;
    if (comparison && d.found.jump_if)
      if (const Run both = op_compare_and_jump(comparison->what, comparison->form, comparison->bytes, *d.found.jump_if))
        facts.comparison = std::exchange(ops_[count - 1].run, both);
    comparison = d.found.comparison;
    ops_[count++] = d.op;
    facts.counts += counts_of(d.op);
    at += d.in.length;
    if (d.found.to) {
      const std::uint64_t to = (rip + static_cast<std::uint64_t>(*d.found.to)) & addresses;
      facts.distance = {static_cast<std::int64_t>(to - rip), static_cast<std::int64_t>(at)};
    }
    if ((d.op.events & event_branch) != 0) facts.branch = branch_kind(d);
    facts.is_whole = d.found.ends_block || d.found.alone || count == Block::max_ops;
    if (d.found.ends_block || d.found.alone) break;
  }
  if (count == 0) return false;
  const bool branches = ops_[count - 1].events & event_branch;
  if (!branches) facts.distance[0] = static_cast<std::int64_t>(at);
  ops_[count++] = Op{.run = op_end(), .offset = static_cast<std::uint16_t>(at)};
  facts.op_count = static_cast<std::uint16_t>(count);
  facts.code_bytes = static_cast<std::uint16_t>(at);
  facts.is_whole &= mode == CodeMode::bits64;
  return true;
}

// Ops are the same wherever they stand: block_rip is a register.
bool DecodedBlock::copy(const Block& known, std::uint64_t rip, CodeMode mode, std::span<const std::byte> code) {
  if (!known.is_whole || known.mode != mode || known.code_bytes > code.size() ||
      !std::ranges::equal(known.code(), code.first(known.code_bytes)))
    return false;
  facts = static_cast<const BlockFacts&>(known);
  facts.offset = static_cast<std::uint16_t>(rip % page_size);
  std::ranges::copy(known.ops(), ops_.begin());
  for (std::size_t i = 0; i < known.op_count; ++i) ops_[i].run = known.own_run(i);
  return true;
}

}  // namespace vpmu::exec
