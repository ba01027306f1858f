#include "pmu/pmu_vcpu.hpp"

#include <array>
#include <span>
#include <utility>

#include "decode/instruction.hpp"
#include "pmu/registry.hpp"
#include "vcpu/handlers.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

constexpr unsigned vector_db = 1;
constexpr std::uint64_t cr4_pce = vpmu::bit(8);
/// How soon to check a masked LVTPC again: the guest's unmasking causes no exit.
constexpr std::chrono::nanoseconds lvtpc_poll = std::chrono::microseconds{200};
/// How soon to retry a walk that could not start; doubled after each failed try. On a host with slow VM entries, the
/// guest makes almost no progress in the shortest of these.
constexpr std::chrono::nanoseconds walk_retry = std::chrono::microseconds{200};
constexpr unsigned most_doublings = 3;
/// How many tries to wait for a PMI's handler to stop the counters: some 100 ms. A guest need not stop them at all.
constexpr unsigned most_handler_tries = 64;

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

OthersMsrs is_others(const PmuVcpuConfig& config) {
  if (!config.others_msr) return {};
  return [others = config.others_msr](std::uint32_t access, std::uint32_t index) {
    return others(access, index) != OthersMsr::none;
  };
}

}  // namespace

std::uint64_t PmuVcpu::Env::tsc() { return owner_->tsc_.read(); }

// The core has no error path for this: a guest that misses the page fault gets one record less.
void PmuVcpu::Env::inject_page_fault(const vpmu::AccessFault& fault) {
  const auto raised = owner_->raise_page_fault(fault);
  if (raised) return;
  ++owner_->statistics_.lost_page_faults;
  if (owner_->log_->first_time("page fault"))
    owner_->log_->warning(
        "a page fault of the PMU's at {:#x} could not be raised in the guest: {} (pmu.page_faults.lost)",
        fault.address.value(), describe(raised.error()));
}

Result<void> PmuVcpu::raise_page_fault(const vpmu::AccessFault& fault) {
  VMM_ASSIGN(kvm_sregs sregs, port_->sregs());
  VMM_ASSIGN(kvm_vcpu_events events, port_->events());
  sregs.cr2 = fault.address.value();
  events.exception.injected = 1;
  events.exception.nr = 14;
  events.exception.has_error_code = 1;
  events.exception.error_code = fault.error_code;
  VMM_TRY(port_->set_sregs(sregs));
  VMM_TRY(port_->set_events(events));
  source_->raised();
  return {};
}

PmuVcpu::PmuVcpu(const PmuVcpuConfig& config, VcpuPort& port, LinearMemory& memory, Log& log)
    : port_{&port},
      log_{&log},
      tsc_{port, log},
      pmu_{config.pmu},
      view_{port, memory},
      breakpoints_{port},
      gate_{port, breakpoints_, view_, config.rdpmc},
      debug_moves_{port, breakpoints_, view_},
      pmi_{config.lvtpc_masked},
      uncore_{config.uncore},
      router_{pmu_, config.uncore, port, tsc_, config.unknown_msr, log},
      env_{*this},
      others_msr_{config.others_msr} {}

Result<std::unique_ptr<PmuVcpu>> PmuVcpu::create(const PmuVcpuConfig& config, VcpuPort& port, LinearMemory& memory,
                                                 Log& log) {
  std::unique_ptr<PmuVcpu> self{new PmuVcpu{config, port, memory, log}};
  const auto storable = [pmu = self.get()](unsigned cpl) { return pmu->pmu_.branches_storable(cpl, pmu->env_); };
  VMM_ASSIGN(self->source_, make_source(config.source, {.breakpoints = self->breakpoints_,
                                                        .view = self->view_,
                                                        .memory = memory,
                                                        .generation = vpmu::describe(config.pmu.generation),
                                                        .seed = config.pmu.seed,
                                                        .options = config.source_options,
                                                        .services = config.source_services,
                                                        .others_msr = is_others(config),
                                                        .storable = storable,
                                                        .log = log}));
  return self;
}

Result<Exit> PmuVcpu::run() {
  for (;;) {
    VMM_ASSIGN(const auto exit, go_on());
    if (exit) return *exit;
  }
}

// Whether the guest may run with no work before and after. A run for a debugger leaves breakpoints that apply() must
// set again.
inline bool PmuVcpu::is_idle() const {
  const bool uncore_awaits = uncore_.package != nullptr && uncore_.package->is_awaited();
  return source_->is_idle() && !pmu_.needs_replan() && !pmi_.pending() && !uncore_awaits && breakpoints_.none();
}

VcpuPort::Came PmuVcpu::run_to_device() {
  if (!is_idle()) return VcpuPort::Came::nowhere;
  const auto came = port_->run_to_device();
  came_elsewhere_ = came == VcpuPort::Came::elsewhere;
  ran_idle_ = true;
  exit_open_ = came == VcpuPort::Came::to_device;
  walk_later_ = false;
  return came;
}

Result<std::optional<Exit>> PmuVcpu::go_on() {
  std::optional<Exit> exit;
  WrittenMsr written;
  if (std::exchange(came_elsewhere_, false)) {
    VMM_ASSIGN(const Exit came_to, port_->exit());
    exit.emplace(came_to);
  } else if (is_idle()) {
    exit_open_ = walk_later_ = false;
    ran_idle_ = true;
    VMM_ASSIGN(const Exit came_to, port_->run());
    exit.emplace(came_to);
  } else {
    VMM_TRY(prepare());
    VMM_ASSIGN(const RunEnd end, let_run());
    const auto* const write = end.exit ? std::get_if<MsrWrite>(&*end.exit) : nullptr;
    if (write != nullptr) written = router_.find(write->index);
    VMM_TRY(account(end, written));
    if (!end.exit) return exit;
    exit.emplace(*end.exit);
  }
  VMM_ASSIGN(const bool answered, handle(*exit, written));
  if (answered) exit.reset();
  return exit;
}

// An overflow is noticed when the vCPU next leaves its guest. Interrupts from other parts of the package are not
// precise either.
Result<void> PmuVcpu::look_at_uncore() {
  if (uncore_.package == nullptr || !uncore_.package->is_awaited()) return {};
  if (uncore_.package->take_overflow(uncore_.id, tsc_.read())) pmu_.on_uncore_overflow(env_);
  return {};
}

// At the IRET of an NMI handler, KVM may be single-stepping the guest (store_to_apic). The PMI is as good one
// instruction later: no other guest code runs in between.
Result<bool> PmuVcpu::is_leaving_nmi_handler() {
  VMM_ASSIGN(const kvm_vcpu_events events, port_->events());
  if (events.nmi.masked == 0) return false;
  VMM_ASSIGN(const kvm_regs regs, port_->regs());
  VMM_ASSIGN(const kvm_sregs sregs, port_->sregs());
  std::array<std::byte, longest_instruction> code{};
  const std::size_t size = view_.fetch(instruction_pointer(regs, sregs), code, cpl_of(sregs));
  const auto next = decode_instruction(std::span{code}.first(size), code_mode(sregs));
  return !next || next->is(SystemOp::iret);  // unreadable code may be an IRET
}

Result<void> PmuVcpu::deliver_pmis() {
  if (!pmi_.pending()) return {};
  VMM_ASSIGN(const bool later, is_leaving_nmi_handler());
  return later ? Result<void>{} : pmi_.deliver(*port_);
}

// Does all that must be in place before the guest runs its next instruction.
Result<void> PmuVcpu::prepare() {
  VMM_TRY(look_at_uncore());
  if (pmu_.take_replan() || std::exchange(plan_stale_, false)) {
    const vpmu::CountPlan plan = pmu_.plan();
    armed_ = plan.any_armed();
    if (std::exchange(ran_idle_, false) && exit_open_) source_->left_open();
    VMM_TRY(source_->program(plan));
  }
  if (pmi_.pending()) {
    const PmiStatistics before = pmi_.statistics();
    VMM_TRY(deliver_pmis());
    const PmiStatistics& now = pmi_.statistics();
    const bool nmi = now.delivered_nmi != before.delivered_nmi;
    // A PMI that waits for LVTPC raises nothing.
    if (nmi || now.delivered_fixed != before.delivered_fixed) source_->raised();
    if (nmi) nmi_in_service_ = true;
  }
  return breakpoints_.apply();
}

// This function ensures that a kick ends run(). All work of one round of run()'s loop is bounded or checks the flag,
// and the next round comes here.
Result<RunEnd> PmuVcpu::let_run() {
  if (port_->kick_flag().is_set()) {
    exit_open_ = walk_later_ = false;
    return source_->come_out(*port_);
  }
  VMM_ASSIGN(const bool waits, waits_for_handler());
  if (armed_ && !walk_later_ && !waits) {
    if (exit_open_) {
      VMM_TRY(port_->complete_exit());
      exit_open_ = false;
    }
    VMM_ASSIGN(RunEnd end, source_->walk(*port_));
    const bool is_kicked = end.exit && std::holds_alternative<Interrupted>(*end.exit);
    walk_later_ = !end.retired && (!end.exit || is_kicked);
    if (end.retired) walk_tries_ = 0;
    if (end.exit || end.retired) return end;
  }
  std::optional<std::chrono::nanoseconds> at_most;
  if (armed_) at_most = walk_retry * (1U << std::min(walk_tries_, most_doublings));
  if (pmi_.pending()) at_most = at_most ? std::min(*at_most, lvtpc_poll) : lvtpc_poll;
  if (uncore_.package != nullptr && uncore_.package->is_awaited()) {
    const auto due = time_of(uncore_.package->until_overflow().value_or(0), port_->tsc_khz());
    at_most = at_most ? std::min(*at_most, due) : due;
  }
  if (armed_) ++walk_tries_;
  exit_open_ = false;
  walk_later_ = false;
  return source_->run(*port_, at_most);
}

// On hardware, a handler stops the counters long before the next overflow. With slow exits it may not: its own entry
// would be sampled, and it would find several records and leave an unexpected PMI pending. KVM's NMI mask cannot tell
// whether the handler still runs: the IRET of a page fault in the handler clears it.
Result<bool> PmuVcpu::waits_for_handler() {
  if (!nmi_in_service_ || !armed_ || source_->traits().precise_ip) return false;
  VMM_ASSIGN(const bool masked, Pmi::is_masked(*port_));
  nmi_in_service_ = masked && walk_tries_ < most_handler_tries;
  return nmi_in_service_;
}

// In the order in which they happened: the counts so far, the instruction that has retired, and the event delivered
// after it.
Result<void> PmuVcpu::account(const RunEnd& end, const WrittenMsr& written) {
  VMM_ASSIGN(const vpmu::CountDeltas deltas, source_->sync(*port_));
  pmu_.settle(deltas, env_);
  pmu_.record_branches(end.passed, env_);
  // How another VMM will answer its own exit is not known yet. Assumes that it accepts the value, as it mostly does.
  bool faults = false;
  if (written) {
    const OthersMsr theirs = others(*end.exit);
    faults = theirs == OthersMsr::faults ||
             (theirs == OthersMsr::none && router_.faults(std::get<MsrWrite>(*end.exit), *written));
  }
  if (end.retired && !faults) retire(*end.retired);
  if (end.delivered) pmu_.record_branch(*end.delivered, env_);
  return {};
}

void PmuVcpu::retire(const Retired& retired) {
  vpmu::Retirement retirement = retired.what;
  retirement.registers = &retired.registers;
  pmu_.retire(retirement, env_);
  // A walk may end on an instruction that was not the event after all, such as a load that splits no line. To walk
  // again at once would single-step the guest for as long as the event does not occur.
  walk_later_ = !source_->traits().precise_ip && pmu_.plan().any_armed();
}

OthersMsr PmuVcpu::others(const Exit& exit) const {
  if (!others_msr_) return OthersMsr::none;
  const auto of = [&](const auto& access, std::uint32_t kind) {
    return access.reason == MsrReason::filter ? others_msr_(kind, access.index) : OthersMsr::exits;
  };
  if (const auto* read = std::get_if<MsrRead>(&exit)) return of(*read, KVM_MSR_FILTER_READ);
  if (const auto* write = std::get_if<MsrWrite>(&exit)) return of(*write, KVM_MSR_FILTER_WRITE);
  return OthersMsr::none;
}

Result<bool> PmuVcpu::handle(const Exit& exit, const WrittenMsr& written) {
  if (const OthersMsr theirs = others(exit); theirs != OthersMsr::none) {
    exit_open_ = true;
    if (theirs == OthersMsr::faults) refuse(exit);
    return theirs == OthersMsr::faults;
  }
  if (const auto* read = std::get_if<MsrRead>(&exit)) {
    ++statistics_.msr_reads;
    exit_open_ = true;
    VMM_TRY(on_read(*read));
    return true;
  }
  if (const auto* write = std::get_if<MsrWrite>(&exit)) {
    ++statistics_.msr_writes;
    exit_open_ = true;
    router_.write(*write, written ? *written : router_.find(write->index));
    VMM_TRY(follow_use(*write));
    return true;
  }
  if (const auto* counter = std::get_if<CounterRead>(&exit)) {
    exit_open_ = true;
    VMM_TRY(on_rdpmc(*counter));
    return true;
  }
  if (const auto* debug = std::get_if<Debug>(&exit)) return on_debug(*debug);
  if (std::holds_alternative<Interrupted>(exit)) {
    ++statistics_.kicks;
    VMM_TRY(breakpoints_.put_away());  // whoever kicks may read the vCPU's state
  }
  exit_open_ = std::holds_alternative<PortRead>(exit) || std::holds_alternative<PortWrite>(exit) ||
               std::holds_alternative<MmioRead>(exit) || std::holds_alternative<MmioWrite>(exit);
  return false;
}

// The PMU is in use while a counter is selected, or holds a value that the guest has not read yet: Linux reads a
// counter before or after it clears its select, and a throttled one even after it has restarted the others. The use
// ends when the guest restarts its counters with none left to count or read.
Result<void> PmuVcpu::follow_use(const MsrWrite& write) {
  const vpmu::MsrIndex index{write.index};
  if (const auto counter = vpmu::counter_at(index); counter && write.value != 0) unread_.add(*counter);
  unread_ = unread_ | pmu_.enabled();
  const bool in_use = !(unread_ | pmu_.selected()).empty();
  const bool restarts = index == vpmu::msr::IA32_PERF_GLOBAL_CTRL && write.value != 0;
  if (restarts) nmi_in_service_ = false;
  if (!in_use && !restarts) return {};
  return use(in_use);
}

Result<void> PmuVcpu::use(bool in_use) {
  port_->watch_clock(in_use);
  if (port_->exits_on_rdpmc()) return {};
  VMM_TRY(gate_.update(in_use));
  std::optional<vpmu::GuestLinear> handler;
  if (breakpoints_.gate()) {
    VMM_ASSIGN(const kvm_sregs sregs, port_->sregs());
    handler = handler_of(view_, sregs, vector_db);
  }
  breakpoints_.set_debug_gate(handler);
  return {};
}

Result<void> PmuVcpu::on_rdpmc(const CounterRead& access) {
  VMM_ASSIGN(const kvm_sregs sregs, port_->sregs());
  const auto value = rdpmc(access.ecx, cpl_of(sregs), (sregs.cr4 & cr4_pce) != 0);
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
  if (!pmu_.enabled().has(counter)) unread_.remove(counter);
}

Result<void> PmuVcpu::on_read(const MsrRead& access) {
  VMM_ASSIGN(const bool rdpmc, gate_.is_rewritten(access.index));
  if (!rdpmc) {
    router_.read(access);
    if (const auto counter = vpmu::counter_at(vpmu::MsrIndex{access.index})) was_read(*counter);
    return {};
  }
  const auto value = this->rdpmc(access.index, 0, true);  // only ring 0 code is rewritten
  access.reply.data = value.value_or(0);
  access.reply.gp = value ? 0 : 1;
  gate_.count_served();
  return {};
}

}  // namespace vmm
