#include "processor/system_unit.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "decode/registers.hpp"
#include "processor/far_transfer.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;

constexpr std::uint64_t rflags_if = bit(9), rflags_rf = bit(16), rflags_iopl = 3ULL << 12;
constexpr std::uint64_t rflags_by_popf = 0x24'7FD5;
constexpr std::uint64_t cr0_pe = bit(0), cr0_pg = bit(31), cr0_et = bit(4);
constexpr std::uint64_t cr4_tsd = bit(2), cr4_pae = bit(5);
constexpr std::uint64_t cr0_ts = bit(3), efer_sce = bit(0);
constexpr std::uint64_t cr4_de = bit(3), dr6_fixed = 0xFFFF'0FF0, dr6_bd = bit(13), dr7_fixed = 0x400;
constexpr std::uint32_t msr_kernel_gs_base = 0xC000'0102;

constexpr Raised gp{general_protection};
constexpr Raised ud{{.vector = vector_ud, .error_code = std::nullopt}};

std::uint64_t edx_eax(const kvm_regs& r) { return (r.rdx & 0xFFFF'FFFF) << 32 | (r.rax & 0xFFFF'FFFF); }

/// Instructions for CPL 0 only. SDM 3A 5.9.
constexpr std::array privileged{
    SystemOp::rdmsr,  SystemOp::wrmsr,        SystemOp::lgdt,          SystemOp::lidt,       SystemOp::ltr,
    SystemOp::lldt,   SystemOp::read_control, SystemOp::write_control, SystemOp::read_debug, SystemOp::write_debug,
    SystemOp::clts,   SystemOp::lmsw,         SystemOp::invlpg,        SystemOp::wbinvd,     SystemOp::hlt,
    SystemOp::sysret, SystemOp::sysexit,      SystemOp::swapgs,        SystemOp::xsetbv};
/// Instructions that set RIP themselves.
constexpr std::array branches{SystemOp::iret,    SystemOp::far_jump, SystemOp::far_call, SystemOp::far_return,
                              SystemOp::syscall, SystemOp::sysret,   SystemOp::sysenter, SystemOp::sysexit};

}  // namespace

SystemResult SystemUnit::run(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  if (std::ranges::find(privileged, i.op) != privileged.end() && cpl_of(s_->sregs) != 0) return gp;
  const std::uint64_t next = s_->regs.rip + i.length;
  SystemResult result = execute(i, operand);
  const bool jumped = std::ranges::find(branches, i.op) != branches.end();
  const auto* raised = std::get_if<Raised>(&result);
  const bool trap = raised != nullptr && raised->kind != EventKind::fault;
  if ((std::holds_alternative<Completed>(result) && !jumped) || trap) s_->regs.rip = next;
  return result;
}

SystemResult SystemUnit::execute(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  const auto done_or = [](const std::optional<Exception>& e) -> SystemResult {
    if (e) return Raised{*e};
    return Completed{};
  };
  switch (i.op) {
    case SystemOp::cpuid: cpuid(); return Completed{};
    case SystemOp::rdmsr: return rdmsr();
    case SystemOp::wrmsr: return wrmsr();
    case SystemOp::rdtsc:
      if ((s_->sregs.cr4 & cr4_tsd) != 0 && cpl_of(s_->sregs) != 0) return gp;
      s_->regs.rax = interrupts_->time().tsc() & 0xFFFF'FFFF;
      s_->regs.rdx = interrupts_->time().tsc() >> 32;
      return Completed{};
    case SystemOp::rdpmc: return CounterAccess{};
    case SystemOp::lgdt: return load_table(s_->sregs.gdt, i, operand.value_or(0));
    case SystemOp::lidt: return load_table(s_->sregs.idt, i, operand.value_or(0));
    case SystemOp::sgdt: return store_table(s_->sregs.gdt, operand.value_or(0));
    case SystemOp::sidt: return store_table(s_->sregs.idt, operand.value_or(0));
    case SystemOp::ltr: return load_task(i, operand);
    case SystemOp::lldt: return load_local_table(i, operand);
    case SystemOp::str: return give(i, operand, s_->sregs.tr.selector);
    case SystemOp::sldt: return give(i, operand, s_->sregs.ldt.selector);
    case SystemOp::smsw: return give(i, operand, s_->sregs.cr0);
    case SystemOp::lmsw: return load_machine_status(i, operand);
    case SystemOp::clts: s_->sregs.cr0 &= ~cr0_ts; return Completed{};
    case SystemOp::lar:
    case SystemOp::lsl:
    case SystemOp::verr:
    case SystemOp::verw: return examine_segment(i, operand);
    case SystemOp::syscall: return system_call(i);
    case SystemOp::sysret:
      if ((s_->sregs.efer & efer_sce) == 0 || !is_64_bit_code(s_->sregs)) return ud;
      return done_or(system_return(*s_, i.bytes == 8));
    case SystemOp::sysenter: return done_or(system_enter(*s_));
    case SystemOp::sysexit: return done_or(system_exit(*s_, i.bytes == 8));
    case SystemOp::swapgs: std::swap(s_->sregs.gs.base, s_->msrs[msr_kernel_gs_base]); return Completed{};
    case SystemOp::read_segment: return read_segment(i, operand);
    case SystemOp::write_segment: return write_segment(i, operand);
    case SystemOp::read_control: return read_control(i);
    case SystemOp::write_control: return write_control(i);
    case SystemOp::read_debug: return read_debug(i);
    case SystemOp::write_debug: return write_debug(i);
    case SystemOp::invlpg:
    case SystemOp::wbinvd: return Completed{};  // the engine drops all translations after each of these
    case SystemOp::in:
    case SystemOp::out: return port(i);
    case SystemOp::hlt: s_->halted = true; return Completed{};
    case SystemOp::cli: return interrupt_flag(false);
    case SystemOp::sti: return interrupt_flag(true);
    case SystemOp::popf: return popf(i.bytes);
    case SystemOp::far_jump:
    case SystemOp::far_call: return far_branch(i, operand);
    case SystemOp::far_return: return done_or(far_return(*s_, *view_, i.bytes, i.immediate));
    case SystemOp::iret: return done_or(return_from_interrupt(*s_, *view_, i.bytes));
    case SystemOp::push_segment: return push_segment(i);
    case SystemOp::pop_segment: return pop_segment(i);
    case SystemOp::int3: return Raised{{.vector = vector_bp, .error_code = std::nullopt}, EventKind::software};
    case SystemOp::int1: return Raised{{.vector = vector_db, .error_code = std::nullopt}, EventKind::trap};
    case SystemOp::int_n:
      return Raised{{.vector = static_cast<std::uint8_t>(i.immediate), .error_code = std::nullopt},
                    EventKind::software};
    case SystemOp::ud2: return ud;
    case SystemOp::xsetbv: return xsetbv();
    case SystemOp::xgetbv: return xgetbv();
    case SystemOp::read_base: return read_base(i);
    case SystemOp::write_base: return write_base(i);
    case SystemOp::rdrand:
    case SystemOp::rdseed: return give_random(i);
  }
  return ud;
}

SystemResult SystemUnit::rdmsr() {
  const auto index = static_cast<std::uint32_t>(s_->regs.rcx);
  const vpmu::MsrReadResult own = msrs_->read(index);
  if (own.status == vpmu::MsrStatus::unknown) return MsrAccess{.index = index};
  if (own.status == vpmu::MsrStatus::gp) return gp;
  s_->regs.rax = own.value & 0xFFFF'FFFF;
  s_->regs.rdx = own.value >> 32;
  return Completed{};
}

SystemResult SystemUnit::wrmsr() {
  const auto index = static_cast<std::uint32_t>(s_->regs.rcx);
  const std::uint64_t value = edx_eax(s_->regs);
  switch (msrs_->write(index, value)) {
    case vpmu::MsrStatus::ok: return Completed{};
    case vpmu::MsrStatus::gp: return gp;
    case vpmu::MsrStatus::unknown: break;
  }
  return MsrAccess{.index = index, .value = value, .write = true};
}

// SDM 2A LMSW: can set PE, but not clear it.
SystemResult SystemUnit::load_machine_status(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  std::uint16_t value{};
  if (const auto fault = fetch_selector(i, operand, value)) return Raised{*fault};
  return write_cr0((s_->sregs.cr0 & ~0xEULL) | (value & 0xFU));
}

SystemResult SystemUnit::system_call(const SystemInstruction& i) {
  // Intel's processors have SYSCALL in 64-bit code only.
  if ((s_->sregs.efer & efer_sce) == 0 || !is_64_bit_code(s_->sregs)) return ud;
  vmm::system_call(*s_, s_->regs.rip + i.length);
  return Completed{};
}

__u64& SystemUnit::gpr(const SystemInstruction& i) { return s_->regs.*gpr_fields[i.gpr % gpr_fields.size()]; }

/// Sets as much of the register as the instruction names; 32 bits clear the upper half. SDM 1 3.4.1.1.
void SystemUnit::set_gpr(const SystemInstruction& i, std::uint64_t value) {
  __u64& to = gpr(i);
  to = i.bytes == 2 ? (to & ~0xFFFFULL) | (value & 0xFFFF) : i.bytes == 4 ? value & 0xFFFF'FFFF : value;
}

/// Writes a 16-bit word to memory, or to as much of a register as the instruction names.
SystemResult SystemUnit::give(const SystemInstruction& i, std::optional<std::uint64_t> operand, std::uint64_t value) {
  if (!operand) {
    set_gpr(i, value);
    return Completed{};
  }
  const auto word = static_cast<std::uint16_t>(value);
  if (const auto fault = view_->write_current(vpmu::GuestLinear{*operand}, std::as_bytes(std::span{&word, 1})))
    return Raised{page_fault(*s_, *fault)};
  return Completed{};
}

SystemResult SystemUnit::write_control(const SystemInstruction& i) {
  const std::uint64_t value = gpr(i) & vpmu::low_bits(is_64_bit_code(s_->sregs) ? 64 : 32);
  switch (i.special) {
    case 0: return write_cr0(value);
    case 2: s_->sregs.cr2 = value; return Completed{};
    case 3: s_->sregs.cr3 = value; return Completed{};
    case 4: return write_cr4(value);
    case 8: interrupts_->write(apic::task_priority, static_cast<std::uint32_t>(value & 0xF) << 4); return Completed{};
    default: return ud;
  }
}

// SDM 3A 4.1.2, 9.8.5: enabling paging activates IA-32e mode if EFER.LME is set.
SystemResult SystemUnit::write_cr0(std::uint64_t value) {
  kvm_sregs& s = s_->sregs;
  const bool pages = (value & cr0_pg) != 0;
  const bool was_paging = (s.cr0 & cr0_pg) != 0;
  if (value >> 32 != 0 || (pages && (value & cr0_pe) == 0)) return gp;
  if (!pages && was_paging && is_64_bit_code(s)) return gp;
  if (pages && !was_paging && (s.efer & efer_lme) != 0) {
    if ((s.cr4 & cr4_pae) == 0 || s.cs.l != 0) return gp;
    s.efer |= efer_lma;
  }
  if (!pages) s.efer &= ~efer_lma;
  s.cr0 = value | cr0_et;
  return Completed{};
}

SystemResult SystemUnit::read_control(const SystemInstruction& i) {
  __u64& to = gpr(i);
  switch (i.special) {
    case 0: to = s_->sregs.cr0; return Completed{};
    case 2: to = s_->sregs.cr2; return Completed{};
    case 3: to = s_->sregs.cr3; return Completed{};
    case 4: to = s_->sregs.cr4; return Completed{};
    case 8: to = interrupts_->read(apic::task_priority) >> 4 & 0xF; return Completed{};
    default: return ud;
  }
}

/// The fault of a MOV to or from a debug register. SDM 3B 17.2.2: DR4 and DR5 are DR6 and DR7, unless CR4.DE is set.
/// 17.2.3: DR7.GD.
std::optional<Raised> SystemUnit::debug_fault(const SystemInstruction& i) {
  if ((s_->sregs.cr4 & cr4_de) != 0 && (i.special == 4 || i.special == 5)) return ud;
  if ((s_->debug.dr7 & dr7_gd) == 0) return std::nullopt;
  s_->debug.dr6 |= dr6_bd;
  return Raised{{.vector = vector_db, .error_code = std::nullopt}};
}

SystemResult SystemUnit::write_debug(const SystemInstruction& i) {
  const std::uint64_t value = gpr(i);
  if (const auto fault = debug_fault(i)) return *fault;
  if (i.special < 4) {
    s_->debug.db[i.special] = value;
    return Completed{};
  }
  if (value >> 32 != 0) return gp;
  if (i.special % 2 == 0)
    s_->debug.dr6 = value | dr6_fixed;
  else
    s_->debug.dr7 = value | dr7_fixed;
  return Completed{};
}

SystemResult SystemUnit::read_debug(const SystemInstruction& i) {
  if (const auto fault = debug_fault(i)) return *fault;
  gpr(i) = i.special < 4        ? s_->debug.db[i.special]
           : i.special % 2 == 0 ? s_->debug.dr6 | dr6_fixed
                                : s_->debug.dr7 | dr7_fixed;
  return Completed{};
}

// SDM 1 18.5.1: there is no I/O permission bitmap here, so IOPL decides.
SystemResult SystemUnit::port(const SystemInstruction& i) {
  if (cpl_of(s_->sregs) > (s_->regs.rflags & rflags_iopl) >> 12) return gp;
  const std::uint64_t at = i.by_dx ? s_->regs.rdx : i.immediate;
  return PortAccess{.port = static_cast<std::uint16_t>(at), .bytes = i.bytes, .write = i.op == SystemOp::out};
}

SystemResult SystemUnit::interrupt_flag(bool on) {
  if (cpl_of(s_->sregs) > (s_->regs.rflags & rflags_iopl) >> 12) return gp;
  if (on && (s_->regs.rflags & rflags_if) == 0) s_->events.interrupt.shadow = KVM_X86_SHADOW_INT_STI;
  s_->regs.rflags = on ? s_->regs.rflags | rflags_if : s_->regs.rflags & ~rflags_if;
  return Completed{};
}

// SDM 2B POPF: a 16-bit POPF leaves the upper bits unchanged.
SystemResult SystemUnit::popf(std::uint8_t bytes) {
  std::uint64_t value{};
  const auto popped = std::as_writable_bytes(std::span{&value, 1}).first(std::min<std::size_t>(bytes, sizeof value));
  if (const auto fault = view_->read_current(stack_address(s_->sregs, s_->regs.rsp), popped))
    return Raised{page_fault(*s_, *fault)};
  std::uint64_t loadable = rflags_by_popf & vpmu::low_bits(8U * static_cast<unsigned>(popped.size()));
  const unsigned cpl = cpl_of(s_->sregs);
  if (cpl != 0) loadable &= ~rflags_iopl;
  if (cpl > (s_->regs.rflags & rflags_iopl) >> 12) loadable &= ~rflags_if;
  s_->regs.rflags = (s_->regs.rflags & ~(loadable | rflags_rf)) | (value & loadable);
  set_stack_pointer(*s_, s_->regs.rsp + popped.size());
  return Completed{};
}

}  // namespace vmm
