// The system instructions that load segment registers and descriptor tables, and examine descriptors.
#include <array>
#include <cstring>

#include "decode/registers.hpp"
#include "processor/far_transfer.hpp"
#include "processor/system_unit.hpp"
#include "vcpu/segments.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;

constexpr unsigned ss = 2;  // number of this segment register
constexpr std::uint64_t rflags_zf = bit(6);

constexpr Raised gp{general_protection};
constexpr Raised ud{{.vector = vector_ud, .error_code = std::nullopt}};
Raised gp_selector(std::uint16_t selector) { return Raised{{.vector = vector_gp, .error_code = selector & ~3U}}; }

}  // namespace

// SDM 2A LGDT: a 24-bit base with 16-bit operands, 64-bit in 64-bit code, otherwise 32-bit.
SystemResult SystemUnit::load_table(kvm_dtable& table, const SystemInstruction& i, std::uint64_t operand) {
  std::array<std::byte, 10> bytes{};
  const std::size_t base_bytes = is_64_bit_code(s_->sregs) ? 8 : i.bytes == 2 ? 3 : 4;
  const auto read = std::span{bytes}.first(sizeof(std::uint16_t) + base_bytes);
  if (const auto fault = view_->read_current(vpmu::GuestLinear{operand}, read)) return Raised{page_fault(*s_, *fault)};
  std::uint16_t limit{};
  std::uint64_t base{};
  std::memcpy(&limit, bytes.data(), sizeof limit);
  std::memcpy(&base, bytes.data() + sizeof limit, sizeof base);
  if (!vpmu::is_canonical(base, 48)) return gp;
  table.limit = limit;
  table.base = base;
  return Completed{};
}

SystemResult SystemUnit::store_table(const kvm_dtable& table, std::uint64_t operand) {
  std::array<std::byte, 10> bytes{};
  std::memcpy(bytes.data(), &table.limit, sizeof table.limit);
  std::memcpy(bytes.data() + sizeof table.limit, &table.base, sizeof table.base);
  const auto written = std::span{bytes}.first(is_64_bit_code(s_->sregs) ? bytes.size() : 6);
  if (const auto fault = view_->write_current(vpmu::GuestLinear{operand}, written))
    return Raised{page_fault(*s_, *fault)};
  return Completed{};
}

/// The selector operand of LTR and of moves to segment registers: a register, unless the operand has an address.
std::optional<Exception> SystemUnit::fetch_selector(const SystemInstruction& i, std::optional<std::uint64_t> operand,
                                                    std::uint16_t& selector) {
  selector = static_cast<std::uint16_t>(gpr(i));
  if (!operand) return std::nullopt;
  const auto fault = view_->read_current(vpmu::GuestLinear{*operand}, std::as_writable_bytes(std::span{&selector, 1}));
  return fault ? std::optional{page_fault(*s_, *fault)} : std::nullopt;
}

SystemResult SystemUnit::load_task(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  constexpr unsigned available = 0x9;
  std::uint16_t selector{};
  if (const auto fault = fetch_selector(i, operand, selector)) return Raised{*fault};
  SystemResult loaded = load_system_segment(s_->sregs.tr, selector, available);
  if (!std::holds_alternative<Completed>(loaded)) return loaded;
  const vpmu::GuestLinear descriptor{s_->sregs.gdt.base + (selector & ~7U)};
  std::uint64_t word{};
  if (const auto fault = view_->read(descriptor, std::as_writable_bytes(std::span{&word, 1})))
    return Raised{page_fault(*s_, *fault)};
  word |= bit(41);  // busy
  if (const auto fault = view_->write(descriptor, std::as_bytes(std::span{&word, 1})))
    return Raised{page_fault(*s_, *fault)};
  s_->sregs.tr.type = 0xB;
  return loaded;
}

SystemResult SystemUnit::load_local_table(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  constexpr unsigned local_table = 0x2;
  std::uint16_t selector{};
  if (const auto fault = fetch_selector(i, operand, selector)) return Raised{*fault};
  if ((selector & ~3U) != 0) return load_system_segment(s_->sregs.ldt, selector, local_table);
  s_->sregs.ldt = {};
  s_->sregs.ldt.selector = selector;
  s_->sregs.ldt.unusable = 1;
  return Completed{};
}

/// A descriptor of 16 bytes in IA-32e mode. SDM 3A figure 3-10, 7-4.
SystemResult SystemUnit::load_system_segment(kvm_segment& to, std::uint16_t selector, unsigned type) {
  auto loaded = segment_of(*view_, s_->sregs, selector);
  if (!loaded || loaded->s != 0 || loaded->type != (type | 1))
    return gp_selector(selector);  // segment_of() sets the lowest bit of the type
  if (loaded->present == 0) return Raised{{.vector = vector_np, .error_code = selector & ~3U}};
  std::uint64_t high{};
  const vpmu::GuestLinear at{s_->sregs.gdt.base + (selector & ~7U) + sizeof high};
  if (is_long_mode(s_->sregs))
    if (const auto fault = view_->read(at, std::as_writable_bytes(std::span{&high, 1})))
      return Raised{page_fault(*s_, *fault)};
  loaded->base |= high << 32;
  loaded->type = static_cast<std::uint8_t>(type);
  to = *loaded;
  return Completed{};
}

/// LAR, LSL, VERR, VERW: for code and data segments; for any other, they report that access is not allowed. SDM 2A LAR,
/// LSL, 2B VERR.
SystemResult SystemUnit::examine_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  std::uint16_t selector{};
  if (const auto fault = fetch_selector(i, operand, selector)) return Raised{*fault};
  const auto found = segment_of(*view_, s_->sregs, selector);
  const unsigned cpl = cpl_of(s_->sregs);
  const bool code = found && (found->type & 8) != 0;
  const bool conforming = code && (found->type & 4) != 0;
  bool valid = found && found->s != 0 && (conforming || (found->dpl >= cpl && found->dpl >= (selector & 3U)));
  if (i.op == SystemOp::verr) valid = valid && (!code || (found->type & 2) != 0);
  if (i.op == SystemOp::verw) valid = valid && !code && (found->type & 2) != 0;
  s_->regs.rflags = valid ? s_->regs.rflags | rflags_zf : s_->regs.rflags & ~rflags_zf;
  if (!valid || i.op == SystemOp::verr || i.op == SystemOp::verw) return Completed{};
  std::uint64_t value = found->limit;
  if (i.op == SystemOp::lar)
    value = std::uint64_t{found->type} << 8 | std::uint64_t{found->s} << 12 | std::uint64_t{found->dpl} << 13 |
            std::uint64_t{found->present} << 15 | std::uint64_t{found->avl} << 20 | std::uint64_t{found->l} << 21 |
            std::uint64_t{found->db} << 22 | std::uint64_t{found->g} << 23;
  __u64& to = s_->regs.*gpr_fields[i.special % gpr_fields.size()];
  to = i.bytes == 2 ? (to & ~0xFFFFULL) | (value & 0xFFFF) : value;
  return Completed{};
}

kvm_segment& SystemUnit::segment(unsigned number) {
  kvm_sregs& s = s_->sregs;
  const std::array<kvm_segment*, 6> all{&s.es, &s.cs, &s.ss, &s.ds, &s.fs, &s.gs};
  return *all[number % all.size()];
}

SystemResult SystemUnit::write_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  constexpr unsigned cs = 1;
  if (i.special == cs || i.special > 5) return ud;
  std::uint16_t selector{};
  if (const auto fault = fetch_selector(i, operand, selector)) return Raised{*fault};
  return load_segment(i.special, selector);
}

// By MOV or POP. SDM 3A 6.8.3: a load of SS blocks events until after the next instruction.
SystemResult SystemUnit::load_segment(unsigned number, std::uint16_t selector) {
  SystemResult loaded = set_segment(number, selector);
  if (number == ss && std::holds_alternative<Completed>(loaded))
    s_->events.interrupt.shadow = KVM_X86_SHADOW_INT_MOV_SS;
  return loaded;
}

SystemResult SystemUnit::set_segment(unsigned number, std::uint16_t selector) {
  const unsigned cpl = cpl_of(s_->sregs);
  if (is_real_mode(s_->sregs)) {
    segment(number) = real_mode_segment(selector, false);
    return Completed{};
  }
  if ((selector & ~3U) == 0) {
    if (number == ss && (cpl == 3 || !is_64_bit_code(s_->sregs))) return gp;
    kvm_segment& to = segment(number);
    to = {};
    to.selector = selector;
    to.unusable = 1;
    to.dpl = static_cast<std::uint8_t>(number == ss ? cpl : 0);
    return Completed{};
  }
  const auto loaded = segment_of(*view_, s_->sregs, selector);
  constexpr unsigned code_not_readable = 0xA;
  if (!loaded || loaded->s == 0 || (loaded->type & code_not_readable) == 8) return gp_selector(selector);
  if (number == ss && ((loaded->type & code_not_readable) != 2 || loaded->dpl != cpl)) return gp_selector(selector);
  if (loaded->present == 0) return Raised{{.vector = vector_np, .error_code = selector & ~3U}};
  segment(number) = *loaded;
  return Completed{};
}

SystemResult SystemUnit::push_segment(const SystemInstruction& i) {
  const std::uint64_t value = segment(i.special).selector;
  const std::uint64_t to = s_->regs.rsp - i.bytes;
  if (const auto fault =
          view_->write_current(stack_address(s_->sregs, to), std::as_bytes(std::span{&value, 1}).first(i.bytes)))
    return Raised{page_fault(*s_, *fault)};
  set_stack_pointer(*s_, to);
  return Completed{};
}

SystemResult SystemUnit::pop_segment(const SystemInstruction& i) {
  std::uint16_t selector{};
  const vpmu::GuestLinear from = stack_address(s_->sregs, s_->regs.rsp);
  if (const auto fault = view_->read_current(from, std::as_writable_bytes(std::span{&selector, 1})))
    return Raised{page_fault(*s_, *fault)};
  SystemResult loaded = load_segment(i.special, selector);
  if (std::holds_alternative<Completed>(loaded)) set_stack_pointer(*s_, s_->regs.rsp + i.bytes);
  return loaded;
}

SystemResult SystemUnit::far_branch(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  FarPointer to{.selector = i.selector, .offset = i.offset};
  if (!i.has_pointer) {
    const vpmu::GuestLinear at{operand.value_or(0)};
    const auto offset = std::as_writable_bytes(std::span{&to.offset, 1}).first(i.bytes);
    if (const auto fault = view_->read_current(at, offset)) return Raised{page_fault(*s_, *fault)};
    if (const auto fault = view_->read_current(at + i.bytes, std::as_writable_bytes(std::span{&to.selector, 1})))
      return Raised{page_fault(*s_, *fault)};
  }
  const auto raised = i.op == SystemOp::far_jump ? far_jump(*s_, *view_, to)
                                                 : far_call(*s_, *view_, to, s_->regs.rip + i.length, i.bytes);
  if (raised) return Raised{*raised};
  return Completed{};
}

SystemResult SystemUnit::read_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  return give(i, operand, segment(i.special).selector);
}

}  // namespace vmm
