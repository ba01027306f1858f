#include "sources/system_in_place.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "decode/registers.hpp"
#include "processor/exceptions.hpp"
#include "processor/system_operands.hpp"
#include "support/x86.hpp"
#include "vcpu/guest_view.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

/// Instructions that change only general registers, segments, RFLAGS, interrupt shadows and blocking, and translations;
/// and the work of each.
struct Confined {
  using Work = SystemResult(SegmentUnit& segments, ProgramUnit& programs, const SystemInstruction& i,
                            std::optional<std::uint64_t> operand);
  SystemOp op{};
  Work* work{};
};
constexpr Confined::Work* examine = [](auto& segments, auto&, auto& i, auto operand) {
  return segments.examine_segment(i, operand);
};
constexpr std::array confined{
    Confined{SystemOp::read_segment,
             [](auto& segments, auto&, auto& i, auto operand) { return segments.read_segment(i, operand); }},
    Confined{SystemOp::write_segment,
             [](auto& segments, auto&, auto& i, auto operand) { return segments.write_segment(i, operand); }},
    Confined{SystemOp::cli, [](auto&, auto& programs, auto&, auto) { return programs.interrupt_flag(false); }},
    Confined{SystemOp::sti, [](auto&, auto& programs, auto&, auto) { return programs.interrupt_flag(true); }},
    Confined{SystemOp::popf, [](auto&, auto& programs, auto& i, auto) { return programs.popf(i.bytes); }},
    Confined{SystemOp::iret, [](auto& segments, auto&, auto& i, auto) { return segments.interrupt_return(i); }},
    Confined{SystemOp::syscall, [](auto& segments, auto&, auto& i, auto) { return segments.call_system(i); }},
    Confined{SystemOp::sysret, [](auto& segments, auto&, auto& i, auto) { return segments.return_from_system(i); }},
    Confined{SystemOp::swapgs, [](auto& segments, auto&, auto&, auto) { return segments.swap_gs(); }},
    Confined{SystemOp::verr, examine},
    Confined{SystemOp::verw, examine},
    Confined{SystemOp::lar, examine},
    Confined{SystemOp::lsl, examine},
    Confined{SystemOp::invlpg, [](auto&, auto&, auto&, auto) -> SystemResult { return Completed{}; }},
    Confined{SystemOp::read_base, [](auto& segments, auto&, auto& i, auto) { return segments.read_base(i); }},
    Confined{SystemOp::write_base, [](auto& segments, auto&, auto& i, auto) { return segments.write_base(i); }}};

/// MSR writes that are passed on to the back end's set_msr(): IA32_TSC_DEADLINE, and the x2APIC's EOI and LVTPC. The
/// handler of each timer interrupt and PMI has them; by a run of KVM they would cost more than the rest of the sample.
constexpr std::array passed_on{0x6E0U, 0x80BU, 0x834U};

std::uint32_t msr_of(const kvm_regs& regs) { return static_cast<std::uint32_t>(regs.rcx); }

bool uses_pcids(const kvm_sregs& sregs) { return x86::cr4::PCIDE::test(sregs.cr4); }

/// MOV to CR3 with no bit set that could be reserved: only address bits that every processor has, PCID, and bit 63. SDM
/// 3A 4.10.4.1.
bool loads_plain_cr3(const SystemInstruction& i, const kvm_regs& regs, const kvm_sregs& sregs) {
  constexpr unsigned min_physical_bits = 36;
  const std::uint64_t value = regs.*gpr_fields[i.gpr % gpr_fields.size()];
  const bool pcid = uses_pcids(sregs);
  const std::uint64_t allowed = vpmu::low_bits(min_physical_bits) & (pcid ? ~std::uint64_t{0} : ~std::uint64_t{0xFE7});
  return i.op == SystemOp::write_control && i.special == 3 &&
         (value & ~(allowed | (pcid ? x86::cr3::KEEPS::mask : 0))) == 0;
}

/// The MSRs that SYSCALL, SYSRET and SWAPGS use; the back end holds them. A guest that runs one of these soon runs
/// another.
constexpr std::array fetched_msrs{vpmu::msr::IA32_STAR.value(), vpmu::msr::IA32_LSTAR.value(),
                                  vpmu::msr::IA32_FMASK.value(), vpmu::msr::IA32_KERNEL_GS_BASE.value()};

bool uses_fetched_msrs(SystemOp op) {
  return op == SystemOp::syscall || op == SystemOp::sysret || op == SystemOp::swapgs;
}

bool is_confined(const SystemInstruction& i, const kvm_regs& regs, const kvm_sregs& sregs) {
  if (i.op == SystemOp::rdmsr || i.op == SystemOp::wrmsr) return segment_of_base_msr(msr_of(regs)) != nullptr;
  return std::ranges::find(confined, i.op, &Confined::op) != confined.end() || loads_plain_cr3(i, regs, sregs);
}

bool is_passed_on(const SystemInstruction& i, const kvm_regs& regs, const kvm_sregs& sregs) {
  const auto index = msr_of(regs);
  return i.op == SystemOp::wrmsr && cpl_of(sregs) == 0 && std::ranges::find(passed_on, index) != passed_on.end();
}

template <class T>
bool differ(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof a) != 0;
}

}  // namespace

SystemInPlace::SystemInPlace(GuestView& view, const vpmu::GenerationDesc& generation, ForeignMsrs others)
    : view_{&view},
      segments_{state_, view},
      programs_{state_, view},
      trapped_{vpmu::trap_ranges(generation)},
      others_{std::move(others)} {}

/// The work of an instruction that is_confined().
SystemResult SystemInPlace::execute(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  if (i.op == SystemOp::rdmsr) return read_base_msr();
  if (i.op == SystemOp::wrmsr) return write_base_msr();
  if (i.op == SystemOp::write_control) return load_cr3(i);
  return std::ranges::find(confined, i.op, &Confined::op)->work(segments_, programs_, i, operand);
}

/// The base that RDMSR reads and WRMSR writes.
__u64& SystemInPlace::base_by_msr() { return (state_.sregs.*segment_of_base_msr(msr_of(state_.regs))).base; }

SystemResult SystemInPlace::read_base_msr() {
  set_edx_eax(state_.regs, base_by_msr());
  return Completed{};
}

SystemResult SystemInPlace::write_base_msr() {
  const std::uint64_t value = edx_eax(state_.regs);
  if (!vpmu::is_canonical(value, 48)) return raised_gp;
  base_by_msr() = value;
  return Completed{};
}

/// MOV to CR3 of a value that loads_plain_cr3(). Bit 63 is not stored. SDM 3A 4.10.4.1.
SystemResult SystemInPlace::load_cr3(const SystemInstruction& i) {
  const std::uint64_t value = gpr(state_, i);
  state_.sregs.cr3 = uses_pcids(state_.sregs) ? value & ~x86::cr3::KEEPS::mask : value;
  return Completed{};
}

bool SystemInPlace::is_others(const SystemInstruction& i, std::uint32_t msr) const {
  if (!others_) return false;
  return (i.op == SystemOp::rdmsr && others_(KVM_MSR_FILTER_READ, msr)) ||
         (i.op == SystemOp::wrmsr && others_(KVM_MSR_FILTER_WRITE, msr));
}

bool SystemInPlace::is_trapped(std::uint32_t msr) const {
  return std::ranges::any_of(trapped_.all(), [&](const vpmu::MsrSpan& s) { return msr - s.first.value() < s.count; });
}

// MSR accesses only from ring 0: the back end raises #GP for the others.
std::optional<SystemInPlace::Pending::Kind> SystemInPlace::exit_of(const SystemInstruction& i, const kvm_regs& regs,
                                                                   const kvm_sregs& sregs) const {
  if (i.op == SystemOp::rdpmc) return Pending::Kind::rdpmc;
  if (cpl_of(sregs) != 0 || !is_trapped(msr_of(regs))) return std::nullopt;
  if (i.op == SystemOp::rdmsr) return Pending::Kind::rdmsr;
  if (i.op == SystemOp::wrmsr) return Pending::Kind::wrmsr;
  return std::nullopt;
}

Result<SystemInPlace::Outcome> SystemInPlace::run(VcpuBackend& backend, const Instruction& i, kvm_regs& regs,
                                                  kvm_sregs& sregs) {
  const auto& system = i.system;
  if (!system) return Outcome::left;
  const auto index = msr_of(regs);
  if (is_others(*system, index)) return Outcome::left;
  if (const auto kind = exit_of(*system, regs, sregs)) {
    pending_ = {.kind = *kind, .length = system->length, .index = index};
    if (*kind == Pending::Kind::wrmsr) pending_.data = edx_eax(regs);
    return Outcome::exit;
  }
  if (is_passed_on(*system, regs, sregs)) return pass_on(backend, *system, regs);
  // SYSRET loads TF from R11 (SDM 2B SYSRET): if TF is set there, the guest gets a trap at once.
  if (system->op == SystemOp::sysret && x86::rflags::TF::test(regs.r11)) return Outcome::left;
  if (!is_confined(*system, regs, sregs)) return Outcome::left;
  VMM_TRY(load(backend, regs, sregs));
  if (uses_fetched_msrs(system->op)) VMM_TRY(fetch(backend));
  std::optional<std::uint64_t> operand;
  if (const auto& at = i.store ? i.store : i.load ? i.load : i.invalidated)
    operand = operand_address(*at, i, vpmu::GuestLinear{regs.rip}, regs, sregs).value();
  const SystemResult result = run_instruction(state_, *system, [&] { return execute(*system, operand); });
  if (!std::holds_alternative<Completed>(result)) return Outcome::left;
  swapped_gs_ |= system->op == SystemOp::swapgs;
  VMM_TRY(store(backend, regs, sregs));
  if (!changes_translations(*system)) return Outcome::done;
  dropped_ = flush_by(state_, *system, operand);
  lost_.add({.flush = dropped_, .cr3 = state_.sregs.cr3, .cr4 = state_.sregs.cr4});
  return Outcome::done_and_dropped;
}

/// The back end refuses values that would fault.
Result<SystemInPlace::Outcome> SystemInPlace::pass_on(VcpuBackend& backend, const SystemInstruction& i,
                                                      kvm_regs& regs) {
  if (!backend.set_msr(msr_of(regs), edx_eax(regs))) return Outcome::left;
  regs.rip += i.length;
  VMM_TRY(backend.set_regs(regs));
  return Outcome::done_and_raised;
}

// The copies stay valid: a guest's write to one of these MSRs is run by the back end, after leave().
Result<void> SystemInPlace::fetch(VcpuBackend& backend) {
  if (fetched_) return {};
  std::array<std::uint64_t, fetched_msrs.size()> values{};
  VMM_TRY(backend.read_msrs(fetched_msrs, values));
  for (std::size_t i = 0; i < values.size(); ++i) state_.msrs[fetched_msrs[i]] = values[i];
  fetched_ = true;
  return {};
}

bool SystemInPlace::swap_gs(VcpuBackend& backend, __u64& base) {
  if (!fetch(backend)) return false;
  std::swap(base, state_.msrs[vpmu::msr::IA32_KERNEL_GS_BASE.value()]);
  swapped_gs_ = true;
  return true;
}

Result<void> SystemInPlace::leave(VcpuBackend& backend) {
  fetched_ = false;
  if (!lost_.empty()) VMM_TRY(backend.forget_translations(std::exchange(lost_, {})));
  return std::exchange(swapped_gs_, false) ? backend.set_msr(vpmu::msr::IA32_KERNEL_GS_BASE.value(),
                                                             state_.msrs[vpmu::msr::IA32_KERNEL_GS_BASE.value()])
                                           : Result<void>{};
}

Result<void> SystemInPlace::load(VcpuBackend& backend, const kvm_regs& regs, const kvm_sregs& sregs) {
  state_.regs = regs;
  state_.sregs = sregs;
  VMM_ASSIGN(state_.events, backend.events());
  return {};
}

// Unchanged state is not written: for SREGS, KVM would check all translations again.
Result<void> SystemInPlace::store(VcpuBackend& backend, kvm_regs& regs, kvm_sregs& sregs) const {
  regs = state_.regs;
  VMM_TRY(backend.set_regs(regs));
  if (differ(sregs, state_.sregs)) VMM_TRY(backend.set_sregs(sregs = state_.sregs));
  VMM_ASSIGN(const kvm_vcpu_events events, backend.events());
  if (differ(events, state_.events)) VMM_TRY(backend.set_events(state_.events));
  return {};
}

Exit SystemInPlace::exit() {
  switch (pending_.kind) {
    case Pending::Kind::rdmsr: return MsrRead{pending_.index, MsrReason::filter, {pending_.data, pending_.gp}};
    case Pending::Kind::wrmsr:
      return MsrWrite{pending_.index, pending_.data, MsrReason::filter, {pending_.data, pending_.gp}};
    case Pending::Kind::rdpmc: return CounterRead{pending_.index, {pending_.data, pending_.gp}};
    case Pending::Kind::none: break;
  }
  return Interrupted{};
}

Result<void> SystemInPlace::raise_gp(VcpuBackend& backend, kvm_regs& regs, kvm_sregs& sregs) {
  VMM_TRY(load(backend, regs, sregs));
  if (deliver(state_, *view_, general_protection, EventKind::fault)) return store(backend, regs, sregs);
  VMM_ASSIGN(kvm_vcpu_events events, backend.events());
  events.exception.injected = 1;
  events.exception.nr = x86::vector::GP;
  events.exception.has_error_code = 1;
  events.exception.error_code = 0;
  return backend.set_events(events);
}

Result<bool> SystemInPlace::complete(VcpuBackend& backend, kvm_regs& regs, kvm_sregs& sregs) {
  const Pending answered = std::exchange(pending_, {});
  if (answered.gp != 0) {
    VMM_TRY(raise_gp(backend, regs, sregs));
    return false;
  }
  if (answered.kind != Pending::Kind::wrmsr) set_edx_eax(regs, answered.data);
  regs.rip += answered.length;
  VMM_TRY(backend.set_regs(regs));
  return true;
}

}  // namespace vmm
