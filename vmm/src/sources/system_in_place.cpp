#include "sources/system_in_place.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "decode/registers.hpp"
#include "vcpu/guest_view.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr std::uint32_t msr_star = 0xC000'0081, msr_lstar = 0xC000'0082, msr_fmask = 0xC000'0084,
                        msr_fs_base = 0xC000'0100, msr_gs_base = 0xC000'0101, msr_kernel_gs_base = 0xC000'0102;

constexpr std::uint64_t rflags_tf = vpmu::bit(8);

/// Instructions that change only general registers, segments, RFLAGS, interrupt shadows and blocking, and translations.
constexpr std::array confined{
    SystemOp::read_segment, SystemOp::write_segment, SystemOp::cli,       SystemOp::sti,
    SystemOp::popf,         SystemOp::iret,          SystemOp::syscall,   SystemOp::sysret,
    SystemOp::swapgs,       SystemOp::verr,          SystemOp::verw,      SystemOp::lar,
    SystemOp::lsl,          SystemOp::invlpg,        SystemOp::read_base, SystemOp::write_base};

/// MSR writes that are passed on to the port's set_msr(): IA32_TSC_DEADLINE and the x2APIC's EOI.
constexpr std::array passed_on{0x6E0U, 0x80BU};

/// MOV to CR3 with no bit set that could be reserved: only address bits that every processor has, PCID, and bit 63. SDM
/// 3A 4.10.4.1.
bool loads_plain_cr3(const SystemInstruction& i, const kvm_regs& regs, const kvm_sregs& sregs) {
  constexpr unsigned least_physical_bits = 36;
  const std::uint64_t value = regs.*gpr_fields[i.gpr % gpr_fields.size()];
  const bool pcid = (sregs.cr4 & vpmu::bit(17)) != 0;
  const std::uint64_t allowed =
      vpmu::low_bits(least_physical_bits) & (pcid ? ~std::uint64_t{0} : ~std::uint64_t{0xFE7});
  return i.op == SystemOp::write_control && i.special == 3 && (value & ~(allowed | (pcid ? vpmu::bit(63) : 0))) == 0;
}

/// The MSRs that SYSCALL, SYSRET and SWAPGS use; the port holds them. A guest that runs one of these soon runs another.
constexpr std::array ports_msrs{msr_star, msr_lstar, msr_fmask, msr_kernel_gs_base};

bool needs_ports_msrs(SystemOp op) {
  return op == SystemOp::syscall || op == SystemOp::sysret || op == SystemOp::swapgs;
}

bool is_base_msr(std::uint32_t index) { return index == msr_fs_base || index == msr_gs_base; }

bool is_confined(const SystemInstruction& i, const kvm_regs& regs, const kvm_sregs& sregs) {
  if (i.op == SystemOp::rdmsr || i.op == SystemOp::wrmsr) return is_base_msr(static_cast<std::uint32_t>(regs.rcx));
  return std::ranges::find(confined, i.op) != confined.end() || loads_plain_cr3(i, regs, sregs);
}

bool is_passed_on(const SystemInstruction& i, const kvm_regs& regs, const kvm_sregs& sregs) {
  const auto index = static_cast<std::uint32_t>(regs.rcx);
  return i.op == SystemOp::wrmsr && cpl_of(sregs) == 0 && std::ranges::find(passed_on, index) != passed_on.end();
}

std::uint64_t edx_eax(const kvm_regs& regs) { return (regs.rdx & 0xFFFF'FFFF) << 32 | (regs.rax & 0xFFFF'FFFF); }

template <class T>
bool differ(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof a) != 0;
}

}  // namespace

SystemInPlace::SystemInPlace(GuestView& view, const vpmu::GenerationDesc& generation, OthersMsrs others)
    : view_{&view},
      unit_{state_, view, msrs_, interrupts_, no_cpuid_, no_features_},
      trapped_{vpmu::trap_ranges(generation)},
      others_{std::move(others)} {}

bool SystemInPlace::is_others(const SystemInstruction& i, std::uint32_t msr) const {
  if (!others_) return false;
  return (i.op == SystemOp::rdmsr && others_(KVM_MSR_FILTER_READ, msr)) ||
         (i.op == SystemOp::wrmsr && others_(KVM_MSR_FILTER_WRITE, msr));
}

bool SystemInPlace::is_trapped(std::uint32_t msr) const {
  return std::ranges::any_of(trapped_.all(), [&](const vpmu::MsrSpan& s) { return msr - s.first.value() < s.count; });
}

// MSR accesses only from ring 0: the port raises #GP for the others.
std::optional<SystemInPlace::Open::Kind> SystemInPlace::opens(const SystemInstruction& i, const kvm_regs& regs,
                                                              const kvm_sregs& sregs) const {
  if (i.op == SystemOp::rdpmc) return Open::Kind::rdpmc;
  if (cpl_of(sregs) != 0 || !is_trapped(static_cast<std::uint32_t>(regs.rcx))) return std::nullopt;
  if (i.op == SystemOp::rdmsr) return Open::Kind::rdmsr;
  if (i.op == SystemOp::wrmsr) return Open::Kind::wrmsr;
  return std::nullopt;
}

Result<SystemInPlace::Outcome> SystemInPlace::run(VcpuPort& port, const Instruction& i, kvm_regs& regs,
                                                  kvm_sregs& sregs) {
  const auto& system = i.system;
  if (!system) return Outcome::left;
  const auto index = static_cast<std::uint32_t>(regs.rcx);
  if (is_others(*system, index)) return Outcome::left;
  if (const auto kind = opens(*system, regs, sregs)) {
    open_ = {.kind = *kind, .length = system->length, .index = index};
    if (*kind == Open::Kind::wrmsr) open_.data = edx_eax(regs);
    return Outcome::exit;
  }
  if (is_passed_on(*system, regs, sregs)) return pass_on(port, *system, regs);
  // SYSRET loads TF from R11 (SDM 2B SYSRET): if TF is set there, the guest gets a trap at once.
  if (system->op == SystemOp::sysret && (regs.r11 & rflags_tf) != 0) return Outcome::left;
  if (!is_confined(*system, regs, sregs)) return Outcome::left;
  VMM_TRY(load(port, regs, sregs));
  if (needs_ports_msrs(system->op)) VMM_TRY(fetch(port));
  std::optional<std::uint64_t> operand;
  if (i.load || i.store)
    operand = operand_address(i.store ? *i.store : *i.load, i, vpmu::GuestLinear{regs.rip}, regs, sregs).value();
  if (!std::holds_alternative<Completed>(unit_.run(*system, operand))) return Outcome::left;
  swapped_gs_ |= system->op == SystemOp::swapgs;
  if (system->op == SystemOp::write_control) state_.sregs.cr3 &= ~vpmu::bit(63);
  VMM_TRY(store(port, regs, sregs));
  if (!changes_translations(*system)) return Outcome::done;
  dropped_translations_ = true;
  return Outcome::done_and_dropped;
}

/// The port refuses values that would fault.
Result<SystemInPlace::Outcome> SystemInPlace::pass_on(VcpuPort& port, const SystemInstruction& i, kvm_regs& regs) {
  if (!port.set_msr(static_cast<std::uint32_t>(regs.rcx), edx_eax(regs))) return Outcome::left;
  regs.rip += i.length;
  VMM_TRY(port.set_regs(regs));
  return Outcome::done_and_raised;
}

// The copies stay valid: a guest's write to one of these MSRs is run by the port, after leave().
Result<void> SystemInPlace::fetch(VcpuPort& port) {
  if (std::exchange(fetched_, true)) return {};
  std::array<std::uint64_t, ports_msrs.size()> values{};
  VMM_TRY(port.msrs(ports_msrs, values));
  for (std::size_t i = 0; i < values.size(); ++i) state_.msrs[ports_msrs[i]] = values[i];
  return {};
}

Result<void> SystemInPlace::leave(VcpuPort& port) {
  fetched_ = false;
  if (std::exchange(dropped_translations_, false)) VMM_TRY(port.forget_translations());
  return std::exchange(swapped_gs_, false) ? port.set_msr(msr_kernel_gs_base, state_.msrs[msr_kernel_gs_base])
                                           : Result<void>{};
}

Result<void> SystemInPlace::load(VcpuPort& port, const kvm_regs& regs, const kvm_sregs& sregs) {
  state_.regs = regs;
  state_.sregs = sregs;
  VMM_ASSIGN(state_.events, port.events());
  return {};
}

// Unchanged state is not written: for SREGS, KVM would check all translations again.
Result<void> SystemInPlace::store(VcpuPort& port, kvm_regs& regs, kvm_sregs& sregs) const {
  regs = state_.regs;
  VMM_TRY(port.set_regs(regs));
  if (differ(sregs, state_.sregs)) VMM_TRY(port.set_sregs(sregs = state_.sregs));
  VMM_ASSIGN(const kvm_vcpu_events events, port.events());
  if (differ(events, state_.events)) VMM_TRY(port.set_events(state_.events));
  return {};
}

Exit SystemInPlace::exit() {
  switch (open_.kind) {
    case Open::Kind::rdmsr: return MsrRead{open_.index, MsrReason::filter, {open_.data, open_.gp}};
    case Open::Kind::wrmsr: return MsrWrite{open_.index, open_.data, MsrReason::filter, {open_.data, open_.gp}};
    case Open::Kind::rdpmc: return CounterRead{open_.index, {open_.data, open_.gp}};
    case Open::Kind::none: break;
  }
  return Interrupted{};
}

Result<void> SystemInPlace::raise_gp(VcpuPort& port, kvm_regs& regs, kvm_sregs& sregs) {
  VMM_TRY(load(port, regs, sregs));
  if (deliver(state_, *view_, general_protection, EventKind::fault)) return store(port, regs, sregs);
  VMM_ASSIGN(kvm_vcpu_events events, port.events());
  events.exception.injected = 1;
  events.exception.nr = vector_gp;
  events.exception.has_error_code = 1;
  events.exception.error_code = 0;
  return port.set_events(events);
}

Result<bool> SystemInPlace::complete(VcpuPort& port, kvm_regs& regs, kvm_sregs& sregs) {
  const Open open = std::exchange(open_, {});
  if (open.gp != 0) {
    VMM_TRY(raise_gp(port, regs, sregs));
    return false;
  }
  if (open.kind != Open::Kind::wrmsr) {
    regs.rax = open.data & 0xFFFF'FFFF;
    regs.rdx = open.data >> 32;
  }
  regs.rip += open.length;
  VMM_TRY(port.set_regs(regs));
  return true;
}

}  // namespace vmm
