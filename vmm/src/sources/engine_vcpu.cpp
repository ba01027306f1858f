#include "sources/engine_vcpu.hpp"

#include <utility>

#include "vcpu/engine_state.hpp"
#include "vpmu/msr.hpp"

namespace vmm {

EngineVcpu::~EngineVcpu() {
  if (follows_) backend_->tell(nullptr);
}

void EngineVcpu::follow(VcpuBackend& backend, const vpmu::exec::CpuState& state) {
  if (follows_) backend_->tell(nullptr);
  backend_ = &backend;
  follows_ = backend.tell(this);
  engine_.watch(backend.kick_flag());
  engine_.load(state);
  lost_.clear();
}

// A back end that says what has become of memory meanwhile spares this one to look at all code again. Others may have
// made code of pages that this engine has written to before.
void EngineVcpu::take(VcpuBackend& backend, const kvm_regs& regs, const kvm_sregs& sregs) {
  regs_ = regs;
  sregs_ = sregs;
  shadow_ = 0;
  const vpmu::exec::CpuState state = engine_state(regs_, sregs_, backend.paging_limits());
  if (backend_ != &backend) {
    follow(backend, state);
  } else if (!follows_) {
    engine_.load(state);
  } else {
    engine_.tell_of_writes_anew();
    lost_.take_from(engine_);
    engine_.resume(state);
  }
  taken_passed_ = engine_.passed();
  taken_ticks_ = taken_passed_.instructions;
}

void EngineVcpu::catch_up(const vpmu::exec::CpuState& state) {
  lost_.take_from(engine_);
  if (const auto flush = engine_.flush_before(state)) tell_unless_observed(*flush);
  engine_.resume(state);
}

void EngineVcpu::observe(vpmu::Observer* observer) {
  lost_.take_from(engine_);  // it tells the observer which PCID is in use
  engine_.observe(observer);
  observer_ = observer;
}

void EngineVcpu::lost(const vpmu::exec::LostByInstruction& lost) {
  lost_.add(lost);
  if (model_ != nullptr) model_->flushed(lost.flush);
}

/// An observer is told by the engine.
void EngineVcpu::tell_unless_observed(const vpmu::TlbFlush& flush) {
  if (model_ != nullptr && observer_ == nullptr) model_->flushed(flush);
}

Result<void> EngineVcpu::give_back() {
  tsc_aux_.reset();
  if (const auto vectors = std::exchange(vectors_, std::nullopt)) return backend_->set_vectors(*vectors);
  return {};
}

void EngineVcpu::resume(const std::optional<vpmu::TlbFlush>& flush) {
  if (flush) tell_unless_observed(*flush);
  engine_.resume(engine_state(regs_, sregs_, backend_->paging_limits()), flush);
  // Those instructions serialize: behind them, code is as others, who run natively, have written it. SDM 3A 8.1.3, 8.3.
  if (flush && !backend_->runs_alone()) engine_.written_unseen();
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

vpmu::exec::Stop EngineVcpu::run_many(std::uint64_t instructions) {
  runs_many_ = true;
  const vpmu::exec::Stop stop = run(instructions);
  runs_many_ = false;
  return stop;
}

Result<void> EngineVcpu::store() {
  VMM_TRY(backend_->set_regs(regs_));
  return std::exchange(changed_sregs_, false) ? backend_->set_sregs(sregs_) : Result<void>{};
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

// Under a model of time each has its own cycles: its owner runs it.
vpmu::exec::Answer EngineVcpu::enables_interrupts() {
  const bool may = runs_many_ && time_ == nullptr && backend_->quiet_for().value_or(0) != 0;
  return may ? vpmu::exec::Answer::done : vpmu::exec::Answer::leave;
}

vpmu::exec::Answer EngineVcpu::swap_gs(std::uint64_t& base) {
  if (!runs_many_ || time_ != nullptr || !swap_gs_ || !swap_gs_(*backend_, sregs_.gs.base))
    return vpmu::exec::Answer::leave;
  base = sregs_.gs.base;
  changed_sregs_ = true;
  return vpmu::exec::Answer::done;
}

void EngineVcpu::switches_stack(std::uint64_t to) {
  if (!tells_) return;
  const vpmu::exec::CpuState state = engine_.state();
  told_ = StackSwitch{.from = state.gpr[vpmu::exec::rdi], .to = state.gpr[vpmu::exec::rsi], .stack = to};
  engine_.stop_soon();
}

void EngineVcpu::exchanges_rbx(std::uint64_t behind) {
  if (!tells_) return;
  told_ = RbxExchange{.behind = behind, .rax = engine_.state().gpr[vpmu::exec::rax]};
  engine_.stop_soon();
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
