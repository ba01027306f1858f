#include "soft/system_unit.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "vcpu/registers.hpp"
#include "vcpu/segments.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;

constexpr std::uint64_t rflags_if = bit(9), rflags_rf = bit(16), rflags_iopl = 3ULL << 12;
constexpr std::uint64_t rflags_by_popf = 0x24'7FD5;
constexpr std::uint64_t cr0_pe = bit(0), cr0_pg = bit(31), cr0_et = bit(4);
constexpr std::uint64_t cr4_tsd = bit(2), cr4_known = 0x3'F7FF;
constexpr std::uint64_t efer_lma = bit(10), efer_known = 0xD01;
constexpr std::uint64_t dr6_fixed = 0xFFFF'0FF0, dr7_fixed = 0x400, dr7_gd = bit(13);
constexpr std::uint32_t msr_tsc = 0x10, msr_apic_base = 0x1B, msr_bios_sign_id = 0x8B, msr_mtrr_cap = 0xFE, msr_pat = 0x277,
                        msr_mtrr_def_type = 0x2FF, msr_efer = 0xC000'0080, msr_fs_base = 0xC000'0100, msr_gs_base = 0xC000'0101,
                        msr_kernel_gs_base = 0xC000'0102;
constexpr std::array kept_here{msr_bios_sign_id, msr_mtrr_cap, msr_pat, msr_mtrr_def_type, msr_kernel_gs_base};

constexpr Raised gp{general_protection};
constexpr Raised ud{{.vector = vector_ud, .error_code = std::nullopt}};
Raised gp_selector(std::uint16_t selector) { return Raised{{.vector = vector_gp, .error_code = selector & ~3U}}; }

std::uint64_t edx_eax(const kvm_regs& r) { return (r.rdx & 0xFFFF'FFFF) << 32 | (r.rax & 0xFFFF'FFFF); }

/// For CPL 0 only. SDM 3A 5.9.
constexpr std::array privileged{SystemOp::rdmsr, SystemOp::wrmsr, SystemOp::lgdt, SystemOp::lidt, SystemOp::ltr, SystemOp::read_control,
                                SystemOp::write_control, SystemOp::read_debug, SystemOp::write_debug, SystemOp::invlpg, SystemOp::wbinvd,
                                SystemOp::hlt};

}  // namespace

SystemResult SystemUnit::run(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  if (std::ranges::find(privileged, i.op) != privileged.end() && cpl_of(s_->sregs) != 0) return gp;
  const std::uint64_t next = s_->regs.rip + i.length;
  SystemResult result = execute(i, operand);
  const bool jumped = i.op == SystemOp::iret || i.op == SystemOp::far_return;
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
      s_->regs.rax = s_->tsc & 0xFFFF'FFFF;
      s_->regs.rdx = s_->tsc >> 32;
      return Completed{};
    case SystemOp::rdpmc: return CounterAccess{};
    case SystemOp::lgdt: return load_table(s_->sregs.gdt, operand.value_or(0));
    case SystemOp::lidt: return load_table(s_->sregs.idt, operand.value_or(0));
    case SystemOp::sgdt: return store_table(s_->sregs.gdt, operand.value_or(0));
    case SystemOp::sidt: return store_table(s_->sregs.idt, operand.value_or(0));
    case SystemOp::ltr: return load_task(i, operand);
    case SystemOp::read_segment: return read_segment(i, operand);
    case SystemOp::write_segment: return write_segment(i, operand);
    case SystemOp::read_control: return read_control(i);
    case SystemOp::write_control: return write_control(i);
    case SystemOp::read_debug: return read_debug(i);
    case SystemOp::write_debug: return write_debug(i);
    case SystemOp::invlpg:
    case SystemOp::wbinvd: return Completed{};  // the engine looks at every translation anew after each of these
    case SystemOp::in:
    case SystemOp::out: return port(i);
    case SystemOp::hlt: s_->halted = true; return Completed{};
    case SystemOp::cli: return interrupt_flag(false);
    case SystemOp::sti: return interrupt_flag(true);
    case SystemOp::popf: return popf();
    case SystemOp::far_return: return done_or(far_return(*s_, *view_));
    case SystemOp::iret: return done_or(return_from_interrupt(*s_, *view_));
    case SystemOp::int3: return Raised{{.vector = vector_bp, .error_code = std::nullopt}, EventKind::software};
    case SystemOp::int_n: return Raised{{.vector = i.immediate, .error_code = std::nullopt}, EventKind::software};
    case SystemOp::ud2: return ud;
  }
  return ud;
}

void SystemUnit::cpuid() {
  kvm_regs& r = s_->regs;
  const CpuidRegisters out = cpuid_->get(static_cast<std::uint32_t>(r.rax), static_cast<std::uint32_t>(r.rcx));
  r.rax = out.eax;
  r.rbx = out.ebx;
  r.rcx = out.ecx;
  r.rdx = out.edx;
}

__u64* SystemUnit::own_msr(std::uint32_t index) {
  switch (index) {
    case msr_tsc: return &s_->tsc;
    case msr_fs_base: return &s_->sregs.fs.base;
    case msr_gs_base: return &s_->sregs.gs.base;
    case msr_apic_base: return &s_->sregs.apic_base;
    case msr_efer: return &s_->sregs.efer;
    default: break;
  }
  for (const std::uint32_t kept : kept_here)
    if (kept == index) return &s_->msrs[index];
  return nullptr;
}

SystemResult SystemUnit::rdmsr() {
  const auto index = static_cast<std::uint32_t>(s_->regs.rcx);
  const __u64* const own = own_msr(index);
  if (own == nullptr) return MsrAccess{.index = index};
  s_->regs.rax = *own & 0xFFFF'FFFF;
  s_->regs.rdx = *own >> 32;
  return Completed{};
}

SystemResult SystemUnit::wrmsr() {
  const auto index = static_cast<std::uint32_t>(s_->regs.rcx);
  const std::uint64_t value = edx_eax(s_->regs);
  __u64* const own = own_msr(index);
  if (own == nullptr) return MsrAccess{.index = index, .value = value, .write = true};
  const bool is_base = index == msr_fs_base || index == msr_gs_base || index == msr_kernel_gs_base;
  if (is_base && !vpmu::is_canonical(value, 48)) return gp;
  if (index == msr_efer && (value & ~efer_known) != 0) return gp;
  *own = index == msr_efer ? value | efer_lma : value;
  return Completed{};
}

SystemResult SystemUnit::load_table(kvm_dtable& table, std::uint64_t operand) {
  std::array<std::byte, 10> bytes{};
  if (const auto fault = view_->read_current(vpmu::GuestLinear{operand}, bytes)) return Raised{page_fault(*s_, *fault)};
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
  if (const auto fault = view_->write_current(vpmu::GuestLinear{operand}, bytes)) return Raised{page_fault(*s_, *fault)};
  return Completed{};
}

/// The selector operand of LTR and of moves to segment registers: in a register unless it has an address.
std::optional<Exception> SystemUnit::fetch_selector(const SystemInstruction& i, std::optional<std::uint64_t> operand, std::uint16_t& selector) {
  selector = static_cast<std::uint16_t>(gpr(i));
  if (!operand) return std::nullopt;
  const auto fault = view_->read_current(vpmu::GuestLinear{*operand}, std::as_writable_bytes(std::span{&selector, 1}));
  return fault ? std::optional{page_fault(*s_, *fault)} : std::nullopt;
}

SystemResult SystemUnit::load_task(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  std::uint16_t selector{};
  if (const auto fault = fetch_selector(i, operand, selector)) return Raised{*fault};
  auto task = segment_of(*view_, s_->sregs, selector);
  constexpr unsigned available = 0x9, busy = 0xB;
  if (!task || task->s != 0 || task->type != available || task->present == 0) return gp_selector(selector);
  const vpmu::GuestLinear descriptor{s_->sregs.gdt.base + (selector & ~7U)};
  std::array<std::uint64_t, 2> words{};
  if (const auto fault = view_->read(descriptor, std::as_writable_bytes(std::span{words}))) return Raised{page_fault(*s_, *fault)};
  words[0] |= bit(41);  // busy
  if (const auto fault = view_->write(descriptor, std::as_bytes(std::span{words}.first(1)))) return Raised{page_fault(*s_, *fault)};
  task->base |= words[1] << 32;
  task->type = busy;
  s_->sregs.tr = *task;
  return Completed{};
}

__u64& SystemUnit::gpr(const SystemInstruction& i) { return s_->regs.*gpr_fields[i.gpr % gpr_fields.size()]; }

kvm_segment& SystemUnit::segment(unsigned number) {
  kvm_sregs& s = s_->sregs;
  const std::array<kvm_segment*, 6> all{&s.es, &s.cs, &s.ss, &s.ds, &s.fs, &s.gs};
  return *all[number % all.size()];
}

SystemResult SystemUnit::write_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  constexpr unsigned cs = 1, ss = 2;
  if (i.special == cs || i.special > 5) return ud;
  std::uint16_t selector{};
  if (const auto fault = fetch_selector(i, operand, selector)) return Raised{*fault};
  const unsigned cpl = cpl_of(s_->sregs);
  if ((selector & ~3U) == 0) {
    if (i.special == ss && cpl == 3) return gp;
    kvm_segment& to = segment(i.special);
    to = {};
    to.selector = selector;
    to.unusable = 1;
    to.dpl = static_cast<std::uint8_t>(i.special == ss ? cpl : 0);
    return Completed{};
  }
  const auto loaded = segment_of(*view_, s_->sregs, selector);
  constexpr unsigned code_not_readable = 0xA;
  if (!loaded || loaded->s == 0 || (loaded->type & code_not_readable) == 8) return gp_selector(selector);
  if (i.special == ss && ((loaded->type & code_not_readable) != 2 || loaded->dpl != cpl)) return gp_selector(selector);
  if (loaded->present == 0) return Raised{{.vector = vector_np, .error_code = selector & ~3U}};
  segment(i.special) = *loaded;
  if (i.special == ss) s_->events.interrupt.shadow = KVM_X86_SHADOW_INT_MOV_SS;
  return Completed{};
}

SystemResult SystemUnit::read_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  const std::uint16_t selector = segment(i.special).selector;
  if (!operand) {
    __u64& to = gpr(i);
    to = i.bytes == 2 ? (to & ~0xFFFFULL) | selector : selector;
    return Completed{};
  }
  if (const auto fault = view_->write_current(vpmu::GuestLinear{*operand}, std::as_bytes(std::span{&selector, 1}))) return Raised{page_fault(*s_, *fault)};
  return Completed{};
}

SystemResult SystemUnit::write_control(const SystemInstruction& i) {
  const std::uint64_t value = gpr(i);
  switch (i.special) {
    case 0:
      if ((value & (cr0_pe | cr0_pg)) != (cr0_pe | cr0_pg) || value >> 32 != 0) return gp;  // leaves 64-bit mode: not here
      s_->sregs.cr0 = value | cr0_et;
      return Completed{};
    case 2: s_->sregs.cr2 = value; return Completed{};
    case 3: s_->sregs.cr3 = value; return Completed{};
    case 4:
      if ((value & ~cr4_known) != 0 || ((value ^ s_->sregs.cr4) & bit(5)) != 0) return gp;
      s_->sregs.cr4 = value;
      return Completed{};
    case 8: s_->apic.write(0x80, static_cast<std::uint32_t>(value & 0xF) << 4); return Completed{};
    default: return ud;
  }
}

SystemResult SystemUnit::read_control(const SystemInstruction& i) {
  __u64& to = gpr(i);
  switch (i.special) {
    case 0: to = s_->sregs.cr0; return Completed{};
    case 2: to = s_->sregs.cr2; return Completed{};
    case 3: to = s_->sregs.cr3; return Completed{};
    case 4: to = s_->sregs.cr4; return Completed{};
    case 8: to = s_->apic.read(0x80) >> 4 & 0xF; return Completed{};
    default: return ud;
  }
}

// SDM 3B 17.2: DR4 and DR5 are DR6 and DR7.
SystemResult SystemUnit::write_debug(const SystemInstruction& i) {
  const std::uint64_t value = gpr(i);
  if ((s_->debug.dr7 & dr7_gd) != 0) return Raised{{.vector = vector_db, .error_code = std::nullopt}};
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
  if ((s_->debug.dr7 & dr7_gd) != 0) return Raised{{.vector = vector_db, .error_code = std::nullopt}};
  gpr(i) = i.special < 4 ? s_->debug.db[i.special] : i.special % 2 == 0 ? s_->debug.dr6 | dr6_fixed : s_->debug.dr7 | dr7_fixed;
  return Completed{};
}

// SDM 1 18.5.1: no I/O permission bitmap here, so IOPL decides.
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

SystemResult SystemUnit::popf() {
  std::uint64_t value{};
  if (const auto fault = view_->read_current(vpmu::GuestLinear{s_->regs.rsp}, std::as_writable_bytes(std::span{&value, 1})))
    return Raised{page_fault(*s_, *fault)};
  std::uint64_t loadable = rflags_by_popf;
  const unsigned cpl = cpl_of(s_->sregs);
  if (cpl != 0) loadable &= ~rflags_iopl;
  if (cpl > (s_->regs.rflags & rflags_iopl) >> 12) loadable &= ~rflags_if;
  s_->regs.rflags = (s_->regs.rflags & ~(loadable | rflags_rf)) | (value & loadable);
  s_->regs.rsp += sizeof value;
  return Completed{};
}

}  // namespace vmm
