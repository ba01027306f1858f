#include "sources/on_demand_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "model/own_part.hpp"
#include "support/assert.hpp"
#include "support/x86.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

static_assert(vpmu::uarch::ProfileChanges::max_dram < vpmu::timing::CoreTimer::max_per_instruction);

void OnDemandModel::make() {
  const auto profile = changed_profile(*generation_, changes_);
  VMM_ASSERT(profile.has_value());
  model_ = caches_ != nullptr ? caches_->make_model(*profile, cpu_)
                              : std::make_unique<vpmu::uarch::ProcessorModel>(*profile);
  if (timer_ == nullptr) return;
  model_->keep_time(*timer_);
  if (caches_ != nullptr) uses_ = caches_->uses(cpu_);
}

vpmu::uarch::ProcessorModel* OnDemandModel::choose(const vpmu::CountPlan& plan,
                                                   std::span<const vpmu::CountPlan> beside) {
  const auto any = [&](auto holds) { return holds(plan) || std::ranges::any_of(beside, holds); };
  const bool wanted = any(vpmu::uarch::ProcessorModel::is_wanted) || (keeps_time() && any(is_counted));
  if (wanted && model_ == nullptr) make();
  if (model_ != nullptr) {
    model_->follow(plan);
    for (const vpmu::CountPlan& more : beside) model_->follow_beside(more);
  }
  if (timer_ != nullptr)
    timer_->count(any([](const auto& p) { return PlanProgress::wants_pipeline(p, vpmu::timing::CoreTimer::told()); }));
  return wanted ? model_.get() : nullptr;
}

std::uint64_t OnDemandModel::take_cycles(std::uint64_t instructions, std::uint64_t now) {
  if (timer_ == nullptr) return instructions;
  const std::uint64_t cycles = model_ != nullptr ? model_->cycles(now) : timer_->cycles(now);
  return cycles - std::exchange(taken_, cycles);
}

MaxCycles OnDemandModel::max_cycles() const {
  if (timer_ == nullptr) return {};
  return {.of_each = vpmu::timing::CoreTimer::max_per_instruction, .open = timer_->open()};
}

PipelineTold OnDemandModel::pipeline() const {
  if (timer_ == nullptr) return {};
  return {.quantities = vpmu::timing::CoreTimer::told(), .totals = [timer = timer_.get()] { return timer->totals(); }};
}

// What others run are system instructions, and what the engine does not know: as many cycles as a system instruction
// has in each of LLVM's models (WriteSystem).
void OnDemandModel::pause(std::uint64_t now) {
  constexpr unsigned system_cycles = 100;
  if (timer_ != nullptr) timer_->pause(now, system_cycles);
}

void OnDemandModel::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  if (timer_ == nullptr) return;
  visit("pmu.time.without_row", timer_->without_row());
  for (const auto& [form, count] : timer_->forms_without_row())
    visit(fmt::format("pmu.time.without_row.{}", form), count);
  visit("pmu.time.delayed", timer_->delayed());
}

// What the other thread used is looked at where the turn comes from it, so that it does not depend on who looks.
void OnDemandModel::begin_turn(bool is_beside, std::uint64_t now) {
  if (model_ == nullptr) return;
  model_->begin_turn();
  if (uses_ == nullptr) return;
  const unsigned thread = caches_->thread_of(cpu_);
  if (uses_->last == thread && timer_->is_sharing() == is_beside) return;
  uses_->last = static_cast<std::uint8_t>(thread);
  uses_->of[thread] = timer_->share_with(is_beside ? &uses_->of[1 - thread] : nullptr, now);
}

void OnDemandModel::begin_instruction() {
  if (model_ != nullptr) model_->begin_instruction();
}

void OnDemandModel::complete(vpmu::Retirement& retirement, bool armed) {
  if (model_ != nullptr) model_->complete(retirement);
  if (log_ && armed) log(retirement);
}

/// Logs the accesses that a record may show.
void OnDemandModel::log(const vpmu::Retirement& r) const {
  if (r.has_load) log_({.ip = r.ip.value(), .store = false, .access = r.load});
  if (r.has_store) log_({.ip = r.ip.value(), .store = true, .access = r.store});
}

void OnDemandModel::leave(const Instruction& instruction, const kvm_sregs& sregs, bool tells_lost) {
  if (model_ == nullptr || !instruction.system) return;
  if (!tells_lost && changes_translations(*instruction.system))
    model_->flushed({.of = vpmu::TlbFlush::Of::everything, .pcid = x86::pcid_of(sregs.cr3, sregs.cr4)});
  if (instruction.is(SystemOp::wbinvd) && cpl_of(sregs) == 0) model_->caches_flushed();
}

namespace {

/// Each thread of a core saves its own.
struct SavedUse {
  decltype(vpmu::timing::CoreUse::of) of;
  std::uint8_t last;
};

}  // namespace

void OnDemandModel::save(ByteWriter& out, std::uint64_t now) {
  model_->visit_state([&out](std::span<std::byte> part) { out.put_run(part); }, now);
  if (timer_ != nullptr) out.put(look_at_cycles(now));
  if (uses_ != nullptr) out.put(SavedUse{.of = uses_->of[caches_->thread_of(cpu_)].of, .last = uses_->last});
}

bool OnDemandModel::restore(ByteReader& in, std::uint64_t now) {
  make();
  const auto alone = caches_ != nullptr ? caches_->alone() : std::unique_lock<std::mutex>{};
  bool fits = true;
  const auto take = [&in, &fits](std::span<std::byte> part) {
    const auto saved = in.get_run();
    fits = fits && saved.size() == part.size();
    if (fits) std::ranges::copy(saved, part.begin());
  };
  model_->visit_state(take, now);
  if (timer_ != nullptr) taken_ = timer_->cycles(now) - in.get<std::uint64_t>();
  if (uses_ != nullptr) {
    const auto saved = in.get<SavedUse>();
    uses_->of[caches_->thread_of(cpu_)].of = saved.of;
    uses_->last = saved.last;
  }
  return fits && in.done();
}

}  // namespace vmm
