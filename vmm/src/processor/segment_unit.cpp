#include "processor/segment_unit.hpp"

#include <array>
#include <cstring>

#include "decode/registers.hpp"
#include "processor/system_operands.hpp"
#include "support/x86.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

using vpmu::bit;

constexpr unsigned ss = 2;  // number of this segment register

/// Types of system segments. SDM 3A table 3-2.
constexpr unsigned type_task_16 = 1, type_local_table = 2, type_task = 9, type_busy = 2;

/// The types that LAR and LSL know. SDM 2A tables 3-53, 3-54: call and task gates have no limit.
bool is_examinable(std::uint8_t type, bool is_long, bool for_limit) {
  constexpr unsigned in_both = 1U << 2U | 1U << 9U | 1U << 0xBU, gates = 1U << 4U | 1U << 5U | 1U << 0xCU,
                     gates_of_long_mode = 1U << 0xCU, tasks_16 = 1U << 1U | 1U << 3U;
  unsigned types = in_both | (is_long ? 0U : tasks_16);
  if (!for_limit) types |= is_long ? gates_of_long_mode : gates;
  return (types >> type & 1U) != 0;
}

}  // namespace

SegmentRegister segment_of_base_msr(std::uint32_t msr) {
  if (msr == vpmu::msr::IA32_FS_BASE.value()) return &kvm_sregs::fs;
  return msr == vpmu::msr::IA32_GS_BASE.value() ? &kvm_sregs::gs : nullptr;
}

// SDM 2A LGDT: a 24-bit base with 16-bit operands, 64-bit in 64-bit code, otherwise 32-bit.
SystemResult SegmentUnit::load_table(kvm_dtable& table, const SystemInstruction& i, std::uint64_t operand) {
  std::array<std::byte, 10> bytes{};
  const std::size_t base_bytes = is_64_bit_code(s_->sregs) ? 8 : i.bytes == 2 ? 3 : 4;
  const auto read = std::span{bytes}.first(sizeof(std::uint16_t) + base_bytes);
  if (const auto fault = view_->read_current(vpmu::GuestLinear{operand}, read)) return Raised{page_fault(*s_, *fault)};
  std::uint16_t limit{};
  std::uint64_t base{};
  std::memcpy(&limit, bytes.data(), sizeof limit);
  std::memcpy(&base, bytes.data() + sizeof limit, sizeof base);
  if (!vpmu::is_canonical(base, 48)) return raised_gp;
  table.limit = limit;
  table.base = base;
  return Completed{};
}

SystemResult SegmentUnit::store_table(const kvm_dtable& table, std::uint64_t operand) {
  std::array<std::byte, 10> bytes{};
  std::memcpy(bytes.data(), &table.limit, sizeof table.limit);
  std::memcpy(bytes.data() + sizeof table.limit, &table.base, sizeof table.base);
  const auto written = std::span{bytes}.first(is_64_bit_code(s_->sregs) ? bytes.size() : 6);
  if (const auto fault = view_->write_current(vpmu::GuestLinear{operand}, written))
    return Raised{page_fault(*s_, *fault)};
  return Completed{};
}

// SDM 2A LTR.
SystemResult SegmentUnit::load_task(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  if (is_real_mode(s_->sregs)) return raised_ud;
  std::uint16_t selector{};
  if (const auto fault = fetch_selector(*s_, *view_, i, operand, selector)) return Raised{*fault};
  const bool is_long = is_long_mode(s_->sregs);
  const unsigned types = 1U << type_task | (is_long ? 0U : 1U << type_task_16);
  Descriptor d;
  if (const auto fault = fetch_system_segment(selector, types, d)) return Raised{*fault};
  std::uint64_t word{};
  if (const auto fault = view_->read(d.at, std::as_writable_bytes(std::span{&word, 1})))
    return Raised{page_fault(*s_, *fault)};
  word |= bit(41);  // busy
  if (const auto fault = view_->write(d.at, std::as_bytes(std::span{&word, 1}))) return Raised{page_fault(*s_, *fault)};
  d.segment.type |= type_busy;
  s_->sregs.tr = d.segment;
  return Completed{};
}

// SDM 2A LLDT.
SystemResult SegmentUnit::load_local_table(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  if (is_real_mode(s_->sregs)) return raised_ud;
  std::uint16_t selector{};
  if (const auto fault = fetch_selector(*s_, *view_, i, operand, selector)) return Raised{*fault};
  Descriptor d;
  if ((selector & ~3U) == 0)
    d.segment.selector = selector, d.segment.unusable = 1;
  else if (const auto fault = fetch_system_segment(selector, 1U << type_local_table, d))
    return Raised{*fault};
  s_->sregs.ldt = d.segment;
  return Completed{};
}

/// The descriptor of a TSS or an LDT, of one of `types`, from the GDT. In IA-32e mode it has 16 bytes: SDM 3A figures
/// 3-10, 7-4.
std::optional<Exception> SegmentUnit::fetch_system_segment(std::uint16_t selector, unsigned types, Descriptor& d) {
  constexpr unsigned local = 4;
  if ((selector & local) != 0) return about(x86::vector::GP, selector);
  if (const auto fault = fetch_descriptor(*s_, *view_, selector, d)) return fault;
  if (d.segment.s != 0 || (types >> d.segment.type & 1U) == 0) return about(x86::vector::GP, selector);
  std::uint64_t high{};
  if (is_long_mode(s_->sregs)) {
    if ((selector & ~7U) + 15 > s_->sregs.gdt.limit) return about(x86::vector::GP, selector);
    if (const auto fault = view_->read(d.at + sizeof high, std::as_writable_bytes(std::span{&high, 1})))
      return page_fault(*s_, *fault);
    const bool has_type = vpmu::Bits<44, 40>::get(high) != 0;
    d.segment.base |= high << 32;
    if (has_type || !vpmu::is_canonical(d.segment.base, 48)) return about(x86::vector::GP, selector);
  }
  if (d.segment.present == 0) return about(x86::vector::NP, selector);
  return std::nullopt;
}

// SDM 2A LAR, LSL, 2B VERR.
SystemResult SegmentUnit::examine_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  if (is_real_mode(s_->sregs)) return raised_ud;
  std::uint16_t selector{};
  if (const auto fault = fetch_selector(*s_, *view_, i, operand, selector)) return Raised{*fault};
  const DescriptorRead read = read_descriptor(*view_, s_->sregs, selector);
  if (read.fault) return Raised{page_fault(*s_, *read.fault)};
  const kvm_segment found = read.found ? read.found->segment : kvm_segment{};
  const unsigned cpl = cpl_of(s_->sregs);
  const bool verifies = i.op == SystemOp::verr || i.op == SystemOp::verw;
  bool valid = read.found && (is_conforming(found) || (found.dpl >= cpl && found.dpl >= (selector & 3U)));
  if (found.s == 0)
    valid = valid && !verifies && is_examinable(found.type, is_long_mode(s_->sregs), i.op == SystemOp::lsl);
  if (i.op == SystemOp::verr) valid = valid && is_readable(found);
  if (i.op == SystemOp::verw) valid = valid && is_writable(found);
  s_->regs.rflags = valid ? s_->regs.rflags | x86::rflags::ZF::mask : s_->regs.rflags & ~x86::rflags::ZF::mask;
  if (!valid || verifies) return Completed{};
  std::uint64_t value = found.limit;
  if (i.op == SystemOp::lar)
    value = std::uint64_t{found.type} << 8 | std::uint64_t{found.s} << 12 | std::uint64_t{found.dpl} << 13 |
            std::uint64_t{found.present} << 15 | std::uint64_t{found.avl} << 20 | std::uint64_t{found.l} << 21 |
            std::uint64_t{found.db} << 22 | std::uint64_t{found.g} << 23;
  __u64& to = s_->regs.*gpr_fields[i.special % gpr_fields.size()];
  to = i.bytes == 2 ? (to & ~0xFFFFULL) | (value & 0xFFFF) : value;
  return Completed{};
}

kvm_segment& SegmentUnit::segment(unsigned number) {
  kvm_sregs& s = s_->sregs;
  const std::array<kvm_segment*, 6> all{&s.es, &s.cs, &s.ss, &s.ds, &s.fs, &s.gs};
  return *all[number % all.size()];
}

SystemResult SegmentUnit::write_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  constexpr unsigned cs = 1;
  if (i.special == cs || i.special > 5) return raised_ud;
  std::uint16_t selector{};
  if (const auto fault = fetch_selector(*s_, *view_, i, operand, selector)) return Raised{*fault};
  return load_segment(i.special, selector);
}

// By MOV or POP. SDM 3A 6.8.3: a load of SS blocks events until after the next instruction.
SystemResult SegmentUnit::load_segment(unsigned number, std::uint16_t selector) {
  SystemResult loaded = set_segment(number, selector);
  if (number == ss && std::holds_alternative<Completed>(loaded))
    s_->events.interrupt.shadow = KVM_X86_SHADOW_INT_MOV_SS;
  return loaded;
}

// SDM 2B MOV, 3A 5.6, 5.7.
SystemResult SegmentUnit::set_segment(unsigned number, std::uint16_t selector) {
  kvm_segment& to = segment(number);
  if (is_real_mode(s_->sregs)) {
    to = real_mode_segment(selector, false);
    return Completed{};
  }
  const unsigned cpl = cpl_of(s_->sregs), rpl = selector & 3U;
  if ((selector & ~3U) == 0) {
    if (number == ss && (cpl == 3 || rpl != cpl || !is_64_bit_code(s_->sregs))) return raised_gp;
    to = {};
    to.selector = selector;
    to.unusable = 1;
    to.dpl = static_cast<std::uint8_t>(number == ss ? cpl : 0);
    return Completed{};
  }
  if (number == ss) {
    if (const auto fault = stack_segment(*s_, *view_, selector, cpl, to)) return Raised{*fault};
    return Completed{};
  }
  Descriptor d;
  if (const auto fault = fetch_descriptor(*s_, *view_, selector, d)) return Raised{*fault};
  const bool may =
      is_readable(d.segment) && (is_conforming(d.segment) || (d.segment.dpl >= cpl && d.segment.dpl >= rpl));
  if (!may) return Raised{about(x86::vector::GP, selector)};
  if (d.segment.present == 0) return Raised{about(x86::vector::NP, selector)};
  if (const auto fault = mark_accessed(*s_, *view_, d)) return Raised{*fault};
  to = d.segment;
  return Completed{};
}

SystemResult SegmentUnit::push_segment(const SystemInstruction& i) {
  const std::uint64_t value = segment(i.special).selector;
  const std::uint64_t to = s_->regs.rsp - i.bytes;
  if (const auto fault =
          view_->write_current(stack_address(s_->sregs, to), std::as_bytes(std::span{&value, 1}).first(i.bytes)))
    return Raised{stack_exception(*s_, *fault)};
  set_stack_pointer(*s_, to);
  return Completed{};
}

SystemResult SegmentUnit::pop_segment(const SystemInstruction& i) {
  std::uint16_t selector{};
  const vpmu::GuestLinear from = stack_address(s_->sregs, s_->regs.rsp);
  if (const auto fault = view_->read_current(from, std::as_writable_bytes(std::span{&selector, 1})))
    return Raised{stack_exception(*s_, *fault)};
  SystemResult loaded = load_segment(i.special, selector);
  if (std::holds_alternative<Completed>(loaded)) set_stack_pointer(*s_, s_->regs.rsp + i.bytes);
  return loaded;
}

/// The pointer operand of a far branch, LDS or its like: in the instruction, or in memory.
std::optional<Exception> SegmentUnit::fetch_pointer(const SystemInstruction& i, std::optional<std::uint64_t> operand,
                                                    FarPointer& to) {
  to = {.selector = i.selector, .offset = i.offset};
  if (i.has_pointer) return std::nullopt;
  const vpmu::GuestLinear at{operand.value_or(0)};
  const auto offset = std::as_writable_bytes(std::span{&to.offset, 1}).first(i.bytes);
  if (const auto fault = view_->read_current(at, offset)) return page_fault(*s_, *fault);
  if (const auto fault = view_->read_current(at + i.bytes, std::as_writable_bytes(std::span{&to.selector, 1})))
    return page_fault(*s_, *fault);
  return std::nullopt;
}

SystemResult SegmentUnit::far_branch(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  FarPointer to;
  if (const auto fault = fetch_pointer(i, operand, to)) return Raised{*fault};
  const auto raised = i.op == SystemOp::far_jump ? far_jump(*s_, *view_, to)
                                                 : far_call(*s_, *view_, to, s_->regs.rip + i.length, i.bytes);
  if (raised) return Raised{*raised};
  return Completed{};
}

// SDM 2A LDS, LES, LFS, LGS, LSS. SS loaded so blocks no events: 3A 6.8.3 names MOV and POP only.
SystemResult SegmentUnit::load_far_pointer(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  FarPointer to;
  if (const auto fault = fetch_pointer(i, operand, to)) return Raised{*fault};
  SystemResult loaded = set_segment(i.special, to.selector);
  if (std::holds_alternative<Completed>(loaded)) set_gpr(*s_, i, to.offset);
  return loaded;
}

SystemResult SegmentUnit::read_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  return give(*s_, *view_, i, operand, segment(i.special).selector);
}

SystemResult SegmentUnit::far_return(const SystemInstruction& i) {
  return completed_unless(vmm::far_return(*s_, *view_, i.bytes, i.immediate));
}

SystemResult SegmentUnit::interrupt_return(const SystemInstruction& i) {
  return completed_unless(return_from_interrupt(*s_, *view_, i.bytes));
}

SystemResult SegmentUnit::swap_gs() {
  std::swap(s_->sregs.gs.base, s_->msrs[vpmu::msr::IA32_KERNEL_GS_BASE.value()]);
  return Completed{};
}

SystemResult SegmentUnit::call_system(const SystemInstruction& i) {
  // Intel's processors have SYSCALL in 64-bit code only.
  if (!x86::efer::SCE::test(s_->sregs.efer) || !is_64_bit_code(s_->sregs)) return raised_ud;
  system_call(*s_, s_->regs.rip + i.length);
  return Completed{};
}

SystemResult SegmentUnit::return_from_system(const SystemInstruction& i) {
  if (!x86::efer::SCE::test(s_->sregs.efer) || !is_64_bit_code(s_->sregs)) return raised_ud;
  return completed_unless(system_return(*s_, i.bytes == 8));
}

// SDM 2B RDFSBASE, 2D WRFSBASE.
SystemResult SegmentUnit::read_base(const SystemInstruction& i) {
  if (!x86::cr4::FSGSBASE::test(s_->sregs.cr4)) return raised_ud;
  set_gpr(*s_, i, segment(i.special).base);
  return Completed{};
}

SystemResult SegmentUnit::write_base(const SystemInstruction& i) {
  if (!x86::cr4::FSGSBASE::test(s_->sregs.cr4)) return raised_ud;
  const std::uint64_t value = i.bytes == 4 ? gpr(*s_, i) & 0xFFFF'FFFF : gpr(*s_, i);
  if (!vpmu::is_canonical(value, 48)) return raised_gp;
  segment(i.special).base = value;
  return Completed{};
}

// SDM 2A ARPL.
SystemResult SegmentUnit::adjust_privilege(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  if (is_real_mode(s_->sregs)) return raised_ud;
  std::uint16_t selector{};
  if (const auto fault = fetch_selector(*s_, *view_, i, operand, selector)) return Raised{*fault};
  const unsigned rpl = s_->regs.*gpr_fields[i.special % gpr_fields.size()] & 3U;
  const bool raises = (selector & 3U) < rpl;
  if (raises) {
    SystemResult given = give(*s_, *view_, i, operand, (selector & ~3U) | rpl);
    if (!std::holds_alternative<Completed>(given)) return given;
  }
  s_->regs.rflags = raises ? s_->regs.rflags | x86::rflags::ZF::mask : s_->regs.rflags & ~x86::rflags::ZF::mask;
  return Completed{};
}

}  // namespace vmm
