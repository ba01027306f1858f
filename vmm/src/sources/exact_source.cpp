#include "sources/exact_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "support/x86.hpp"
#include "vcpu/engine_state.hpp"

namespace vmm {
namespace {

/// Where each instruction may take any number of ticks, the turn's ticks are looked at behind so many instructions, and
/// nowhere else: so an interrupt comes at the same instruction whatever has stopped the engine in between. Fewer, if
/// the turn is short: a power of two, so that what has begun with others goes on with these.
constexpr std::uint64_t max_between_looks = 1024, min_between_looks = 8;
std::uint64_t between_looks_in(std::uint64_t turn) {
  return std::clamp(std::bit_floor(turn / 16), min_between_looks, max_between_looks);
}

/// Whether nothing comes before the vCPU's next instruction, except for what StepSource::deliverable() reports.
bool is_undisturbed(const kvm_vcpu_events& e) {
  return !is_delivering(e) && e.interrupt.shadow == 0 && e.smi.pending == 0;
}

/// MOV RSP, [RSI + 32 bits], of an instruction that has changed RSP.
bool loads_stack_by_rsi(const Instruction& i) {
  constexpr std::uint8_t length = 7;
  constexpr std::int8_t rsi = 6, none = -1;
  return i.mnemonic == "mov" && i.length == length && i.load && i.load->base == rsi && i.load->index == none;
}

}  // namespace

bool ExactSource::count_beside(std::span<const vpmu::CountPlan> plans, CodeCounts* where) {
  plans_beside_.assign(plans.begin(), plans.end());
  where_ = where;
  vcpu_.tell();
  return true;
}

Result<void> ExactSource::program(const vpmu::CountPlan& plan) {
  if (!is_counting()) {
    sibling_.reset();
    // What has passed since is nobody's, unless it was saved while something counted.
    if (!looks_as_saved_) (void)model_.take_cycles(0, vcpu_.engine().observed());
  }
  vpmu::uarch::ProcessorModel* const model = model_.choose(plan, plans_beside_);
  if (model_.is_made()) vcpu_.tell_lost(*model_);
  // A plan without counters is a pause: the translations will be needed again. The engine may go on meanwhile, and the
  // model does not see its accesses, as it sees none that KVM runs.
  const bool counts = is_counted(plan) || !plans_beside_.empty();
  if (counts) {
    if (where_ != nullptr) where_->begin(columns(), model, vcpu_.engine().observed());
    vcpu_.observe(where_ != nullptr ? where_ : static_cast<vpmu::Observer*>(model));
    if (!is_counting() && !std::exchange(looks_as_saved_, false)) first_look_ = vcpu_.engine().observed();
  }
  if (plan.size != 0 || counts)
    vcpu_.engine().count_classes(PlanProgress::wants_classes(plan) ||
                                 std::ranges::any_of(plans_beside_, PlanProgress::wants_classes));
  const auto begin = [&](PlanProgress& progress, const vpmu::CountPlan& of) {
    progress.begin(of, model, steps_.clocks(), &vcpu_.engine().classes(), model_.pipeline());
  };
  begin(progress_, plan);
  // Those go on as they are: what they have not told yet is not lost.
  for (std::size_t i = beside_.size(); i < plans_beside_.size(); ++i) begin(beside_.emplace_back(), plans_beside_[i]);
  turns_.count(counts);
  vpmu::CountPlan stepped = plan;
  stepped.caches_wanted = stepped.caches_wanted || counts;  // so that it counts at all
  return steps_.program(stepped);
}

/// How the model counts the events of those whose places are wanted.
std::vector<CodeCounts::Column> ExactSource::columns() {
  std::vector<CodeCounts::Column> columns;
  for (const CodeEvent& event : where_->events()) {
    CodeCounts::Column& column = columns.emplace_back();
    const auto active = plans_beside_[event.plan].active();
    const auto entry = std::ranges::find(active, event.counter, &vpmu::PlanEntry::counter);
    if (entry == active.end() || entry->per_cycle) continue;
    column.user = entry->usr;
    column.kernel = entry->os;
    column.are_instructions = entry->counts == vpmu::Counts::instructions;
    if (column.are_instructions)
      column.total = [](std::uint64_t now) { return now; };
    else if (!model_.is_made())
      continue;
    else if (entry->counts == vpmu::Counts::cycles)
      column.total = [this](std::uint64_t now) { return model_->cycles(now); };
    else if (vpmu::uarch::ProcessorModel::has(*entry))
      column.total = [this, of = *entry](std::uint64_t /*now*/) { return model_->count(of); };
  }
  return columns;
}

Result<vpmu::CountDeltas> ExactSource::sync(VcpuBackend& backend) {
  const Sibling sibling = backend.sibling();
  if (sibling_) each_progress([&](PlanProgress& p) { p.pass_beside(sibling.since(*sibling_)); });
  sibling_ = sibling;
  vpmu::CountDeltas deltas = progress_.take_deltas();
  // The part of a plan that is left to the engine may have no event for the model.
  if (progress_.plan().last_load_wanted && model_.is_made()) deltas.last_load = model_->take_last_load();
  return deltas;
}

std::span<const vpmu::CountDeltas> ExactSource::sync_beside() {
  deltas_beside_.clear();
  for (PlanProgress& beside : beside_) deltas_beside_.push_back(beside.take_deltas());
  return deltas_beside_;
}

Result<RunEnd> ExactSource::walk(VcpuBackend& backend) { return run(backend, std::nullopt); }

Result<RunEnd> ExactSource::come_out(VcpuBackend& backend) {
  if (turns_.phase() == Turns::Phase::in_exit) {
    VMM_ASSIGN(const auto end, finish(backend));
    if (end) return *end;
  }
  VMM_TRY(leave(backend));
  turns_.come_out();
  return steps_.come_out(backend);
}

Result<RunEnd> ExactSource::run(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) {
  steps_.clocks().follow(backend.tsc_khz());
  between_looks_ = between_looks_in(backend.turn());
  if (!sibling_) sibling_ = backend.sibling();
  if (turns_.phase() == Turns::Phase::in_exit) {
    VMM_ASSIGN(const auto end, finish(backend));
    if (end) return *end;
  }
  if (turns_.is_called_off(backend.hides_time())) VMM_TRY(leave(backend));
  if (turns_.is_free()) return steps_.run(backend, at_most);
  VMM_TRY(give_turn(backend));
  begin_turn(backend);
  if (!turns_.is_held() && turns_.left() != 0) VMM_TRY(take(backend));
  if (!turns_.is_held() || breakpoints_.may_hit(vcpu_)) return hand_over(backend, at_most);
  if (turns_.phase() == Turns::Phase::engine) {
    VMM_ASSIGN(const auto end, interpret(backend));
    if (end) return *end;
  }
  if (turns_.phase() == Turns::Phase::stopped) {
    VMM_ASSIGN(const auto end, run_in_place(backend));
    if (end) return *end;
    note_left();
  }
  return hand_over(backend, at_most);
}

// The core's other thread may have run meanwhile.
void ExactSource::begin_turn(const VcpuBackend& backend) {
  const bool is_beside = backend.sibling().runs;
  steps_.clocks().beside(is_beside);
  model_.begin_turn(is_beside, vcpu_.engine().observed());
}

bool ExactSource::looks_now_and_then() const { return model_.keeps_time() && is_counting(); }

std::uint64_t ExactSource::until_look(std::uint64_t between) const {
  return between - (vcpu_.engine().observed() - first_look_) % between;
}

// After a burst the back end has its turn. One that knows its next deadline does not need to run an instruction itself,
// so the model sees them all.
Result<void> ExactSource::give_turn(VcpuBackend& backend) {
  turns_.extend_pause();
  const bool looks = turns_.is_held() && looks_now_and_then(), is_over = turns_.is_held() && turns_.left() == 0;
  if (looks && until_look(between_looks_) != between_looks_) return {};
  // Each look decides by what is saved: what is left of a burst is not.
  const auto quiet = looks || is_over ? backend.quiet_for() : std::nullopt;
  if (quiet) turns_.allow(*quiet);
  if (!quiet && is_over && keeps_from_kvm()) turns_.delay();
  if (turns_.left() == 0) VMM_TRY(leave(backend));
  if (!turns_.is_held()) turns_.allow(backend.look_around(turns_.left()));
  return {};
}

/// Whether the engine runs the next instruction although it is KVM's turn: PEBS is armed, and only the model can tell
/// the hit level of a memory access. The delay is bounded, because interrupts wait for KVM's turn.
bool ExactSource::keeps_from_kvm() {
  if (!progress_.plan().any_armed() || !turns_.may_delay()) return false;
  const Instruction* const next = code_.at(vcpu_.ip(), vcpu_.sregs());
  return next != nullptr && (next->load || next->store);
}

/// Takes the vCPU from the back end, unless something comes before its next instruction.
Result<void> ExactSource::take(VcpuBackend& backend) {
  if (steps_.in_exit()) return {};
  VMM_ASSIGN(const kvm_vcpu_events events, backend.events());
  if (!is_undisturbed(events)) return {};
  VMM_ASSIGN(const kvm_regs regs, backend.regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  if ((regs.rflags & (x86::rflags::TF::mask | x86::rflags::VM::mask)) != 0) return {};
  VMM_ASSIGN(const bool halted, backend.halted());
  if (halted) return {};
  VMM_ASSIGN(const auto interrupt, steps_.deliverable(backend));
  if (interrupt) return {};
  VMM_ASSIGN(const kvm_debugregs debug, backend.debugregs());
  breakpoints_.follow(debug);
  vcpu_.take(backend, regs, sregs);
  turns_.on(Turns::Event::take);
  ++statistics_.entries;
  return {};
}

Result<void> ExactSource::leave(VcpuBackend& backend) {
  if (!turns_.is_held()) return {};
  turns_.on(Turns::Event::give_back);
  vcpu_.log_written();
  VMM_TRY(in_place_.leave(backend));
  return vcpu_.give_back();
}

// An interrupt or NMI that was blocked may be deliverable now.
Result<void> ExactSource::leave_if_deliverable(VcpuBackend& backend) {
  VMM_ASSIGN(const auto interrupt, steps_.deliverable(backend));
  return interrupt ? leave(backend) : Result<void>{};
}

Result<void> ExactSource::end_shadow(VcpuBackend& backend) {
  VMM_TRY(vcpu_.end_shadow());
  return leave_if_deliverable(backend);
}

void ExactSource::pass(VcpuBackend& backend, std::uint64_t instructions) {
  const std::uint64_t ticks = time_.take_passed();
  turns_.pass(model_.keeps_time() ? ticks : instructions);
  // Without a model of time nobody sees how long a line takes from one core to another.
  if (model_.keeps_time() && model_.took_changed_line()) backend.contend();
  backend.pass_time(ticks, instructions);
}

// Returns empty if the engine could not run anything.
Result<std::optional<RunEnd>> ExactSource::interpret(VcpuBackend& backend) {
  const bool resumes = x86::rflags::RF::test(vcpu_.regs().rflags);
  RunEnd end = run_engine();
  if (where_ != nullptr) where_->ran(vcpu_.engine().observed());
  end.told = vcpu_.take_told();
  const std::uint64_t done = vcpu_.take_ticks();
  if (resumes && done != 0) {
    vcpu_.regs().rflags &= ~x86::rflags::RF::mask;
    vcpu_.resume();
  }
  VMM_TRY(vcpu_.store());
  statistics_.instructions += done;
  pass(backend, done);
  if (done == 0) return std::optional<RunEnd>{};
  if (vcpu_.shadow() != 0) VMM_TRY(end_shadow(backend));
  return std::optional{end};
}

/// Runs whole blocks as far as nothing needs each of their instructions, or else one instruction.
RunEnd ExactSource::run_engine() {
  RunEnd end;
  const Quantum most = quantum();
  if (const std::uint64_t next = unseen(most.instructions); next != 0) {
    const bool keeps_branches = progress_.plan().branches_wanted;
    const auto now = [this] { return model_->cycles(vcpu_.engine().observed()); };
    if (keeps_branches) model_->keep_branches(vcpu_.cpl(), most.filter, now());
    const bool in_bulk = run_unseen(next, most.instructions);
    if (keeps_branches) end.passed = model_->kept_branches(now());
    if (in_bulk) return end;
  }
  run_one(end, most.instructions);
  note(end);
  return end;
}

/// How many instructions, at most so many, need not be observed. Before a counter of cycles overflows they run one by
/// one: then the time of all that has begun is known, and only the next one's is not.
std::uint64_t ExactSource::unseen(std::uint64_t most) const {
  const bool is_user = vcpu_.cpl() != 0;
  const MaxCycles in_many = model_.max_cycles();
  const std::uint64_t many = least([&](const PlanProgress& p) { return p.unseen(is_user, most, in_many); });
  if (many != 0) return many;
  const auto one = std::min<std::uint64_t>(most, 1);
  return least([&](const PlanProgress& p) { return p.unseen(is_user, one, {.of_each = in_many.of_each}); });
}

/// Runs at most `most`, first `next` of them, as long as none must be observed. False: none has run, and the next one
/// must be.
bool ExactSource::run_unseen(std::uint64_t next, std::uint64_t most) {
  const auto passed = [this] { return vcpu_.engine().passed().instructions; };
  const std::uint64_t first = passed(), end = first + most;
  std::uint64_t at = first;
  for (; next != 0; next = unseen(end - at)) {
    if (!run_blocks(next)) break;
    const std::uint64_t before = std::exchange(at, passed());
    if (at != before + next || turns_.phase() != Turns::Phase::engine || vcpu_.has_told()) return true;
  }
  return at != first;
}

// An interrupt shadow and RFLAGS.RF last for one instruction.
ExactSource::Quantum ExactSource::quantum() const {
  const vpmu::CountPlan& plan = progress_.plan();
  Quantum most{.instructions = turns_.at_once(), .filter = plan.lbr_filter};
  if (looks_now_and_then())
    most.instructions = until_look(between_looks_);
  else if (model_.keeps_time())
    most.instructions = std::min(most.instructions, between_looks_);
  const bool one = vcpu_.shadow() != 0 || x86::rflags::RF::test(vcpu_.regs().rflags);
  if (one) most.instructions = std::min<std::uint64_t>(most.instructions, 1);
  if (plan.branches_stored) {
    constexpr std::uint64_t none_is_stored = ~0ULL;
    const std::uint64_t room = storable_ ? storable_(vcpu_.cpl()) : 0;
    if (room != none_is_stored)  // all branches
      most.filter = {.kinds = {0xFF, 0xFF}, .depth = plan.lbr_filter.depth, .call_stack = true};
    most.instructions = std::min(most.instructions, room);
  }
  if (most.filter.call_stack)
    most.instructions = std::min(most.instructions, vpmu::uarch::ProcessorModel::max_of_call_stack);
  return most;
}

/// False: the next instruction makes several accesses, and must be observed.
bool ExactSource::run_blocks(std::uint64_t instructions) {
  const bool is_user = vcpu_.cpl() != 0;
  vcpu_.engine().limit_accesses(least([&](const PlanProgress& p) { return p.unseen_accesses(is_user); }));
  const vpmu::exec::Stop stop =
      breakpoints_.any() ? breakpoints_.run_up_to_hit(vcpu_, instructions) : vcpu_.run_many(instructions);
  note_stop(stop);
  const vpmu::exec::Passed passed = vcpu_.take_passed();
  const Ticks ticks = time_.ran(passed.instructions, vcpu_.engine().observed());
  each_progress([&](PlanProgress& p) { p.pass(is_user, passed, ticks); });
  return stop != vpmu::exec::Stop::accesses || passed.instructions != 0;
}

void ExactSource::run_one(RunEnd& end, std::uint64_t most) {
  const auto code = vcpu_.engine().next_code();
  const Instruction* const next = code.empty() ? code_.at(vcpu_.ip(), vcpu_.sregs()) : code_.of(code, vcpu_.sregs());
  if (next == nullptr) return note_stop(vpmu::exec::Stop::unsupported);
  const Instruction instruction = *next;
  model_.begin_instruction();
  const kvm_regs before = vcpu_.regs();
  vcpu_.engine().limit_accesses(vpmu::exec::MoreAccesses::unlimited);
  note_stop(vcpu_.run(1));
  const vpmu::exec::Passed passed = vcpu_.take_passed();
  if (passed.instructions == 0) {
    return each_progress([&](PlanProgress& p) {
      p.pass(vcpu_.cpl() != 0, {.more_loads = passed.more_loads, .more_stores = passed.more_stores}, {});
    });
  }
  ++statistics_.observed;
  const vpmu::CountPlan& plan = progress_.plan();
  const kvm_regs after = vcpu_.regs();
  const Instruction* const branch = branch_fused_with(instruction.fusion);
  // The model's clock takes a pair for one micro-operation.
  const bool retires_both = branch != nullptr && most > 1 && model_.keeps_time() && run_branch();
  // The cycles in which the instruction waited come before it: a counter of cycles that overflows meanwhile has this
  // instruction, which retires next, in its record (rule P1).
  const bool may_wait = least([](const PlanProgress& p) { return p.may_wait(); }) != 0;
  const auto ran = time_.ran_one(vcpu_.engine().observed(), may_wait);
  if (ran.waiting.cycles != 0) {
    each_progress([&](PlanProgress& p) { p.wait(vcpu_.cpl() != 0, ran.waiting); });
    if (plan.branches_wanted) end.passed.cycles_behind += ran.waiting.cycles;
  }
  Retired retired = retired_instruction(instruction, before, vcpu_.sregs(), after, ran.retiring);
  // The rest of one that was left after some elements; the elements of a gather that its mask selects.
  retired.what.more_loads = static_cast<std::int32_t>(passed.more_loads);
  retired.what.more_stores = static_cast<std::int32_t>(passed.more_stores);
  retired.what.macro_fused = branch != nullptr;
  if (retires_both) join(retired, retired_instruction(*branch, after, vcpu_.sregs(), vcpu_.regs(), {}));
  model_.complete(retired.what, plan.any_armed());
  end.retired = retired;
}

void ExactSource::note_stop(vpmu::exec::Stop stop) {
  using vpmu::exec::Stop;
  stopped_ = stop;
  if (stop != Stop::budget && stop != Stop::again && stop != Stop::accesses) turns_.on(Turns::Event::stop);
}

/// The branch that comes next, if it is one micro-operation with the instruction before it. Null: it is not.
const Instruction* ExactSource::branch_fused_with(const vpmu::exec::FusionPart& first) {
  if (first.first == vpmu::exec::Fusion::none || (fuses_compares_alone_ && !first.compares)) return nullptr;
  const vpmu::GuestLinear next = vcpu_.ip();
  const Instruction* const second = code_.at(next, vcpu_.sregs());
  return second != nullptr && fuses(first, second->fusion, next.value()) ? second : nullptr;
}

/// Runs the branch of a pair right behind its compare. False: something comes between them, or keeps it from retiring.
bool ExactSource::run_branch() {
  if (turns_.phase() != Turns::Phase::engine || breakpoints_.any()) return false;
  note_stop(vcpu_.run(1));
  if (vcpu_.take_passed().instructions == 0) return false;
  ++statistics_.observed;
  return true;
}

// Returns empty if KVM must run the instruction.
Result<std::optional<RunEnd>> ExactSource::run_in_place(VcpuBackend& backend) {
  if (code_mode(vcpu_.sregs()) != CodeMode::bits64) return std::optional<RunEnd>{};
  const Instruction* const instruction = code_.at(vcpu_.ip(), vcpu_.sregs());
  if (instruction == nullptr) return std::optional<RunEnd>{};
  const std::uint64_t flags_before = vcpu_.regs().rflags;
  VMM_ASSIGN(RunInPlace ran, in_place_.run(backend, *instruction, vcpu_, time_));
  if (ran.outcome == SystemInPlace::Outcome::left) return std::optional<RunEnd>{};
  ++statistics_.in_place;
  note_elsewhere(ran.end, vcpu_.engine().observed());
  if (ran.outcome == SystemInPlace::Outcome::exit) {
    turns_.on(Turns::Event::exit);
    return std::optional{ran.end};
  }
  turns_.on(Turns::Event::go_on);
  pass(backend, 1);
  VMM_TRY(look_after(backend, ran.outcome, flags_before));
  return std::optional{ran.end};
}

/// Gives the vCPU back if an instruction that was emulated in place has let an event in, or single-steps from here on.
Result<void> ExactSource::look_after(VcpuBackend& backend, SystemInPlace::Outcome outcome, std::uint64_t flags_before) {
  VMM_ASSIGN(const kvm_vcpu_events events, backend.events());
  const std::uint8_t shadow = events.interrupt.shadow;
  const std::uint64_t flags = vcpu_.regs().rflags;
  if (shadow != 0 && shadow != vcpu_.shadow()) {  // STI or MOV SS; of several in a row only the first casts one
    vcpu_.set_shadow(shadow);
  } else if (vcpu_.shadow() != 0) {
    VMM_TRY(end_shadow(backend));
  } else if (outcome == SystemInPlace::Outcome::done_and_raised || events.nmi.pending != 0 ||
             (~flags_before & flags & x86::rflags::IF::mask) != 0) {
    VMM_TRY(leave_if_deliverable(backend));
  }
  return x86::rflags::TF::test(flags) ? leave(backend) : Result<void>{};
}

// The VMM has answered the exit of an instruction that began here.
Result<std::optional<RunEnd>> ExactSource::finish(VcpuBackend& backend) {
  begin_turn(backend);
  const vpmu::GuestLinear at = vcpu_.ip();
  const unsigned cpl = vcpu_.cpl();
  VMM_ASSIGN(const AnsweredInPlace answered, in_place_.finish(backend, vcpu_, time_));
  turns_.on(Turns::Event::go_on);
  if (!answered.completed) {
    (void)time_.take_passed();
    vcpu_.set_shadow(0);
    VMM_ASSIGN(const kvm_vcpu_events events, backend.events());
    if (!is_undisturbed(events)) VMM_TRY(leave(backend));
    const vpmu::GuestLinear now = vcpu_.ip();
    if (now == at || !progress_.plan().branches_wanted) return std::optional<RunEnd>{};
    return std::optional{RunEnd{.delivered = delivery(at, cpl, now, vcpu_.cpl())}};
  }
  pass(backend, 1);
  if (vcpu_.shadow() != 0) VMM_TRY(end_shadow(backend));
  if (!answered.retired) return std::optional<RunEnd>{};
  RunEnd end{.retired = answered.retired};
  note_elsewhere(end, vcpu_.engine().observed());
  return std::optional{end};
}

// The back end runs one instruction, or delivers the event that comes before it.
Result<RunEnd> ExactSource::hand_over(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) {
  const bool one = turns_.is_held() && is_counting();  // then take() has called deliverable()
  const vpmu::exec::Engine& engine = vcpu_.engine();
  const LeftByEngine left{.why = stopped_, .missing = engine.missing(), .raised = engine.raised()};
  const Instruction* const next = one ? code_.at(vcpu_.ip(), vcpu_.sregs()) : nullptr;
  VMM_TRY(leave(backend));
  turns_.hand_over();
  ++statistics_.handed_over;
  VMM_ASSIGN(const kvm_regs before, backend.regs());
  VMM_ASSIGN(RunEnd end, one ? steps_.run_left(backend, left, next) : steps_.run(backend, at_most));
  if (model_.keeps_time()) {
    // What the VMM wants of the vCPU meanwhile takes none of the guest's time.
    VMM_ASSIGN(const kvm_regs after, backend.regs());
    if (end.retired || after.rip != before.rip) {
      model_.pause(vcpu_.engine().observed());
      each_progress([](PlanProgress& p) { p.end_pipeline(); });
    }
  }
  if (!beside_.empty() && end.retired) VMM_TRY(tell(backend, before, end));
  note_elsewhere(end);
  return end;
}

/// The engine tells of what it runs itself.
Result<void> ExactSource::tell(VcpuBackend& backend, const kvm_regs& before, RunEnd& end) {
  VMM_ASSIGN(const kvm_regs after, backend.regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  const Instruction* const i = code_.at(end.retired->what.ip, sregs);
  if (i == nullptr) return {};
  if (end.retired->what.cpl == 0 && after.rsp != before.rsp && loads_stack_by_rsi(*i))
    end.told = StackSwitch{.from = before.rdi, .to = before.rsi, .stack = after.rsp};
  if (end.retired->what.cpl == 3 && i->mnemonic == "xchg" && !i->load)
    end.told = RbxExchange{.behind = after.rip, .rax = before.rax};
  return {};
}

void ExactSource::note_left() {
  const Instruction* const i = code_.at(vcpu_.ip(), vcpu_.sregs());
  ++statistics_.left[i != nullptr ? i->mnemonic : "invalid"];
  if (i != nullptr) model_.leave(*i, vcpu_.sregs(), vcpu_.follows());
}

void ExactSource::note(RunEnd& end) {
  if (!end.retired) return;
  end.retired->what.has_pipeline = model_.keeps_time();
  each_progress([&](PlanProgress& p) { p.observe(end.retired->what); });
}

/// Of an instruction that the engine has not run. `now`: the cycles that it took are known.
void ExactSource::note_elsewhere(RunEnd& end, std::optional<std::uint64_t> now) {
  note(end);
  if (end.retired && where_ != nullptr) where_->ran_elsewhere(end.retired->what.ip.value(), now);
}

// An engine that continues from the image knows only the current page tables, so the engine forgets now what the TLBs
// have lost. The model has been told when they lost it.
Result<Bytes> ExactSource::save(VcpuBackend& backend) {
  VMM_ASSIGN(const Bytes clocks, steps_.save(backend));
  if (!model_.is_made() && clocks.empty()) return Bytes{};
  ByteWriter out;
  out.put_run(clocks);
  if (!model_.is_made()) return out.take();
  VMM_ASSIGN(const kvm_regs regs, backend.regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  vcpu_.catch_up(engine_state(regs, sregs, backend.paging_limits()));
  out.put(is_counting() ? until_look(max_between_looks) : 0);
  model_.save(out, vcpu_.engine().observed());
  return out.take();
}

Result<bool> ExactSource::restore(VcpuBackend& backend, std::span<const std::byte> image) {
  if (image.empty()) return true;
  ByteReader in{image};
  VMM_ASSIGN(const bool are_clocks, steps_.restore(backend, in.get_run()));
  if (!are_clocks || in.done()) return are_clocks;
  VMM_ASSIGN(const kvm_regs regs, backend.regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  vcpu_.follow(backend, engine_state(regs, sregs, backend.paging_limits()));
  const auto until_look = in.get<std::uint64_t>();
  first_look_ = vcpu_.engine().observed() + until_look;
  looks_as_saved_ = until_look != 0;
  const bool fits = model_.restore(in, vcpu_.engine().observed());
  vcpu_.tell_lost(*model_);
  return fits;
}

void ExactSource::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  visit("pmu.exact.instructions", statistics_.instructions);
  visit("pmu.exact.observed", statistics_.observed);
  visit("pmu.exact.entries", statistics_.entries);
  visit("pmu.exact.in_place", statistics_.in_place);
  visit("pmu.exact.handed_over", statistics_.handed_over);
  visit("pmu.exact.vectors", vcpu_.vectors_read());
  visit("pmu.exact.compiled", vcpu_.engine().compiled_blocks());
  model_.visit_statistics(visit);
  for (const auto& [mnemonic, count] : statistics_.left) visit(fmt::format("pmu.exact.left.{}", mnemonic), count);
  steps_.visit_statistics(visit);
}

}  // namespace vmm
