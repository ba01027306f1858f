#include "soft/soft_backend.hpp"

#include <algorithm>
#include <utility>

#include "soft/instruction_runner.hpp"
#include "soft/soft_image.hpp"
#include "soft/soft_turn.hpp"
#include "support/assert.hpp"
#include "support/error.hpp"
#include "support/x86.hpp"
#include "vcpu/progress_watch.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/registers.hpp"

namespace vmm {
namespace {

/// Instructions between two checks for interrupts.
constexpr std::uint64_t burst = 100'000;

SoftState state_at(const SoftStart& start) {
  SoftState s{.regs = start.regs, .sregs = start.sregs, .id = start.id};
  s.apic.reset(s.id);
  return s;
}

}  // namespace

SoftBackend::SoftBackend(LinearMemory& memory, CpuidTable cpuid, const SoftStart& start, SoftBoard* board)
    : VcpuBackend{vpmu::exec::KickFlag{kicked_}},
      own_board_{board == nullptr ? std::make_unique<SoftBoard>() : nullptr},
      core_{std::make_unique<SoftCore>(*this, memory, board == nullptr ? *own_board_ : *board, std::move(cpuid),
                                       state_at(start), start.tsc_khz)},
      debug_{std::make_unique<DebugUnit>(core_->state)},
      engine_{std::make_unique<SoftEngine>(*core_, start.compiling, kick_flag())},
      runner_{std::make_unique<InstructionRunner>(*core_, *debug_, *engine_, start.devices, start.log)} {
  can_ = {.exits_on_rdpmc = true,
          .runs_alone = true,
          .features = core_->features.all(),
          .paging = core_->features.paging(),
          .tsc_khz = core_->time.tsc_khz()};
  core_->mark_leaf = start.mark_leaf;
  core_->marked = start.marked;
  if (start.waits_for_start) reset_by_init(core_->state);
  turn_ = std::make_unique<SoftTurn>(*core_, *debug_, kicked_);
}

SoftBackend::~SoftBackend() = default;

TimerFactory SoftBackend::timers() { return core_->time.timers(); }
void SoftBackend::stop_after(std::uint64_t ticks) { turn_->stop_after(ticks); }
void SoftBackend::written(vpmu::GuestPhysical page) { engine_->written(page); }

Result<Exit> SoftBackend::run(RunMode /*mode*/) {
  SoftState& s = core_->state;
  runner_->complete_exit();
  debug_->begin_run();
  ProgressWatch progress;
  for (;;) {
    take_turn();
    if (turn_->is_let_in() && !turn_->is_kicked()) continue;  // the kick for which it was let in is over
    if (turn_->is_over()) return Exit{TimeUp{}};
    if (turn_->is_kicked() || core_->time.take_due()) {
      turn_->forget_kick();
      return Exit{Interrupted{}};
    }
    core_->interrupts.refresh();
    if (auto exit = take_events()) return *exit;
    if (turn_->is_at_rest()) {
      if (!turn_->rest()) return Exit{Hlt{}};
      continue;
    }
    s.halted = false;
    const Watch w = debug_->watch();
    const bool one = s.events.interrupt.shadow != 0 || x86::rflags::RF::test(s.regs.rflags);
    if (auto exit =
            w.any() ? runner_->run_watched(w) : runner_->run_some(one ? 1 : std::min(burst, turn_->until_due())))
      return *exit;
    if (progress.has_changed(core_->time.ran()))
      progress.got_on();
    else if (progress.stands(s.regs))
      return ProgressWatch::failure(*this);
  }
}

LeftRun SoftBackend::run_left(const LeftByEngine& left) {
  const SoftState& s = core_->state;
  const auto& e = s.events;
  if (turn_->is_kicked() || turn_->is_over() || debug_->watch().any() || debug_->holds_hits() || s.halted ||
      e.interrupt.shadow != 0 || e.exception.injected != 0 || e.exception.pending != 0)
    return {};
  debug_->begin_run();
  return runner_->run_left(left);
}

bool SoftBackend::tell(MemoryFollower* follower) {
  engine_->tell(follower);
  return true;
}

// After another vCPU's turn, a page that this one wrote to without reporting may hold that vCPU's code.
void SoftBackend::take_turn() {
  if (turn_->take()) engine_->tell_of_writes_anew();
}

std::uint64_t SoftBackend::look_around(std::uint64_t /*left*/) {
  (void)turn_->take();
  engine_->tell_of_writes_anew();  // another engine runs next, and may make code of pages that this one has written to
  core_->interrupts.refresh();
  return turn_->until_due();
}

std::optional<std::uint64_t> SoftBackend::quiet_for() {
  if (turn_->is_kicked() || turn_->is_over()) return 0;
  core_->interrupts.refresh();
  const SoftState& s = core_->state;
  if (s.events.nmi.pending != 0 || s.apic.pending() || s.init_pending) return 0;
  return turn_->until_due();
}

/// Handles INIT, and after that a start-up IPI. SDM 3A 8.4.4.
void SoftBackend::take_start() {
  SoftState& s = core_->state;
  if (std::exchange(s.init_pending, false)) {
    reset_by_init(s);
    core_->interrupts.reset();
    debug_->reset();
  }
  if (!s.waits_for_start) return;
  if (const auto vector = std::exchange(s.start_pending, std::nullopt)) start_at_page(s, *vector);
  engine_->registers_changed();
}

// In the order of SDM 3A table 6-2, as far as these events occur here.
std::optional<Exit> SoftBackend::take_events() {
  SoftState& s = core_->state;
  take_start();
  if (s.waits_for_start) return std::nullopt;
  auto& e = s.events;
  if (e.exception.injected != 0 || e.exception.pending != 0) {
    Exception exception{.vector = e.exception.nr, .error_code = std::nullopt};
    if (e.exception.has_error_code != 0) exception.error_code = e.exception.error_code;
    e.exception = {};
    if (auto exit = runner_->take(exception, exception.vector == x86::vector::DB ? EventKind::trap : EventKind::fault))
      return exit;
  }
  if (debug_->holds_hits() && !debug_->is_behind_mov_ss())
    if (auto exit = runner_->debug_hit(debug_->watch(), debug_->take_held_hits())) return exit;
  if (debug_->blocks_interrupts() || e.interrupt.shadow != 0) return std::nullopt;
  if (e.nmi.pending != 0 && e.nmi.masked == 0) {
    --e.nmi.pending;
    e.nmi.masked = 1;
    ++core_->statistics.interrupts;
    return runner_->take({.vector = x86::vector::NMI, .error_code = std::nullopt}, EventKind::trap);
  }
  const auto vector = x86::rflags::IF::test(s.regs.rflags) ? s.apic.pending() : std::nullopt;
  if (!vector) return std::nullopt;
  s.apic.accept(*vector);
  engine_->written_unseen();  // devices in other processes say that they are done, not what they have written
  ++core_->statistics.interrupts;
  return runner_->take({.vector = *vector, .error_code = std::nullopt}, EventKind::trap);
}

Result<void> SoftBackend::complete_exit() {
  runner_->complete_exit();
  return {};
}

bool SoftBackend::access_beyond_ram(vpmu::GuestLinear at, BytesOfAccess bytes) {
  return runner_->access_beyond_ram(at, bytes);
}

Result<void> SoftBackend::read(RegistersTo to) {
  struct Reader {
    const SoftState& s;
    void operator()(kvm_regs* to) const { *to = s.regs; }
    void operator()(kvm_sregs* to) const { *to = s.sregs; }
    void operator()(kvm_vcpu_events* to) const { *to = s.events; }
    void operator()(kvm_debugregs* to) const { *to = s.debug; }
    void operator()(vpmu::exec::VectorState* to) const { *to = s.vectors; }
    void operator()(kvm_lapic_state* to) const { *to = s.apic.page(); }
  };
  std::visit(Reader{core_->state}, to);
  return {};
}

Result<void> SoftBackend::write(RegistersFrom from) {
  struct Writer {
    SoftState& s;
    SoftEngine& engine;
    DebugUnit& debug;
    void operator()(const kvm_regs* from) const {
      s.regs = *from;
      engine.registers_changed();
    }
    void operator()(const kvm_sregs* from) const {
      s.sregs = *from;
      engine.registers_changed();
    }
    void operator()(const kvm_vcpu_events* from) const { s.events = *from; }
    void operator()(const kvm_debugregs* from) const { s.debug = *from; }
    void operator()(const vpmu::exec::VectorState* from) const { s.vectors = *from; }
    void operator()(const kvm_guest_debug* from) const { debug.set_host(*from); }
  };
  std::visit(Writer{core_->state, *engine_, *debug_}, from);
  return {};
}

Result<void> SoftBackend::forget_translations(const LostTranslations& lost) {
  engine_->translations_changed(lost);
  return {};
}

Result<void> SoftBackend::read_msrs(std::span<const std::uint32_t> indices, std::span<std::uint64_t> values) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] == vpmu::msr::IA32_DEBUGCTL.value()) {
      values[i] = debug_->steps_branches() ? vpmu::reg::debugctl::BTF::mask : 0;
      continue;
    }
    const vpmu::MsrReadResult result = core_->msrs.read(indices[i]);
    if (result.status != vpmu::MsrStatus::ok) return host_error("no such MSR in a vCPU without KVM");
    values[i] = result.value;
  }
  return {};
}

// The PMU holds DEBUGCTL; only BTF has an effect here.
Result<void> SoftBackend::set_msr(std::uint32_t index, std::uint64_t value) {
  if (index == vpmu::msr::IA32_DEBUGCTL.value()) {
    debug_->step_branches(vpmu::reg::debugctl::BTF::test(value));
    return {};
  }
  if (core_->msrs.set(index, value) == vpmu::MsrStatus::ok) return {};
  return host_error("no such MSR in a vCPU without KVM");
}

Result<Stored> SoftBackend::store_lvtpc(std::uint32_t value) {
  core_->state.apic.write(apic::lvtpc, value);
  return Stored::done;
}

Result<void> SoftBackend::raise(const RaisedInterrupt& interrupt) {
  if (interrupt.nmi)
    add_nmi(core_->state);
  else
    core_->state.apic.request(interrupt.vector);
  return {};
}

void SoftBackend::set_lapic(const kvm_lapic_state& state) { core_->state.apic.set_page(state); }
Result<bool> SoftBackend::halted() { return core_->state.halted; }

void SoftBackend::watch_clock(bool on) { core_->time.watch(on); }
std::uint64_t SoftBackend::unhalted_ticks() const { return core_->time.unhalted(); }
void SoftBackend::contend() { core_->board.turns.contend(); }

std::uint64_t SoftBackend::turn() const { return core_->board.turns.turn(); }

void SoftBackend::pass_time(std::uint64_t ticks, std::uint64_t instructions) { core_->pass_time(ticks, instructions); }
Result<std::uint64_t> SoftBackend::tsc_after(std::uint64_t ticks) { return core_->time.tsc_after(ticks); }
Sibling SoftBackend::sibling() const { return core_->board.sibling_of(core_->state.id); }

Bytes SoftBackend::save() const {
  VMM_ASSERT(!runner_->is_pending());
  return save_image(*core_, *debug_);
}

Result<void> SoftBackend::restore(std::span<const std::byte> image) {
  VMM_TRY(restore_image(*core_, *debug_, image));
  engine_->registers_changed();
  engine_->translations_changed();
  return {};
}

void SoftBackend::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  core_->statistics.visit(visit);
  visit("soft.ticks", core_->time.ran());
  visit("soft.decoded_blocks", engine_->decoded_blocks());
  visit("soft.compiled_blocks", engine_->compiled_blocks());
}

}  // namespace vmm
