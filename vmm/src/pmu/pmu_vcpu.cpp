#include "pmu/pmu_vcpu.hpp"

#include <fmt/format.h>

#include <utility>

#include "pmu/registry.hpp"
#include "support/x86.hpp"
#include "vcpu/handlers.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

/// How soon to try again to set LVTPC's mask.
constexpr std::chrono::nanoseconds pmi_retry = std::chrono::microseconds{200};
/// How soon to retry a walk that could not start; doubled after each failed try. On a host with slow VM entries, the
/// guest makes almost no progress in the shortest of these.
constexpr std::chrono::nanoseconds walk_retry = std::chrono::microseconds{200};
constexpr unsigned max_doublings = 3;

/// At most an hour: then the time is computed again.
std::chrono::nanoseconds time_of(std::uint64_t tsc_ticks, std::uint64_t tsc_khz) {
  constexpr std::uint64_t hour_ms = 3'600'000;
  const std::uint64_t ticks = std::min(tsc_ticks, hour_ms * tsc_khz);
  return std::chrono::milliseconds{ticks / tsc_khz} +
         std::chrono::nanoseconds{ticks % tsc_khz * 1'000'000 / tsc_khz + 1};
}

/// Answers as a filter without exits does: with #GP.
void refuse(const Exit& exit) {
  if (const auto* read = std::get_if<MsrRead>(&exit)) read->reply.gp = 1;
  if (const auto* write = std::get_if<MsrWrite>(&exit)) write->reply.gp = 1;
}

ForeignMsrs is_others(const PmuVcpuConfig& config) {
  if (!config.foreign_msr) return {};
  return [others = config.foreign_msr](std::uint32_t access, std::uint32_t index) {
    return others(access, index) != ForeignMsr::none;
  };
}

}  // namespace

std::uint64_t PmuVcpu::Env::tsc() { return owner_->tsc_.read(); }

PmuVcpu::PmuVcpu(const PmuVcpuConfig& config, VcpuBackend& backend, LinearMemory& memory, Log& log)
    : backend_{&backend},
      log_{&log},
      tsc_{backend, log},
      pmu_{config.pmu},
      view_{backend, memory},
      breakpoints_{backend},
      gate_{backend, breakpoints_, view_},
      debug_moves_{backend, breakpoints_, view_},
      uncore_{config.uncore},
      router_{pmu_, config.uncore, backend, tsc_, config.unknown_msr, log},
      env_{*this},
      foreign_msr_{config.foreign_msr} {}

Result<std::unique_ptr<PmuVcpu>> PmuVcpu::create(const PmuVcpuConfig& config, VcpuBackend& backend,
                                                 LinearMemory& memory, Log& log) {
  std::unique_ptr<PmuVcpu> self{new PmuVcpu{config, backend, memory, log}};
  const auto storable = [pmu = self.get()](unsigned cpl) { return pmu->pmu_.branches_storable(cpl, pmu->env_); };
  VMM_ASSIGN(self->source_, make_source(config.source, {.breakpoints = self->breakpoints_,
                                                        .view = self->view_,
                                                        .memory = memory,
                                                        .generation = vpmu::describe(config.pmu.generation),
                                                        .seed = config.pmu.seed,
                                                        .options = config.source_options,
                                                        .services = config.source_services,
                                                        .foreign_msr = is_others(config),
                                                        .storable = storable,
                                                        .log = log}));
  // The one that was made may be another than the one that was chosen.
  self->uncounted_ =
      UncountedEvents{self->source_->traits().name, config.source_options, vpmu::describe(config.pmu.generation)};
  if (config.tasks != nullptr)
    self->tasks_ = std::make_unique<TaskCounter>(
        *config.tasks, config.cpu, config.pmu, self->env_,
        TaskMemory{
            .word = [view = &self->view_](vpmu::GuestPhysical at) { return view->word_at(at); },
            .program = [view = &self->view_](vpmu::GuestLinear at,
                                             std::span<std::byte> out) { return !view->read_as_program(at, out); }});
  return self;
}

Result<Exit> PmuVcpu::run() {
  progress_.got_on();
  for (;;) {
    got_on_ = false;
    VMM_ASSIGN(const auto exit, go_on());
    if (exit) return *exit;
    VMM_TRY(look_at_progress());
  }
}

// An instruction that the source has run without retiring it shows in the registers, or in what the source counts. One
// that KVM has run alone ends in an exit, or shows in the registers.
inline Result<void> PmuVcpu::look_at_progress() {
  if (progress_.has_changed(source_->progress()) || got_on_) {
    progress_.got_on();
    return {};
  }
  VMM_ASSIGN(const kvm_regs regs, backend_->regs());
  return progress_.stands(regs) ? ProgressWatch::failure(*backend_) : Result<void>{};
}

// Whether the guest may run with no work before and after. A run for a debugger leaves breakpoints that apply() must
// set again.
inline bool PmuVcpu::is_idle() const {
  const bool uncore_awaits = uncore_.package != nullptr && uncore_.package->is_awaited();
  return source_->is_idle() && !pmu_.needs_replan() && !pmi_.pending() && !uncore_awaits &&
         caches_wanted() == plan_.caches_wanted && breakpoints_.none() && (tasks_ == nullptr || !tasks_->is_marked());
}

VcpuBackend::DeviceRun PmuVcpu::run_to_device() {
  if (!is_idle()) return VcpuBackend::DeviceRun::not_run;
  const auto came = backend_->run_to_device();
  plan_.missed_runs = true;
  walks_.wait = false;
  last_exit_ = came == VcpuBackend::DeviceRun::device_exit  ? LastExit::open
               : came == VcpuBackend::DeviceRun::other_exit ? LastExit::waiting
                                                            : LastExit::completed;
  return came;
}

Result<std::optional<Exit>> PmuVcpu::go_on() {
  std::optional<Exit> exit;
  WrittenMsr written;
  if (last_exit_ == LastExit::waiting) {
    last_exit_ = LastExit::completed;
    VMM_ASSIGN(const Exit came_to, backend_->exit());
    exit.emplace(came_to);
  } else if (is_idle()) {
    last_exit_ = LastExit::completed;
    walks_.wait = false;
    plan_.missed_runs = true;
    VMM_ASSIGN(const Exit came_to, backend_->run());
    exit.emplace(came_to);
  } else {
    VMM_TRY(prepare());
    VMM_ASSIGN(const RunEnd end, let_run());
    const auto* const write = end.exit ? std::get_if<MsrWrite>(&*end.exit) : nullptr;
    if (write != nullptr) written = router_.find(write->index);
    VMM_TRY(account(end, written));
    got_on_ = end.retired || end.delivered;
    if (!end.exit) return exit;
    exit.emplace(*end.exit);
  }
  got_on_ = got_on_ || !std::holds_alternative<Debug>(*exit);
  VMM_ASSIGN(const bool answered, handle(*exit, written));
  if (answered) exit.reset();
  return exit;
}

// Does all that must be in place before the guest runs its next instruction.
Result<void> PmuVcpu::prepare() {
  VMM_TRY(look_at_uncore());
  VMM_TRY(look_at_halt());
  if (pmu_.needs_replan()) pmu_.settle({}, env_);  // a write may have ended the wait of a PMI (rule Q5a)
  const bool caches = caches_wanted();
  if (tasks_ != nullptr && tasks_->is_marked()) {
    if (!source_->count_beside(tasks_->take_mark(), tasks_->where()))
      return host_error(fmt::format("the source {} counts nothing beside the guest's PMU", source_->traits().name));
    plan_.stale = true;
  }
  if (pmu_.take_replan() || std::exchange(plan_.stale, false) || caches != plan_.caches_wanted) {
    plan_.stale = false;
    vpmu::CountPlan plan = pmu_.plan();
    plan.caches_wanted = plan_.caches_wanted = caches;
    plan_.armed = plan.any_armed();
    if (std::exchange(plan_.missed_runs, false)) source_->missed_runs(last_exit_ == LastExit::open);
    uncounted_.look_at(plan, [this](vpmu::MsrIndex index) { return pmu_.rdmsr(index).value; });
    VMM_TRY(source_->program(plan));
  }
  if (pmi_.pending()) {
    const PmiStatistics before = pmi_.statistics();
    VMM_TRY(deliver_pmis());
    const PmiStatistics& now = pmi_.statistics();
    const bool nmi = now.delivered_nmi != before.delivered_nmi;
    // A PMI that is dropped or put off raises nothing.
    if (nmi || now.delivered_fixed != before.delivered_fixed) source_->raised();
    if (nmi) nmi_in_service_ = true;
  }
  return breakpoints_.apply();
}

// This function ensures that a kick ends run(). All work of one round of run()'s loop is bounded or checks the flag,
// and the next round comes here.
Result<RunEnd> PmuVcpu::let_run() {
  if (backend_->kick_flag().is_set()) {
    last_exit_ = LastExit::completed;
    walks_.wait = false;
    return source_->come_out(*backend_);
  }
  VMM_ASSIGN(const bool waits, waits_for_handler());
  if (plan_.armed && !walks_.wait && !waits) {
    if (last_exit_ == LastExit::open) {
      VMM_TRY(backend_->complete_exit());
      last_exit_ = LastExit::completed;
    }
    VMM_ASSIGN(RunEnd end, source_->walk(*backend_));
    const bool is_kicked = end.exit && std::holds_alternative<Interrupted>(*end.exit);
    walks_.wait = !end.retired && (!end.exit || is_kicked);
    if (end.retired) walks_.tries = 0;
    if (end.exit || end.retired) return end;
  }
  std::optional<std::chrono::nanoseconds> at_most;
  if (plan_.armed) at_most = walk_retry * (1U << std::min(walks_.tries, max_doublings));
  if (pmi_.pending()) at_most = at_most ? std::min(*at_most, pmi_retry) : pmi_retry;
  if (uncore_.package != nullptr && uncore_.package->is_awaited()) {
    const auto due = time_of(uncore_.package->until_overflow().value_or(0), backend_->tsc_khz());
    at_most = at_most ? std::min(*at_most, due) : due;
  }
  if (plan_.armed) ++walks_.tries;
  last_exit_ = LastExit::completed;
  walks_.wait = false;
  return source_->run(*backend_, at_most);
}

// In the order in which they happened: the counts so far, the instruction that has retired, and the event delivered
// after it.
Result<void> PmuVcpu::account(const RunEnd& end, const WrittenMsr& written) {
  VMM_ASSIGN(const vpmu::CountDeltas deltas, source_->sync(*backend_));
  pmu_.settle(deltas, env_);
  if (tasks_ != nullptr) tasks_->settle(source_->sync_beside());
  pmu_.record_branches(end.passed, env_);
  // How another VMM will answer its own exit is not known yet. Assumes that it accepts the value, as it mostly does.
  bool faults = false;
  if (written) {
    const ForeignMsr theirs = others(*end.exit);
    faults = theirs == ForeignMsr::faults ||
             (theirs == ForeignMsr::none && router_.faults(std::get<MsrWrite>(*end.exit), *written));
  }
  if (end.retired && !faults) retire(*end.retired);
  if (end.delivered) pmu_.record_branch(*end.delivered, env_);
  if (tasks_ == nullptr) return {};
  if (const auto* const stack = std::get_if<StackSwitch>(&end.told)) tasks_->switched(*stack);
  if (const auto* const exchange = std::get_if<RbxExchange>(&end.told))
    if (const auto request = read_client_request(*exchange, view_)) tasks_->requested(*request);
  return {};
}

void PmuVcpu::retire(const Retired& retired) {
  vpmu::Retirement retirement = retired.what;
  retirement.registers = &retired.registers;
  pmu_.retire(retirement, env_);
  if (tasks_ != nullptr) tasks_->retire(retirement);
  // A walk may end on an instruction that was not the event after all, such as a load that splits no line. To walk
  // again at once would single-step the guest for as long as the event does not occur.
  walks_.wait = !source_->traits().precise_ip && pmu_.plan().any_armed();
}

ForeignMsr PmuVcpu::others(const Exit& exit) const {
  if (!foreign_msr_) return ForeignMsr::none;
  const auto of = [&](const auto& access, std::uint32_t kind) {
    return access.reason == MsrReason::filter ? foreign_msr_(kind, access.index) : ForeignMsr::exits;
  };
  if (const auto* read = std::get_if<MsrRead>(&exit)) return of(*read, KVM_MSR_FILTER_READ);
  if (const auto* write = std::get_if<MsrWrite>(&exit)) return of(*write, KVM_MSR_FILTER_WRITE);
  return ForeignMsr::none;
}

Result<bool> PmuVcpu::handle(const Exit& exit, const WrittenMsr& written) {
  if (const ForeignMsr theirs = others(exit); theirs != ForeignMsr::none) {
    last_exit_ = LastExit::open;
    if (theirs == ForeignMsr::faults) refuse(exit);
    return theirs == ForeignMsr::faults;
  }
  if (const auto* read = std::get_if<MsrRead>(&exit)) {
    ++statistics_.msr_reads;
    last_exit_ = LastExit::open;
    VMM_TRY(on_read(*read));
    return true;
  }
  if (const auto* write = std::get_if<MsrWrite>(&exit)) {
    ++statistics_.msr_writes;
    last_exit_ = LastExit::open;
    router_.write(*write, written ? *written : router_.find(write->index));
    VMM_TRY(follow_use(*write));
    return true;
  }
  if (const auto* counter = std::get_if<CounterRead>(&exit)) {
    last_exit_ = LastExit::open;
    VMM_TRY(on_rdpmc(*counter));
    return true;
  }
  if (const auto* debug = std::get_if<Debug>(&exit)) return on_debug(*debug);
  if (std::holds_alternative<Interrupted>(exit)) {
    ++statistics_.kicks;
    VMM_TRY(breakpoints_.put_away());  // whoever kicks may read the vCPU's state
  }
  const bool is_open = std::holds_alternative<PortRead>(exit) || std::holds_alternative<PortWrite>(exit) ||
                       std::holds_alternative<MmioRead>(exit) || std::holds_alternative<MmioWrite>(exit);
  last_exit_ = is_open ? LastExit::open : LastExit::completed;
  return false;
}

// The PMU is in use while a counter is selected, or holds a value that the guest has not read yet: Linux reads a
// counter before or after it clears its select, and a throttled one again, even after it has restarted the others. The
// use ends when the guest restarts its counters with none left to count or read.
Result<void> PmuVcpu::follow_use(const MsrWrite& write) {
  const vpmu::MsrIndex index{write.index};
  if (const auto counter = vpmu::counter_at(index)) {
    uncounted_.was_written(*counter);
    if (write.value != 0) unread_.add(*counter);
  }
  const vpmu::CounterSet deselected = std::exchange(selected_, pmu_.selected()) - pmu_.selected();
  unread_ = unread_ | pmu_.enabled() | deselected;
  const bool in_use = !(unread_ | selected_).empty();
  const bool restarts = index == vpmu::msr::IA32_PERF_GLOBAL_CTRL && write.value != 0;
  if (restarts) nmi_in_service_ = false;
  if (!in_use && !restarts) return {};
  return use(in_use);
}

Result<void> PmuVcpu::use(bool in_use) {
  backend_->watch_clock(in_use);
  if (backend_->exits_on_rdpmc()) return {};
  VMM_TRY(gate_.update(in_use));
  std::optional<vpmu::GuestLinear> handler;
  if (breakpoints_.gate()) {
    VMM_ASSIGN(const kvm_sregs sregs, backend_->sregs());
    handler = handler_of(view_, sregs, x86::vector::DB);
  }
  breakpoints_.set_debug_gate(handler);
  return {};
}

Result<void> PmuVcpu::on_rdpmc(const CounterRead& access) {
  VMM_ASSIGN(const kvm_sregs sregs, backend_->sregs());
  const auto value = rdpmc(access.ecx, cpl_of(sregs), x86::cr4::PCE::test(sregs.cr4));
  access.reply.data = value.value_or(0);
  access.reply.gp = value ? 0 : 1;
  gate_.count_served();
  return {};
}

std::optional<std::uint64_t> PmuVcpu::rdpmc(std::uint32_t ecx, unsigned cpl, bool pce) {
  const auto value = pmu_.rdpmc(ecx, cpl, pce);
  if (value) was_read(*vpmu::rdpmc_counter(ecx));
  return value;
}

void PmuVcpu::was_read(vpmu::CounterId counter) {
  uncounted_.was_read(counter);
  if (!pmu_.enabled().has(counter)) unread_.remove(counter);
}

Result<void> PmuVcpu::on_read(const MsrRead& access) {
  router_.read(access);
  if (const auto counter = vpmu::counter_at(vpmu::MsrIndex{access.index})) was_read(*counter);
  return {};
}

}  // namespace vmm
