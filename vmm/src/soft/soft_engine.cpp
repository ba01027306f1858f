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

Stop SoftEngine::run(std::uint64_t instructions) {
  SoftState& s = core_->state;
  if (flush_ || stale_) {
    auto state = engine_state(s.regs, s.sregs, core_->features.paging());
    state.checks_accesses = false;  // the caller checks them
    flush_ ? engine_.load(state) : engine_.resume(state);
  }
  flush_ = stale_ = false;
  const std::uint64_t before = entered_at_ = engine_.passed().instructions;
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
  const CpuidRegisters r = core_->system.cpuid(leaf, subleaf);
  ++core_->statistics.system;
  out = {.eax = r.eax, .ebx = r.ebx, .ecx = r.ecx, .edx = r.edx};
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
