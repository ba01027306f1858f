#include "vcpu/kvm_port.hpp"

#include <cpuid.h>
#include <fmt/format.h>
#include <x86intrin.h>

#include <array>
#include <utility>

#include "kvm/ioctl.hpp"
#include "vcpu/apic_store.hpp"
#include "vcpu/vector_registers.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr std::uint32_t msr_tsc = 0x10;
constexpr std::uint32_t msr_tsc_deadline = 0x6E0;

ExitCause cause_of(const Exit& exit, bool stepping) {
  if (std::holds_alternative<Debug>(exit)) return stepping ? ExitCause::step : ExitCause::pmu;
  const bool of_pmu = std::holds_alternative<MsrRead>(exit) || std::holds_alternative<MsrWrite>(exit) ||
                      std::holds_alternative<Interrupted>(exit);
  return of_pmu ? ExitCause::pmu : ExitCause::device;
}

}  // namespace

std::uint64_t KvmClockHost::ticks() const { return scale_.of(__rdtsc()); }

// SDM 3A 10.5.4.1: the MSR reads 0 when nothing is armed; writing 0 disarms.
Result<void> KvmClockHost::rearm_deadline() {
  const auto deadline = vcpu_->msr(msr_tsc_deadline);
  if (!deadline || *deadline == 0) return {};
  return vcpu_->set_msr(msr_tsc_deadline, *deadline);
}

Result<KvmPort> KvmPort::create(Vm& vm, Vcpu& vcpu, PmuTime time) {
  KvmPort port{vm, vcpu, time};
  VMM_TRY(port.follow_tsc());
  return port;
}

Result<void> KvmPort::follow_tsc() {
  VMM_ASSIGN(const std::uint32_t khz, vcpu_->tsc_khz());
  const auto scale = find_scale(khz);
  tsc_khz_ = khz;
  unknown_scale_ = !scale;
  clock_host_.follow(scale.value_or(TscScale::by_rates(vcpu_->host_tsc_khz(), khz)));
  clock_.follow(khz, scale ? wanted_time_ : PmuTime::real);
  return {};
}

// Without an offset (Linux before 5.16) no time is hidden, and the scale serves durations only.
std::optional<TscScale> KvmPort::find_scale(std::uint32_t khz) {
  const auto offset = vcpu_->tsc_offset();
  if (!offset) return TscScale::by_rates(vcpu_->host_tsc_khz(), khz);
  std::array<TscLook, 4> looks{};
  for (TscLook& look : looks) {
    look.before = __rdtsc();
    const auto guest = vcpu_->msr(msr_tsc);
    look.after = __rdtsc();
    if (!guest) return std::nullopt;
    look.guest = *guest - *offset;
  }
  return TscScale::find(vcpu_->host_tsc_khz(), khz, looks);
}

// A precise sample reads the registers at every exit that it causes, so KVM copies them with each exit while the PMU is
// in use.
void KvmPort::watch_clock(bool on) {
  vcpu_->sync_after_run(on ? KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS | KVM_SYNC_X86_EVENTS : 0);
  clock_.watch(on);
}

bool KvmPort::has(vpmu::exec::CpuFeature feature) const {
  using vpmu::exec::CpuFeature;
  struct HostLeaf {
    unsigned a{}, b{}, c{}, d{};
    HostLeaf(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &a, &b, &c, &d); }
  };
  static const HostLeaf leaf_7{7, 0}, leaf_d_1{0xD, 1};
  // KVM intercepts XSAVES if the guest's CPUID lacks it, and keeps IA32_XSS.
  if (feature == CpuFeature::xsaves) return false;
  if (feature == CpuFeature::clflushopt) return (leaf_7.b & vpmu::bit(23)) != 0;
  if (feature == CpuFeature::xsaveopt) return (leaf_d_1.a & vpmu::bit(0)) != 0;
  if (feature == CpuFeature::xsavec) return (leaf_d_1.a & vpmu::bit(1)) != 0;
  if (feature == CpuFeature::xgetbv_ecx1) return (leaf_d_1.a & vpmu::bit(2)) != 0;
  return true;
}

Result<Exit> KvmPort::run_vcpu(Vcpu::Runs what) {
  exit_open_ = true;
  return vcpu_->run(what);
}

Result<void> KvmPort::complete_exit() {
  if (early_) return {};
  VMM_ASSIGN(const std::optional<Exit> piece, vcpu_->complete_exit());
  exit_open_ = piece.has_value();
  if (piece) early_.emplace(*piece);
  return {};
}

// kvm_amd emulates MOV DR on processors without decode assists, and checks the guest's own DR7.GD then. AMD's manual 3,
// CPUID 8000_000AH EDX bit 7: DecodeAssists.
bool KvmPort::exits_on_general_detect() const {
  static const bool exits = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    const bool svm = __get_cpuid(0x8000'0001, &eax, &ebx, &ecx, &edx) != 0 && (ecx & 4U) != 0;
    return !svm || (__get_cpuid(0x8000'000A, &eax, &ebx, &ecx, &edx) != 0 && (edx & 0x80U) != 0);
  }();
  return exits;
}

Result<Exit> KvmPort::run() {
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
VcpuPort::Came KvmPort::run_to_device() {
  if (!clock_.is_idle() || !vcpu_->is_flushed() || early_) return Came::nowhere;
  xsave_.reset();
  xcr0_.reset();
  exit_open_ = true;
  return vcpu_->run_to_device() ? Came::to_device : Came::elsewhere;
}

Result<Exit> KvmPort::exit() {
  auto exit = vcpu_->exit();
  if (exit) clock_.leave(clock_host_, cause_of(*exit, stepping_));
  return exit;
}

// Shifting the guest's clock takes more system calls than the instruction itself. So the clock stands still over quiet
// steps, and the time is hidden at the next entry.
Result<Exit> KvmPort::step() {
  xsave_.reset();
  if (early_) return run();
  const bool stands = clock_.may_stand_on(clock_host_);
  if (!stands) VMM_TRY(clock_.enter(clock_host_));
  auto exit = run_vcpu(Vcpu::Runs::quiet_step);
  if (exit && !stands) clock_.leave(clock_host_, cause_of(*exit, stepping_));
  if (exit && stands && std::holds_alternative<Debug>(*exit)) clock_.pass(1);
  return exit;
}

// While one vCPU has BLOCKIRQ on, KVM inhibits APICv or AVIC for the whole VM: each change updates all vCPUs, so it is
// counted.
Result<void> KvmPort::set_guest_debug(const kvm_guest_debug& debug) {
  stepping_ = (debug.control & KVM_GUESTDBG_SINGLESTEP) != 0;
  const bool holds = (debug.control & KVM_GUESTDBG_BLOCKIRQ) != 0;
  if (std::exchange(holds_interrupts_, holds) != holds) ++interrupt_holds_;
  return vcpu_->set_guest_debug(debug);
}

void KvmPort::forget() {
  vcpu_->forget();
  early_.reset();
  clock_.forget_exit();
  xsave_.reset();
  xcr0_.reset();
}

// KVM flushes the vCPU's translations when it is given a different CR3.
Result<void> KvmPort::forget_translations() {
  constexpr std::uint64_t page = 4096;
  VMM_ASSIGN(const kvm_sregs sregs, vcpu_->sregs());
  kvm_sregs other = sregs;
  other.cr3 ^= page;
  VMM_TRY(vcpu_->set_sregs(other));
  VMM_TRY(vcpu_->flush());
  return vcpu_->set_sregs(sregs);
}

Result<vpmu::exec::VectorState> KvmPort::vectors() {
  if (!xcr0_) {
    VMM_ASSIGN(xcr0_, vcpu_->xcr0());
  }
  if (!xsave_) {
    VMM_ASSIGN(xsave_, vcpu_->xsave());
  }
  return vector_state(*xsave_, *xcr0_);
}

// State that VectorState does not contain must be preserved.
Result<void> KvmPort::set_vectors(const vpmu::exec::VectorState& state) {
  if (!xsave_) {
    VMM_ASSIGN(xsave_, vcpu_->xsave());
  }
  set_vector_state(*xsave_, state);
  return vcpu_->set_xsave(*xsave_);
}

Result<std::uint64_t> KvmPort::tsc() {
  if (clock_.hides())
    if (auto at = clock_.stands_at(clock_host_)) return at;
  return vcpu_->msr(msr_tsc);
}

void KvmPort::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  for (const auto& [name, count] : ioctls_made()) visit(fmt::format("kvm.ioctls.{}", name), count);
  visit("kvm.interrupt_holds", interrupt_holds_);
  visit("pmu.clock.hidden_ticks", clock_.statistics().hidden_ticks);
  visit("pmu.clock.shifts", clock_.statistics().shifts);
  visit("pmu.clock.unknown_scale", unknown_scale_ ? 1 : 0);
}

Result<bool> KvmPort::halted() {
  if (vcpu_->is_running()) return false;
  VMM_ASSIGN(const kvm_mp_state state, vcpu_->mp_state());
  return state.mp_state == KVM_MP_STATE_HALTED;
}

Result<Stored> KvmPort::store_lvtpc(std::uint32_t value) {
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
Result<void> KvmPort::interrupt(std::uint32_t apic_id, std::uint8_t vector) {
  constexpr std::uint64_t msi_base = 0xFEE0'0000;
  VMM_TRY(vm_->signal_msi(msi_base | (std::uint64_t{apic_id & 0xFF} << 12), vector));
  return {};
}

}  // namespace vmm
