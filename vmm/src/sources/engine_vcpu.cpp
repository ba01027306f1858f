#include "sources/engine_vcpu.hpp"

#include "vcpu/engine_state.hpp"
#include "vpmu/msr.hpp"

namespace vmm {

void EngineVcpu::take(VcpuBackend& backend, const kvm_regs& regs, const kvm_sregs& sregs) {
  backend_ = &backend;
  regs_ = regs;
  sregs_ = sregs;
  shadow_ = 0;
  engine_.watch(backend.kick_flag());
  engine_.load(engine_state(regs_, sregs_, backend.paging_limits()));
  taken_passed_ = {};
  taken_ticks_ = 0;
}

Result<void> EngineVcpu::give_back() {
  tsc_aux_.reset();
  if (const auto vectors = std::exchange(vectors_, std::nullopt)) return backend_->set_vectors(*vectors);
  return {};
}

void EngineVcpu::resume(const std::optional<vpmu::TlbFlush>& flush) {
  engine_.resume(engine_state(regs_, sregs_, backend_->paging_limits()), flush);
}

Result<void> EngineVcpu::end_shadow() {
  shadow_ = 0;
  VMM_ASSIGN(kvm_vcpu_events events, backend_->events());
  events.interrupt.shadow = 0;
  return backend_->set_events(events);
}

// A string instruction may take several calls of Engine::run(), and has been run only once it retires.
vpmu::exec::Stop EngineVcpu::run(std::uint64_t instructions) {
  using vpmu::exec::Stop;
  constexpr unsigned max_turns = 64;
  const std::uint64_t end = engine_.passed().instructions + instructions;
  Stop stop = Stop::again;
  for (unsigned turn = 0; turn < max_turns && stop == Stop::again && (turn == 0 || !is_kicked()); ++turn)
    stop = engine_.run(end - engine_.passed().instructions);
  regs_ = kvm_state(engine_.state());
  return stop;
}

vpmu::exec::Passed EngineVcpu::take_passed() {
  const vpmu::exec::Passed now = engine_.passed();
  const vpmu::exec::Passed before = std::exchange(taken_passed_, now);
  return {.instructions = now.instructions - before.instructions,
          .branches = now.branches - before.branches,
          .loads = now.loads - before.loads,
          .stores = now.stores - before.stores,
          .more_loads = now.more_loads - before.more_loads,
          .more_stores = now.more_stores - before.more_stores};
}

std::uint64_t EngineVcpu::take_ticks() {
  const std::uint64_t now = engine_.passed().instructions;
  return now - std::exchange(taken_ticks_, now);
}

vpmu::exec::Answer EngineVcpu::rdtsc(std::uint64_t& value) {
  const std::uint64_t ticks =
      time_ == nullptr ? engine_.passed().instructions - taken_ticks_ : time_->passing(engine_.observed_before());
  const auto tsc = backend_->tsc_after(ticks);
  if (!tsc) return vpmu::exec::Answer::leave;
  value = *tsc;
  return vpmu::exec::Answer::done;
}

// A back end without RDTSCP does not have the MSR either.
vpmu::exec::Answer EngineVcpu::rdtscp(std::uint64_t& value, std::uint64_t& aux) {
  if (!tsc_aux_) {
    const auto msr = backend_->msr(vpmu::msr::IA32_TSC_AUX.value());
    if (!msr) return vpmu::exec::Answer::leave;
    tsc_aux_ = *msr;
  }
  aux = *tsc_aux_;
  return rdtsc(value);
}

vpmu::exec::VectorState* EngineVcpu::vectors() {
  if (!vectors_) {
    const auto state = backend_->vectors();
    if (!state) return nullptr;
    vectors_ = *state;
    ++vectors_read_;
  }
  return &*vectors_;
}

}  // namespace vmm
