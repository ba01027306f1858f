#include "soft/soft_engine.hpp"

#include <utility>

#include "support/x86.hpp"
#include "vcpu/engine_state.hpp"
#include "vpmu/msr.hpp"

namespace vmm {

using vpmu::exec::Stop;

std::byte* ScratchRam::page(vpmu::GuestPhysical page) {
  std::byte* const ram = ram_.page(page);
  return ram == nullptr && open ? scratch.data() : ram;
}

void ScratchRam::will_write(vpmu::GuestPhysical page) {
  if (ram_.page(page) != nullptr) ram_.will_write(page);
}

SoftEngine::SoftEngine(SoftCore& core, vpmu::exec::Compiling compiling, vpmu::exec::KickFlag kick)
    : core_{&core}, ram_{core.memory}, engine_{ram_, *this, &host_code_, compiling} {
  engine_.watch(kick);
}

void SoftEngine::tell(MemoryFollower* follower) {
  const std::scoped_lock lock{follower_mutex_};
  follower_ = follower;
}

template <class Tell>
void SoftEngine::to_follower(Tell tell) {
  const std::scoped_lock lock{follower_mutex_};
  if (follower_ != nullptr) tell(*follower_);
}

void SoftEngine::translations_changed(const vpmu::TlbFlush& lost) {
  const auto& sregs = core_->state.sregs;
  const vpmu::exec::LostByInstruction one{.flush = lost, .cr3 = sregs.cr3, .cr4 = sregs.cr4};
  lost_.add(one);
  stale_ = true;
  to_follower([&one](MemoryFollower& follower) { follower.lost(one); });
}

void SoftEngine::written_unseen() {
  engine_.written_unseen();
  to_follower([](MemoryFollower& follower) { follower.written_unseen(); });
}

void SoftEngine::written(vpmu::GuestPhysical page) {
  engine_.written(page);
  to_follower([page](MemoryFollower& follower) { follower.written(page); });
}

Stop SoftEngine::run(std::uint64_t instructions) {
  SoftState& s = core_->state;
  if (flush_ || stale_) {
    auto state = engine_state(s.regs, s.sregs, core_->features.paging());
    state.checks_accesses = false;  // the caller checks them
    if (flush_) {
      lost_.clear();
      engine_.load(state);
    } else {
      lost_.take_from(engine_);
      engine_.resume(state);
    }
  }
  flush_ = stale_ = false;
  const std::uint64_t before = entered_at_ = engine_.passed().instructions;
  runs_one_ = instructions == 1;
  const Stop stop = engine_.run(instructions);
  ram_.close();
  s.regs = kvm_state(engine_.state());
  if (engine_.passed().instructions != before && x86::rflags::RF::test(s.regs.rflags)) {
    s.regs.rflags &= ~x86::rflags::RF::mask;
    stale_ = true;
  }
  // Until a string instruction is done, RF is 1 in the flags that an event between two iterations pushes, so that an
  // instruction breakpoint does not hit it again. SDM 3A 2.3, 3B 17.3.1.1. The engine need not know.
  if (stop == Stop::again) s.regs.rflags |= x86::rflags::RF::mask;
  catch_up(engine_.passed().instructions);
  return stop;
}

Stop SoftEngine::run_on_scratch() {
  ram_.open = true;
  const Stop stop = run(1);
  ram_.open = false;
  return stop;
}

/// Lets the time pass of what the engine has run so far: `passed` instructions in its life.
void SoftEngine::catch_up(std::uint64_t passed) {
  const std::uint64_t done = passed - std::exchange(entered_at_, passed);
  core_->statistics.instructions += done;
  core_->pass_time(done);
}

vpmu::exec::Answer SoftEngine::rdtsc(std::uint64_t& value) {
  value = core_->time.tsc_after(engine_.passed().instructions - entered_at_);
  return Answer::done;
}

vpmu::exec::Answer SoftEngine::rdtscp(std::uint64_t& value, std::uint64_t& aux) {
  if (!has(vpmu::exec::CpuFeature::rdtscp)) return Answer::leave;
  aux = core_->state.msrs.at(vpmu::msr::IA32_TSC_AUX.value());
  return rdtsc(value);
}

vpmu::exec::Answer SoftEngine::rdmsr(std::uint32_t index, std::uint64_t& value) {
  catch_up(engine_.passed().instructions - 1);  // without this one
  const vpmu::MsrReadResult own = core_->msrs.read(index);
  if (own.status != vpmu::MsrStatus::ok) return Answer::leave;
  ++core_->statistics.system;
  value = own.value;
  return Answer::done;
}

// What the engine has a copy of, and what decides whether the APIC's page is RAM, is SystemUnit's. After a write that
// may let an interrupt in or set a timer, SoftBackend::run() looks.
vpmu::exec::Answer SoftEngine::wrmsr(std::uint32_t index, std::uint64_t value) {
  if (!MsrUnit::is_confined(index)) return Answer::leave;
  catch_up(engine_.passed().instructions - 1);  // without this one
  if (core_->msrs.write(index, value) != vpmu::MsrStatus::ok) return Answer::leave;
  ++core_->statistics.system;
  engine_.stop_soon();
  return Answer::done;
}

vpmu::exec::Answer SoftEngine::cpuid(std::uint32_t leaf, std::uint32_t subleaf, vpmu::exec::CpuidAnswer& out) {
  if (core_->is_mark(leaf)) return vpmu::exec::Answer::leave;  // so that the guest stops right behind it
  const CpuidRegisters r = core_->system.cpuid(leaf, subleaf);
  ++core_->statistics.system;
  out = {.eax = r.eax, .ebx = r.ebx, .ecx = r.ecx, .edx = r.edx};
  return Answer::done;
}

// In one run nothing arrives that does not wait already: it ends with an access to the APIC, and before a timer is due.
vpmu::exec::Answer SoftEngine::enables_interrupts() {
  const SoftState& s = core_->state;
  if (runs_one_ || s.init_pending || s.events.nmi.pending != 0 || s.apic.pending()) return Answer::leave;
  ++core_->statistics.system;
  return Answer::done;
}

vpmu::exec::Answer SoftEngine::swap_gs(std::uint64_t& base) {
  SoftState& s = core_->state;
  std::swap(s.sregs.gs.base, s.msrs[vpmu::msr::IA32_KERNEL_GS_BASE.value()]);
  base = s.sregs.gs.base;
  ++core_->statistics.system;
  return Answer::done;
}

vpmu::exec::Answer SoftEngine::read_cr8(std::uint64_t& value) {
  ++core_->statistics.system;
  value = core_->system.cr8();
  return Answer::done;
}

vpmu::exec::Answer SoftEngine::write_cr8(std::uint64_t value) {
  if (!core_->system.set_cr8(value)) return Answer::leave;
  ++core_->statistics.system;
  engine_.stop_soon();
  return Answer::done;
}

}  // namespace vmm
