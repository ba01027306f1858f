// Memory operands: what they are, and where.
#include <linux/kvm.h>

#include <algorithm>

#include "decode/registers.hpp"
#include "decode/zydis.hpp"
#include "vpmu/bits.hpp"

// Zydis has hundreds of categories and mnemonics; these switches name the few that matter.
#pragma GCC diagnostic ignored "-Wswitch-enum"

namespace vmm {
namespace {

constexpr std::int8_t rip_register = 16;

std::int8_t register_number(ZydisRegister reg) {
  if (reg == ZYDIS_REGISTER_NONE) return -1;
  if (reg == ZYDIS_REGISTER_RIP || reg == ZYDIS_REGISTER_EIP) return rip_register;
  return ZydisRegisterGetId(ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, reg));
}

/// Whether the operand's address and size fit MemoryOperand: no vector of addresses, no state save area.
bool is_describable(const ZydisDecodedOperand& o) {
  constexpr unsigned max_bits = 64 * 8;
  if (o.type != ZYDIS_OPERAND_TYPE_MEMORY || o.mem.type == ZYDIS_MEMOP_TYPE_AGEN) return true;
  return o.mem.type == ZYDIS_MEMOP_TYPE_MEM && o.size <= max_bits;
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

bool flushes_line(const ZydisDecodedInstruction& i) {
  return i.mnemonic == ZYDIS_MNEMONIC_CLFLUSH || i.mnemonic == ZYDIS_MNEMONIC_CLFLUSHOPT;
}

bool touches_memory(const Decoded& d, const ZydisDecodedOperand& o) {
  const ZydisDecodedInstruction& i = d.in;
  const bool hint = i.meta.category == ZYDIS_CATEGORY_NOP || i.meta.category == ZYDIS_CATEGORY_WIDENOP ||
                    vpmu::exec::is_reserved_nop(d);
  return !hint && o.type == ZYDIS_OPERAND_TYPE_MEMORY &&
         (o.mem.type == ZYDIS_MEMOP_TYPE_MEM || o.mem.type == ZYDIS_MEMOP_TYPE_VSIB);
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

bool set_operands(const Decoded& d, Instruction& out) {
  bool all = true;
  for (const ZydisDecodedOperand& o : d.operands()) {
    all = all && is_describable(o);
    if (!touches_memory(d, o)) continue;
    if (d.in.meta.category == ZYDIS_CATEGORY_PREFETCH) {
      out.prefetched = memory_operand(d.in, o);
      out.prefetched->bytes = 1;
      continue;
    }
    if (d.in.mnemonic == ZYDIS_MNEMONIC_INVLPG) {
      out.invalidated = memory_operand(d.in, o);
      continue;
    }
    if (flushes_line(d.in)) {
      out.flushed = memory_operand(d.in, o);
      out.flushed->bytes = 1;
      continue;
    }
    if ((o.actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0) out.load = memory_operand(d.in, o);
    if ((o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0) out.store = memory_operand(d.in, o);
  }
  return all;
}

std::optional<Gather> gather(const Decoded& d) {
  const auto elements = vpmu::exec::gather_elements(d.in.mnemonic);
  if (!elements || d.in.encoding != ZYDIS_INSTRUCTION_ENCODING_VEX) return std::nullopt;
  const auto vector = [](ZydisRegister reg) { return static_cast<std::uint8_t>(ZydisRegisterGetId(reg)); };
  const unsigned widest = std::max(elements->data, elements->index);
  return Gather{.index = vector(d.all_operands[1].mem.index),
                .mask = vector(d.all_operands[2].reg.value),
                .index_element = elements->index,
                .element = elements->data,
                .count = static_cast<std::uint8_t>(d.in.avx.vector_length / 8 / widest)};
}

vpmu::GuestLinear operand_address(const MemoryOperand& m, const Instruction& instruction, vpmu::GuestLinear ip,
                                  const kvm_regs& regs, const kvm_sregs& sregs) {
  auto a = static_cast<std::uint64_t>(m.displacement);
  a += m.base == rip_register ? ip.value() + instruction.length : register_value(regs, m.base);
  a += register_value(regs, m.index) * m.scale;
  return vpmu::GuestLinear{cut(cut(a, m.address_bytes) + segment_base(sregs, m.segment), m.linear_bytes)};
}

}  // namespace vmm
