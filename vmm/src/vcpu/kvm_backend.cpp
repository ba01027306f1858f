#include "vcpu/kvm_backend.hpp"

#include <cpuid.h>
#include <fmt/format.h>
#include <x86intrin.h>

#include <array>
#include <utility>

#include "kvm/ioctl.hpp"
#include "vcpu/apic_store.hpp"
#include "vcpu/vector_registers.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

ExitCause cause_of(const Exit& exit, bool stepping) {
  if (std::holds_alternative<Debug>(exit)) return stepping ? ExitCause::step : ExitCause::pmu;
  const bool of_pmu = std::holds_alternative<MsrRead>(exit) || std::holds_alternative<MsrWrite>(exit) ||
                      std::holds_alternative<Interrupted>(exit);
  return of_pmu ? ExitCause::pmu : ExitCause::device;
}

template <class T>
Result<void> put(Result<T> from, T* to) {
  if (!from) return tl::unexpected{from.error()};
  *to = *from;
  return {};
}

std::uint64_t features_of_host() {
  using vpmu::exec::CpuFeature;
  struct HostLeaf {
    unsigned a{}, b{}, c{}, d{};
    HostLeaf(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &a, &b, &c, &d); }
  };
  const HostLeaf leaf_7{7, 0}, leaf_d_1{0xD, 1};
  std::uint64_t features = ~std::uint64_t{};
  const auto clear_unless = [&](bool there, CpuFeature feature) {
    if (!there) features &= ~vpmu::bit(static_cast<unsigned>(feature));
  };
  // KVM intercepts XSAVES if the guest's CPUID lacks it, and keeps IA32_XSS.
  clear_unless(false, CpuFeature::xsaves);
  clear_unless((leaf_7.b & vpmu::bit(23)) != 0, CpuFeature::clflushopt);
  clear_unless((leaf_d_1.a & vpmu::bit(0)) != 0, CpuFeature::xsaveopt);
  clear_unless((leaf_d_1.a & vpmu::bit(1)) != 0, CpuFeature::xsavec);
  clear_unless((leaf_d_1.a & vpmu::bit(2)) != 0, CpuFeature::xgetbv_ecx1);
  return features;
}

// The processor walks the guest's tables itself.
PagingLimits paging_limits_of_host() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  PagingLimits limits;
  if (__get_cpuid(0x8000'0008, &eax, &ebx, &ecx, &edx) != 0) limits.physical_width = static_cast<std::uint8_t>(eax);
  if (__get_cpuid(0x8000'0001, &eax, &ebx, &ecx, &edx) != 0) limits.gigabyte_pages = (edx & (1U << 26U)) != 0;
  return limits;
}

// kvm_amd emulates MOV DR on processors without decode assists, and checks the guest's own DR7.GD then. AMD's manual 3,
// CPUID 8000_000AH EDX bit 7: DecodeAssists.
bool host_exits_on_general_detect() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool svm = __get_cpuid(0x8000'0001, &eax, &ebx, &ecx, &edx) != 0 && (ecx & 4U) != 0;
  return !svm || (__get_cpuid(0x8000'000A, &eax, &ebx, &ecx, &edx) != 0 && (edx & 0x80U) != 0);
}

}  // namespace

std::uint64_t KvmClockHost::ticks() const { return scale_.of(__rdtsc()); }

// SDM 3A 10.5.4.1: the MSR reads 0 when nothing is armed; writing 0 disarms.
Result<void> KvmClockHost::rearm_deadline() {
  const auto deadline = vcpu_->msr(vpmu::msr::IA32_TSC_DEADLINE.value());
  if (!deadline || *deadline == 0) return {};
  return vcpu_->set_msr(vpmu::msr::IA32_TSC_DEADLINE.value(), *deadline);
}

Result<KvmBackend> KvmBackend::create(Vm& vm, Vcpu& vcpu, PmuTime time) {
  KvmBackend made{vm, vcpu, time};
  made.can_.exits_on_general_detect = host_exits_on_general_detect();
  made.can_.features = features_of_host();
  made.can_.paging = paging_limits_of_host();
  VMM_TRY(made.follow_tsc());
  return made;
}

Result<void> KvmBackend::follow_tsc() {
  VMM_ASSIGN(const std::uint32_t khz, vcpu_->tsc_khz());
  const auto scale = find_scale(khz);
  can_.tsc_khz = khz;
  unknown_scale_ = !scale;
  clock_host_.follow(scale.value_or(TscScale::by_rates(vcpu_->host_tsc_khz(), khz)));
  clock_.follow(khz, scale ? wanted_time_ : PmuTime::real);
  can_.hides_time = clock_.hides();
  return {};
}

// Without an offset (Linux before 5.16) no time is hidden, and the scale serves durations only.
std::optional<TscScale> KvmBackend::find_scale(std::uint32_t khz) {
  const auto offset = vcpu_->tsc_offset();
  if (!offset) return TscScale::by_rates(vcpu_->host_tsc_khz(), khz);
  std::array<TscLook, 4> looks{};
  for (TscLook& look : looks) {
    look.before = __rdtsc();
    const auto guest = vcpu_->msr(vpmu::msr::IA32_TIME_STAMP_COUNTER.value());
    look.after = __rdtsc();
    if (!guest) return std::nullopt;
    look.guest = *guest - *offset;
  }
  return TscScale::find(vcpu_->host_tsc_khz(), khz, looks);
}

// A precise sample reads the registers at every exit that it causes, so KVM copies them with each exit while the PMU is
// in use.
void KvmBackend::watch_clock(bool on) {
  vcpu_->sync_after_run(on ? KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS | KVM_SYNC_X86_EVENTS : 0);
  clock_.watch(on);
}

Result<Exit> KvmBackend::run_vcpu(Vcpu::Runs what) {
  exit_open_ = true;
  return vcpu_->run(what);
}

Result<void> KvmBackend::complete_exit() {
  if (early_) return {};
  VMM_ASSIGN(const std::optional<Exit> piece, vcpu_->complete_exit());
  exit_open_ = piece.has_value();
  if (piece) early_.emplace(*piece);
  return {};
}

Result<Exit> KvmBackend::run(RunMode mode) {
  switch (mode) {
    case RunMode::to_exit: return run_to_exit();
    case RunMode::quiet_step: return step_quietly();
    case RunMode::once: return run_one();
  }
  return run_to_exit();
}

Result<Exit> KvmBackend::run_to_exit() {
  xsave_.reset();
  xcr0_.reset();
  if (early_) {
    const Exit exit = *early_;
    early_.reset();
    return exit;
  }
  VMM_TRY(clock_.enter(clock_host_));
  auto exit = run_vcpu(Vcpu::Runs::anything);
  if (exit) clock_.leave(clock_host_, cause_of(*exit, stepping_));
  return exit;
}

// The clock need not be told of exits to devices while it is not watched.
VcpuBackend::DeviceRun KvmBackend::run_to_device() {
  if (!clock_.is_idle() || !vcpu_->is_flushed() || early_) return DeviceRun::not_run;
  xsave_.reset();
  xcr0_.reset();
  exit_open_ = true;
  return vcpu_->run_to_device() ? DeviceRun::device_exit : DeviceRun::other_exit;
}

Result<Exit> KvmBackend::exit() {
  auto exit = vcpu_->exit();
  if (exit) clock_.leave(clock_host_, cause_of(*exit, stepping_));
  return exit;
}

// Shifting the guest's clock takes more system calls than the instruction itself. So the clock stands still over quiet
// steps, and the time is hidden at the next entry.
Result<Exit> KvmBackend::step_quietly() {
  xsave_.reset();
  if (early_) return run_to_exit();
  const bool stands = clock_.may_stand_on(clock_host_);
  if (!stands) VMM_TRY(clock_.enter(clock_host_));
  auto exit = run_vcpu(Vcpu::Runs::quiet_step);
  if (exit && !stands) clock_.leave(clock_host_, cause_of(*exit, stepping_));
  if (exit && stands && std::holds_alternative<Debug>(*exit)) clock_.pass(1);
  return exit;
}

Result<Exit> KvmBackend::run_one() {
  if (early_) return run_to_exit();
  xsave_.reset();
  xcr0_.reset();
  VMM_TRY(clock_.enter(clock_host_));
  auto exit = run_vcpu(Vcpu::Runs::anything);
  if (exit)
    clock_.leave(clock_host_, std::holds_alternative<Debug>(*exit) ? ExitCause::once : cause_of(*exit, stepping_));
  return exit;
}

// While one vCPU has BLOCKIRQ on, KVM inhibits APICv or AVIC for the whole VM: each change updates all vCPUs, so it is
// counted.
Result<void> KvmBackend::debug_guest(const kvm_guest_debug& debug) {
  stepping_ = (debug.control & KVM_GUESTDBG_SINGLESTEP) != 0;
  const bool holds = (debug.control & KVM_GUESTDBG_BLOCKIRQ) != 0;
  if (std::exchange(holds_interrupts_, holds) != holds) ++interrupt_holds_;
  return vcpu_->set_guest_debug(debug);
}

void KvmBackend::forget() {
  vcpu_->forget();
  early_.reset();
  clock_.forget_exit();
  xsave_.reset();
  xcr0_.reset();
}

// KVM flushes the vCPU's translations when it is given a different CR3.
Result<void> KvmBackend::forget_translations(const LostTranslations& /*lost*/) {
  constexpr std::uint64_t page = 4096;
  VMM_ASSIGN(const kvm_sregs sregs, vcpu_->sregs());
  kvm_sregs other = sregs;
  other.cr3 ^= page;
  VMM_TRY(vcpu_->set_sregs(other));
  VMM_TRY(vcpu_->flush());
  return vcpu_->set_sregs(sregs);
}

Result<vpmu::exec::VectorState> KvmBackend::read_vectors() {
  if (!xcr0_) {
    VMM_ASSIGN(xcr0_, vcpu_->xcr0());
  }
  if (!xsave_) {
    VMM_ASSIGN(xsave_, vcpu_->xsave());
  }
  return vector_state(*xsave_, *xcr0_);
}

// State that VectorState does not contain must be preserved.
Result<void> KvmBackend::write_vectors(const vpmu::exec::VectorState& state) {
  if (!xsave_) {
    VMM_ASSIGN(xsave_, vcpu_->xsave());
  }
  set_vector_state(*xsave_, state);
  return vcpu_->set_xsave(*xsave_);
}

Result<std::uint64_t> KvmBackend::tsc_after(std::uint64_t ticks) {
  if (clock_.hides())
    if (const auto at = clock_.stands_at(clock_host_)) return *at + ticks;
  VMM_ASSIGN(const std::uint64_t now, vcpu_->msr(vpmu::msr::IA32_TIME_STAMP_COUNTER.value()));
  return now + ticks;
}

Result<void> KvmBackend::read(RegistersTo to) {
  struct Reader {
    KvmBackend& of;
    Result<void> operator()(kvm_regs* to) const { return put(of.vcpu_->regs(), to); }
    Result<void> operator()(kvm_sregs* to) const { return put(of.vcpu_->sregs(), to); }
    Result<void> operator()(kvm_vcpu_events* to) const { return put(of.vcpu_->events(), to); }
    Result<void> operator()(kvm_debugregs* to) const { return put(of.vcpu_->debugregs(), to); }
    Result<void> operator()(vpmu::exec::VectorState* to) const { return put(of.read_vectors(), to); }
    Result<void> operator()(kvm_lapic_state* to) const { return put(of.vcpu_->lapic(), to); }
  };
  return std::visit(Reader{*this}, to);
}

Result<void> KvmBackend::write(RegistersFrom from) {
  struct Writer {
    KvmBackend& of;
    Result<void> operator()(const kvm_regs* from) const { return of.vcpu_->set_regs(*from); }
    Result<void> operator()(const kvm_sregs* from) const { return of.vcpu_->set_sregs(*from); }
    Result<void> operator()(const kvm_vcpu_events* from) const { return of.vcpu_->set_events(*from); }
    Result<void> operator()(const kvm_debugregs* from) const { return of.vcpu_->set_debugregs(*from); }
    Result<void> operator()(const vpmu::exec::VectorState* from) const { return of.write_vectors(*from); }
    Result<void> operator()(const kvm_guest_debug* from) const { return of.debug_guest(*from); }
  };
  return std::visit(Writer{*this}, from);
}

void KvmBackend::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  for (const auto& [name, count] : ioctls_made()) visit(fmt::format("kvm.ioctls.{}", name), count);
  visit("kvm.interrupt_holds", interrupt_holds_);
  visit("pmu.clock.hidden_ticks", clock_.statistics().hidden_ticks);
  visit("pmu.clock.shifts", clock_.statistics().shifts);
  visit("pmu.clock.unknown_scale", unknown_scale_ ? 1 : 0);
}

Result<bool> KvmBackend::halted() {
  if (vcpu_->is_running()) return false;
  VMM_ASSIGN(const kvm_mp_state state, vcpu_->mp_state());
  return state.mp_state == KVM_MP_STATE_HALTED;
}

Result<Stored> KvmBackend::store_lvtpc(std::uint32_t value) {
  constexpr std::uint32_t lvtpc_offset = 0x340;
  if (exit_open_) VMM_TRY(complete_exit());
  if (early_) return Stored::not_now;
  VMM_ASSIGN(const ApicStore store, store_to_apic(*vcpu_, lvtpc_offset, value));
  if (store.exit) {
    early_.emplace(*store.exit);
    exit_open_ = true;
  }
  return store.stored;
}

// SDM 3A 10.11: physical destination, fixed delivery. APIC ids above 255 do not occur below 256 vCPUs.
Result<void> KvmBackend::raise(const RaisedInterrupt& interrupt) {
  if (interrupt.nmi) return vcpu_->nmi();
  constexpr std::uint64_t msi_base = 0xFEE0'0000;
  VMM_TRY(vm_->signal_msi(msi_base | (std::uint64_t{interrupt.apic_id & 0xFF} << 12), interrupt.vector));
  return {};
}

}  // namespace vmm
