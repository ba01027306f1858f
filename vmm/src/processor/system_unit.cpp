#include "processor/system_unit.hpp"

#include "decode/registers.hpp"
#include "processor/far_transfer.hpp"
#include "processor/system_operands.hpp"
#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm {

SystemResult SystemUnit::run(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  return run_instruction(*s_, i, [&] { return execute(i, operand); });
}

SystemResult SystemUnit::execute(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  switch (i.op) {
    case SystemOp::cpuid: give_cpuid(); return Completed{};
    case SystemOp::rdmsr: return rdmsr();
    case SystemOp::wrmsr: return wrmsr();
    case SystemOp::rdtsc: return rdtsc();
    case SystemOp::rdpmc: return CounterAccess{};
    case SystemOp::smsw: return give(*s_, *view_, i, operand, s_->sregs.cr0);
    case SystemOp::lmsw: return load_machine_status(i, operand);
    case SystemOp::clts: s_->sregs.cr0 &= ~x86::cr0::TS::mask; return Completed{};
    case SystemOp::read_control: return read_control(i);
    case SystemOp::write_control: return write_control(i);
    case SystemOp::read_debug: return read_debug(i);
    case SystemOp::write_debug: return write_debug(i);
    case SystemOp::invpcid: return invalidate_by_pcid(i, operand.value_or(0));
    case SystemOp::invlpg:
    case SystemOp::wbinvd: return Completed{};  // the engine drops all translations after each of these
    case SystemOp::hlt: s_->halted = true; return Completed{};
    case SystemOp::ud: return raised_ud;
    case SystemOp::xsetbv: return xsetbv();
    case SystemOp::xgetbv: return xgetbv();
    case SystemOp::rdrand:
    case SystemOp::rdseed: return give_random(i);
    case SystemOp::in:
    case SystemOp::out:
    case SystemOp::ins:
    case SystemOp::outs: return ports_.begin(i, operand);
    case SystemOp::cli: return programs_.interrupt_flag(false);
    case SystemOp::sti: return programs_.interrupt_flag(true);
    case SystemOp::popf: return programs_.popf(i.bytes);
    case SystemOp::int3: return Raised{{.vector = x86::vector::BP, .error_code = std::nullopt}, EventKind::software};
    case SystemOp::int1: return Raised{{.vector = x86::vector::DB, .error_code = std::nullopt}, EventKind::trap};
    case SystemOp::int_n:
      return Raised{{.vector = static_cast<std::uint8_t>(i.immediate), .error_code = std::nullopt},
                    EventKind::software};
    case SystemOp::into: return programs_.interrupt_on_overflow();
    case SystemOp::bound: return programs_.check_bounds(i, operand.value_or(0));
    case SystemOp::enter: return programs_.enter_frame(i);
    case SystemOp::lgdt: return segments_.load_table(s_->sregs.gdt, i, operand.value_or(0));
    case SystemOp::lidt: return segments_.load_table(s_->sregs.idt, i, operand.value_or(0));
    case SystemOp::sgdt: return segments_.store_table(s_->sregs.gdt, operand.value_or(0));
    case SystemOp::sidt: return segments_.store_table(s_->sregs.idt, operand.value_or(0));
    case SystemOp::ltr: return segments_.load_task(i, operand);
    case SystemOp::lldt: return segments_.load_local_table(i, operand);
    case SystemOp::str: return give(*s_, *view_, i, operand, s_->sregs.tr.selector);
    case SystemOp::sldt: return give(*s_, *view_, i, operand, s_->sregs.ldt.selector);
    case SystemOp::lar:
    case SystemOp::lsl:
    case SystemOp::verr:
    case SystemOp::verw: return segments_.examine_segment(i, operand);
    case SystemOp::arpl: return segments_.adjust_privilege(i, operand);
    case SystemOp::read_segment: return segments_.read_segment(i, operand);
    case SystemOp::write_segment: return segments_.write_segment(i, operand);
    case SystemOp::push_segment: return segments_.push_segment(i);
    case SystemOp::pop_segment: return segments_.pop_segment(i);
    case SystemOp::load_far_pointer: return segments_.load_far_pointer(i, operand);
    case SystemOp::far_jump:
    case SystemOp::far_call: return segments_.far_branch(i, operand);
    case SystemOp::far_return: return segments_.far_return(i);
    case SystemOp::iret: return segments_.interrupt_return(i);
    case SystemOp::syscall: return segments_.call_system(i);
    case SystemOp::sysret: return segments_.return_from_system(i);
    case SystemOp::sysenter: return completed_unless(system_enter(*s_));
    case SystemOp::sysexit: return completed_unless(system_exit(*s_, i.bytes == 8));
    case SystemOp::swapgs: return segments_.swap_gs();
    case SystemOp::read_base: return segments_.read_base(i);
    case SystemOp::write_base: return segments_.write_base(i);
  }
  return raised_ud;
}

void SystemUnit::give_cpuid() {
  kvm_regs& r = s_->regs;
  const CpuidRegisters out = cpuid(static_cast<std::uint32_t>(r.rax), static_cast<std::uint32_t>(r.rcx));
  r.rax = out.eax;
  r.rbx = out.ebx;
  r.rcx = out.ecx;
  r.rdx = out.edx;
}

SystemResult SystemUnit::rdtsc() {
  if (x86::cr4::TSD::test(s_->sregs.cr4) && cpl_of(s_->sregs) != 0) return raised_gp;
  set_edx_eax(s_->regs, interrupts_->time().tsc());
  return Completed{};
}

SystemResult SystemUnit::rdmsr() {
  const auto index = static_cast<std::uint32_t>(s_->regs.rcx);
  const vpmu::MsrReadResult own = msrs_->read(index);
  if (own.status == vpmu::MsrStatus::unknown) return MsrAccess{.index = index};
  if (own.status == vpmu::MsrStatus::gp) return raised_gp;
  set_edx_eax(s_->regs, own.value);
  return Completed{};
}

SystemResult SystemUnit::wrmsr() {
  const auto index = static_cast<std::uint32_t>(s_->regs.rcx);
  const std::uint64_t value = edx_eax(s_->regs);
  switch (msrs_->write(index, value)) {
    case vpmu::MsrStatus::ok: return Completed{};
    case vpmu::MsrStatus::gp: return raised_gp;
    case vpmu::MsrStatus::unknown: break;
  }
  return MsrAccess{.index = index, .value = value, .write = true};
}

// SDM 2A LMSW: can set PE, but not clear it.
SystemResult SystemUnit::load_machine_status(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  std::uint16_t value{};
  if (const auto fault = fetch_selector(*s_, *view_, i, operand, value)) return Raised{*fault};
  return write_cr0((s_->sregs.cr0 & ~0xEULL) | (value & 0xFU));
}

SystemResult SystemUnit::write_control(const SystemInstruction& i) {
  const std::uint64_t value = gpr(*s_, i) & vpmu::low_bits(is_64_bit_code(s_->sregs) ? 64 : 32);
  switch (i.special) {
    case 0: return write_cr0(value);
    case 2: s_->sregs.cr2 = value; return Completed{};
    case 3: return write_cr3(value);
    case 4: return write_cr4(value);
    case 8:
      if (!set_cr8(value)) return raised_gp;
      return Completed{};
    default: return raised_ud;
  }
}

// SDM 3A 4.1.2, 9.8.5: enabling paging activates IA-32e mode if EFER.LME is set. 4.10.1: with CR4.PCIDE it stays on.
SystemResult SystemUnit::write_cr0(std::uint64_t value) {
  kvm_sregs& s = s_->sregs;
  const bool pages = x86::cr0::PG::test(value);
  const bool was_paging = x86::cr0::PG::test(s.cr0);
  const bool contradicts = (value & (x86::cr0::NW::mask | x86::cr0::CD::mask)) == x86::cr0::NW::mask;
  if (value >> 32 != 0 || (pages && !x86::cr0::PE::test(value)) || contradicts) return raised_gp;
  if (!pages && was_paging && (is_64_bit_code(s) || x86::cr4::PCIDE::test(s.cr4))) return raised_gp;
  if (pages && !was_paging && x86::efer::LME::test(s.efer)) {
    if (!x86::cr4::PAE::test(s.cr4) || s.cs.l != 0) return raised_gp;
    s.efer |= x86::efer::LMA::mask;
  }
  if (!pages) s.efer &= ~x86::efer::LMA::mask;
  const bool changes_tables = ((value ^ s.cr0) & (x86::cr0::PG::mask | x86::cr0::NW::mask | x86::cr0::CD::mask)) != 0;
  if (pages && changes_tables && has_bad_table_pointers(s.cr3, s.cr4)) return raised_gp;
  s.cr0 = value | x86::cr0::ET::mask;
  return Completed{};
}

std::uint64_t SystemUnit::cr8() const { return interrupts_->read(apic::task_priority) >> 4 & 0xF; }

bool SystemUnit::set_cr8(std::uint64_t value) {
  if (value > 0xF) return false;
  interrupts_->write(apic::task_priority, static_cast<std::uint32_t>(value) << 4);
  return true;
}

SystemResult SystemUnit::read_control(const SystemInstruction& i) {
  __u64& to = gpr(*s_, i);
  switch (i.special) {
    case 0: to = s_->sregs.cr0; return Completed{};
    case 2: to = s_->sregs.cr2; return Completed{};
    case 3: to = s_->sregs.cr3; return Completed{};
    case 4: to = s_->sregs.cr4; return Completed{};
    case 8: to = cr8(); return Completed{};
    default: return raised_ud;
  }
}

/// The fault of a MOV to or from a debug register. SDM 3B 17.2.2: DR4 and DR5 are DR6 and DR7, unless CR4.DE is set.
/// 17.2.3: DR7.GD.
std::optional<Raised> SystemUnit::debug_fault(const SystemInstruction& i) {
  if (x86::cr4::DE::test(s_->sregs.cr4) && (i.special == 4 || i.special == 5)) return raised_ud;
  if (!x86::dr7::GD::test(s_->debug.dr7)) return std::nullopt;
  s_->debug.dr6 |= x86::dr6::BD::mask;
  return Raised{{.vector = x86::vector::DB, .error_code = std::nullopt}};
}

SystemResult SystemUnit::write_debug(const SystemInstruction& i) {
  const std::uint64_t value = gpr(*s_, i);
  if (const auto fault = debug_fault(i)) return *fault;
  if (i.special < 4) {
    s_->debug.db[i.special] = value;
    return Completed{};
  }
  if (value >> 32 != 0) return raised_gp;
  if (i.special % 2 == 0)
    s_->debug.dr6 = value | x86::dr6::fixed;
  else
    s_->debug.dr7 = value | x86::dr7::fixed;
  return Completed{};
}

SystemResult SystemUnit::read_debug(const SystemInstruction& i) {
  if (const auto fault = debug_fault(i)) return *fault;
  gpr(*s_, i) = i.special < 4        ? s_->debug.db[i.special]
                : i.special % 2 == 0 ? s_->debug.dr6 | x86::dr6::fixed
                                     : s_->debug.dr7 | x86::dr7::fixed;
  return Completed{};
}

}  // namespace vmm
