#include "sources/exact_source.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "support/assert.hpp"
#include "vcpu/engine_state.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/generation.hpp"

namespace vmm {
namespace {

using vpmu::exec::Stop;

constexpr std::uint64_t rflags_tf = vpmu::bit(8), rflags_rf = vpmu::bit(16), rflags_vm = vpmu::bit(17);

}  // namespace

bool ExactSource::undisturbed(const kvm_vcpu_events& e) {
  return !is_delivering(e) && e.interrupt.shadow == 0 && e.smi.pending == 0;
}

vpmu::exec::Answer ExactSource::Platform::rdtsc(std::uint64_t& value) {
  const auto tsc = owner_->port_->tsc_after(owner_->engine_.passed().instructions - owner_->passed_time_);
  if (!tsc) return vpmu::exec::Answer::leave;
  value = *tsc;
  return vpmu::exec::Answer::done;
}

vpmu::exec::VectorState* ExactSource::Platform::vectors() {
  auto& kept = owner_->vectors_;
  if (!kept) {
    const auto state = owner_->port_->vectors();
    if (!state) return nullptr;
    kept = *state;
    ++owner_->statistics_.vectors;
  }
  return &*kept;
}

// A port without RDTSCP does not have the MSR either.
vpmu::exec::Answer ExactSource::Platform::rdtscp(std::uint64_t& value, std::uint64_t& aux) {
  auto& kept = owner_->tsc_aux_;
  if (!kept) {
    const auto msr = owner_->port_->msr(msr_tsc_aux);
    if (!msr) return vpmu::exec::Answer::leave;
    kept = *msr;
  }
  aux = *kept;
  return rdtsc(value);
}

Result<void> ExactSource::program(const vpmu::CountPlan& plan) {
  progress_.begin(plan, choose_model(plan));
  return steps_.program(plan);
}

void ExactSource::make_model() {
  const vpmu::uarch::Profile* const profile = vpmu::uarch::find_profile(generation_->name);
  VMM_ASSERT(profile != nullptr);
  model_ = std::make_unique<vpmu::uarch::ProcessorModel>(*profile);
  if (caches_ != nullptr) caches_->add(*model_);
}

/// Returns the model if the plan needs it, else null.
const vpmu::uarch::ProcessorModel* ExactSource::choose_model(const vpmu::CountPlan& plan) {
  const bool wanted = vpmu::uarch::ProcessorModel::is_wanted(plan);
  if (wanted && model_ == nullptr) make_model();
  vpmu::uarch::ProcessorModel* const model = wanted ? model_.get() : nullptr;
  if (model != nullptr) model->follow(plan);
  // A plan without counters is a pause: the translations will be needed again.
  if (plan.size != 0 || plan.branches_wanted) engine_.observe(model);
  return model;
}

Result<vpmu::CountDeltas> ExactSource::sync(VcpuPort&) { return progress_.take_deltas(); }

Result<RunEnd> ExactSource::walk(VcpuPort& port) { return run(port, std::nullopt); }

Result<RunEnd> ExactSource::come_out(VcpuPort& port) {
  if (system_.is_open()) {
    VMM_ASSIGN(const auto end, finish(port));
    if (end) return *end;
  }
  VMM_TRY(leave(port));
  burst_left_ = burst;
  return steps_.come_out(port);
}

Result<RunEnd> ExactSource::run(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most) {
  if (system_.is_open()) {
    VMM_ASSIGN(const auto end, finish(port));
    if (end) return *end;
  }
  if (std::exchange(raised_, false) || !progress_.is_counting()) VMM_TRY(leave(port));
  if (!progress_.is_counting()) return steps_.run(port, at_most);
  if (burst_left_ == 0 && inside_) {
    const auto quiet = port.quiet_for();
    burst_left_ = quiet ? std::min(burst, *quiet) : std::uint64_t{keeps_from_kvm()};
  }
  if (burst_left_ == 0) VMM_TRY(leave(port));
  // A port that knows its next deadline does not need to run an instruction itself, so the model sees them all.
  if (!inside_) burst_left_ = std::min(burst, port.look_around(burst_left_));
  if (burst_left_ == 0) for_kvm_ = true;
  if (!for_kvm_ && !inside_) {
    VMM_ASSIGN(inside_, enter(port));
  }
  const bool met = inside_ && meets_breakpoint();
  if (inside_ && !for_kvm_ && !met) {
    VMM_ASSIGN(const auto end, interpret(port));
    if (end) return *end;
  }
  if (inside_ && for_kvm_ && !met) {
    VMM_ASSIGN(const auto end, run_in_place(port));
    if (end) return *end;
    note_left();
  }
  return hand_over(port, at_most);
}

/// Whether the engine runs the next instruction although it is KVM's turn: PEBS is armed, and only the model can tell
/// the hit level of a memory access. The delay is bounded, because interrupts wait for KVM's turn.
bool ExactSource::keeps_from_kvm() {
  constexpr unsigned most = 64;
  if (!progress_.plan().any_armed() || kept_from_kvm_ == most) return false;
  const Instruction* const next = decode_at(instruction_pointer(regs_, sregs_));
  if (next == nullptr || !(next->load || next->store)) return false;
  ++kept_from_kvm_;
  return true;
}

// KVM runs one instruction, or delivers the event that comes before it.
Result<RunEnd> ExactSource::hand_over(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most) {
  const bool looked = inside_;
  VMM_TRY(leave(port));
  for_kvm_ = false;
  burst_left_ = burst;
  kept_from_kvm_ = 0;
  ++statistics_.handed_over;
  VMM_ASSIGN(RunEnd end, looked ? steps_.run_one(port) : steps_.run(port, at_most));
  note(end);
  return end;
}

/// The result is valid until the next call; null if there is no valid instruction.
const Instruction* ExactSource::decode_at(vpmu::GuestLinear ip) {
  std::array<std::byte, longest_instruction> bytes{};
  const std::size_t size = view_->fetch(ip, bytes, cpl_of(sregs_));
  return decoded_(std::span{bytes}.first(size), code_mode(sregs_));
}

void ExactSource::note_left() {
  const Instruction* const i = decode_at(instruction_pointer(regs_, sregs_));
  ++statistics_.left[i != nullptr ? i->mnemonic : "invalid"];
  if (model_ == nullptr || i == nullptr || !i->system) return;
  if (changes_translations(*i->system)) model_->flushed();
  if (i->is(SystemOp::wbinvd) && cpl_of(sregs_) == 0) model_->caches_flushed();
}

Result<bool> ExactSource::enter(VcpuPort& port) {
  if (steps_.in_exit()) return false;
  VMM_ASSIGN(const kvm_vcpu_events events, port.events());
  if (!undisturbed(events)) return false;
  VMM_ASSIGN(regs_, port.regs());
  VMM_ASSIGN(sregs_, port.sregs());
  if ((regs_.rflags & (rflags_tf | rflags_vm)) != 0) return false;
  VMM_ASSIGN(const bool halted, port.halted());
  if (halted) return false;
  VMM_ASSIGN(const auto interrupt, steps_.deliverable(port));
  if (interrupt) return false;
  shadow_ = false;
  VMM_ASSIGN(const kvm_debugregs debug, port.debugregs());
  watch_ = watch_of(debug);
  engine_.watch(port.kick_flag());
  engine_.load(engine_state(regs_, sregs_));
  seen_ = {};
  passed_time_ = 0;
  ++statistics_.entries;
  return true;
}

Result<void> ExactSource::leave(VcpuPort& port) {
  if (!inside_) return {};
  inside_ = false;
  for_kvm_ = false;
  tsc_aux_.reset();
  ram_.close();
  VMM_TRY(system_.leave(port));
  if (const auto vectors = std::exchange(vectors_, std::nullopt)) return port.set_vectors(*vectors);
  return {};
}

// An interrupt or NMI that was blocked may be deliverable now.
Result<void> ExactSource::look_outside(VcpuPort& port) {
  VMM_ASSIGN(const auto interrupt, steps_.deliverable(port));
  return interrupt ? leave(port) : Result<void>{};
}

Result<void> ExactSource::end_shadow(VcpuPort& port) {
  shadow_ = false;
  VMM_ASSIGN(kvm_vcpu_events events, port.events());
  events.interrupt.shadow = 0;
  VMM_TRY(port.set_events(events));
  return look_outside(port);
}

void ExactSource::pass(VcpuPort& port, std::uint64_t instructions) {
  burst_left_ -= std::min(instructions, burst_left_);
  port.pass_time(instructions);
}

// Returns empty if the engine could not run anything.
Result<std::optional<RunEnd>> ExactSource::interpret(VcpuPort& port) {
  port_ = &port;
  RunEnd end;
  const bool resuming = (regs_.rflags & rflags_rf) != 0;
  const unsigned cpl = cpl_of(sregs_);
  const vpmu::CountPlan& plan = progress_.plan();
  const bool keeps_branches = plan.branches_wanted;
  vpmu::LbrFilter filter = plan.lbr_filter;
  std::uint64_t at_once = shadow_ || resuming ? std::min<std::uint64_t>(burst_left_, 1) : burst_left_;
  if (plan.branches_stored) {
    constexpr std::uint64_t none_is_stored = ~0ULL;
    const std::uint64_t room = storable_ ? storable_(cpl) : 0;
    if (room != none_is_stored) filter = {.kinds = {0xFF, 0xFF}, .depth = filter.depth, .call_stack = true};  // all
    at_once = std::min(at_once, room);
  }
  if (filter.call_stack) at_once = std::min(at_once, vpmu::uarch::ProcessorModel::most_of_call_stack);
  if (const std::uint64_t unseen = progress_.unseen(cpl != 0, at_once); unseen != 0) {
    if (keeps_branches) model_->keep_branches(cpl, filter, engine_.observed());
    run_blocks(unseen);
    if (keeps_branches) end.passed = model_->kept_branches(engine_.observed());
  } else {
    end.retired = run_one();
    note(end);
  }
  const std::uint64_t done = engine_.passed().instructions - std::exchange(passed_time_, engine_.passed().instructions);
  if (resuming && done != 0) {
    regs_.rflags &= ~rflags_rf;
    engine_.resume(engine_state(regs_, sregs_));
  }
  VMM_TRY(port.set_regs(regs_));
  statistics_.instructions += done;
  pass(port, done);
  if (shadow_ && done != 0) VMM_TRY(end_shadow(port));
  if (done == 0) return std::optional<RunEnd>{};
  return std::optional{end};
}

// A string instruction may take several calls of run(), and has been run only once it retires.
Stop ExactSource::run_engine(std::uint64_t instructions) {
  constexpr unsigned most_turns = 64;
  const std::uint64_t end = engine_.passed().instructions + instructions;
  Stop stop = Stop::again;
  for (unsigned turn = 0; turn < most_turns && stop == Stop::again && (turn == 0 || !port_->kick_flag().is_set());
       ++turn)
    stop = engine_.run(end - engine_.passed().instructions);
  for_kvm_ = stop != Stop::budget && stop != Stop::again;
  regs_ = kvm_state(engine_.state());
  return stop;
}

void ExactSource::run_blocks(std::uint64_t instructions) {
  if (watch_.any())
    run_watched(instructions);
  else
    run_engine(instructions);
  const vpmu::exec::Passed now = engine_.passed();
  const vpmu::exec::Passed before = std::exchange(seen_, now);
  progress_.pass(cpl_of(sregs_) != 0, {.instructions = now.instructions - before.instructions,
                                       .branches = now.branches - before.branches,
                                       .loads = now.loads - before.loads,
                                       .stores = now.stores - before.stores});
}

std::optional<Retired> ExactSource::run_one() {
  const auto code = engine_.next_code();
  const Instruction* const instruction =
      code.empty() ? decode_at(instruction_pointer(regs_, sregs_)) : decoded_(code, code_mode(sregs_));
  if (instruction == nullptr) {
    for_kvm_ = true;
    return std::nullopt;
  }
  if (model_ != nullptr) model_->begin_instruction();
  const kvm_regs before = regs_;
  run_engine(1);
  const std::uint64_t retired_before = std::exchange(seen_, engine_.passed()).instructions;
  if (seen_.instructions == retired_before) return std::nullopt;
  ++statistics_.observed;
  Retired retired = retired_instruction(*instruction, before, sregs_, regs_, 1);
  retired.what.macro_fused = progress_.plan().fusion_wanted && is_fused(instruction->fusion, retired.what.next_ip);
  if (model_ != nullptr) model_->complete(retired.what);
  if (model_log_ && progress_.plan().any_armed()) log_modelled(retired.what);
  return retired;
}

/// Whether the instruction and the branch after it, at `next`, are one micro-operation.
bool ExactSource::is_fused(FusionPart first, vpmu::GuestLinear next) {
  if (first != FusionPart::compare && first != FusionPart::test) return false;
  const Instruction* const second = decode_at(next);
  return second != nullptr && fuses(first, second->fusion, next.value());
}

/// Logs the accesses that a record may show.
void ExactSource::log_modelled(const vpmu::Retirement& r) const {
  if (r.has_load) model_log_({.ip = r.ip.value(), .store = false, .access = r.load});
  if (r.has_store) model_log_({.ip = r.ip.value(), .store = true, .access = r.store});
}

void ExactSource::note(const RunEnd& end) {
  if (end.retired) progress_.observe(end.retired->what);
}

void ExactSource::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  visit("pmu.exact.instructions", statistics_.instructions);
  visit("pmu.exact.observed", statistics_.observed);
  visit("pmu.exact.entries", statistics_.entries);
  visit("pmu.exact.in_place", statistics_.in_place);
  visit("pmu.exact.handed_over", statistics_.handed_over);
  visit("pmu.exact.vectors", statistics_.vectors);
  visit("pmu.exact.compiled", engine_.compiled_blocks());
  for (const auto& [mnemonic, count] : statistics_.left) visit(fmt::format("pmu.exact.left.{}", mnemonic), count);
  steps_.visit_statistics(visit);
}

}  // namespace vmm
