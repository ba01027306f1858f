#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <utility>

#include "exec/engine.hpp"
#include "sources/unhalted_clocks.hpp"
#include "uarch/processor_model.hpp"
#include "vcpu/backend.hpp"
#include "vpmu/pipeline_totals.hpp"
#include "vpmu/plan.hpp"

namespace vmm {

/// By how many cycles the clock may be ahead at most, however few instructions run.
struct MaxCycles {
  std::uint64_t of_each{1};  ///< Of each instruction that runs.
  std::uint64_t open{};      ///< Instructions that have run, and may take as many still.
};

/// What a model of the pipeline has counted. It is empty for a source without one.
struct PipelineTold {
  vpmu::PipelineQuantities quantities;
  std::function<vpmu::PipelineTotals()> totals;  ///< At the end of the last part that has retired.
};

/// Whether anything is to be counted or seen.
inline bool is_counted(const vpmu::CountPlan& plan) {
  return plan.size != 0 || plan.branches_wanted || plan.caches_wanted;
}

/// Tracks the progress of a plan, for a source whose instructions run in whole blocks or are observed one by one: what
/// each counter gets from a block, and how many instructions may run before one must be observed.
class PlanProgress {
 public:
  /// Starts this plan. `model` counts the events that only a model can tell; `classes` are instructions by their class,
  /// as the engine counts them. Null if the plan has no event for it. `clocks` must outlive it. `pipeline` is for
  /// events for which it has all quantities.
  void begin(const vpmu::CountPlan& plan, const vpmu::uarch::ProcessorModel* model, const UnhaltedClocks& clocks,
             const vpmu::exec::ClassCounts* classes = nullptr, PipelineTold pipeline = {});
  /// Whether some event of the plan counts what a pipeline tells, if it has these quantities.
  [[nodiscard]] static bool wants_pipeline(const vpmu::CountPlan& plan, vpmu::PipelineQuantities told);
  /// Whether some event of the plan counts instructions by their class.
  [[nodiscard]] static bool wants_classes(const vpmu::CountPlan& plan);
  [[nodiscard]] const vpmu::CountPlan& plan() const { return plan_; }
  /// Whether anything is to be counted or seen.
  [[nodiscard]] bool is_counting() const { return is_counted(plan_); }
  /// How many instructions, at most `max`, may run unobserved in this mode before an overflow could occur. Assumes one
  /// event per instruction, or the maximum of a model's event, and the most cycles that each may take.
  [[nodiscard]] std::uint64_t unseen(bool user, std::uint64_t max, const MaxCycles& cycles = {}) const;
  /// And how many loads or stores beyond the first of their instruction may then run (Engine::limit_accesses()).
  [[nodiscard]] std::uint64_t unseen_accesses(bool user) const;

  /// `passed` ran in whole blocks, no more than unseen() allowed, in which `ticks` passed.
  void pass(bool user, const vpmu::exec::Passed& passed, const Ticks& ticks);
  /// And so many ticks before an instruction that is observed retires: may_wait() must allow it.
  void wait(bool user, const Ticks& ticks);
  [[nodiscard]] bool may_wait() const;
  /// The pipeline has ended all that it had begun, which was of the privilege level that ran last.
  void end_pipeline() { pass(ran_user_, {}, {}); }
  /// The core's other thread has done this meanwhile: counters with ANY count it, too (rule C8). Of its events only
  /// instructions and clocks are known.
  void pass_beside(const Sibling& sibling);
  /// One instruction was observed. The PMU counts the retirement itself; this only updates the distance to each
  /// overflow.
  void observe(const vpmu::Retirement& retired);
  /// The counts of whole blocks since the last call.
  vpmu::CountDeltas take_deltas() { return std::exchange(deltas_, {}); }

 private:
  /// What a counter counts, as far as whole blocks can tell. `each`: every instruction must be observed.
  enum class Unit : std::uint8_t {
    instructions,
    cycles,
    ref_cycles,
    bus_clock,
    bus_clock_alone,
    branches,
    near_branches,
    loads,
    stores,
    load_uops,
    store_uops,
    classes,
    model,
    pipeline,
    nothing,
    each
  };
  /// How CMASK, INV and EDGE apply to it.
  enum class Form : std::uint8_t {
    plain,      ///< Counts each event.
    no_events,  ///< Counts as if there were no events: there are too few for CMASK.
    retired,    ///< The events are instructions, as many in a cycle as retired in it.
    clock,      ///< The event is the cycle itself.
  };
  struct Method {
    Unit unit{};
    Form form{};
  };
  [[nodiscard]] Unit unit_of(const vpmu::PlanEntry& entry) const;
  [[nodiscard]] Method method_of(const vpmu::PlanEntry& entry) const;
  /// Whether the events do not come with the instructions that pass, but somebody else has counted them meanwhile.
  static bool is_elsewhere(Unit unit) { return unit == Unit::model || unit == Unit::classes || unit == Unit::pipeline; }
  /// Whether it counts each access, of instructions that make several, too.
  static bool counts_accesses(const Method& method) {
    return method.form == Form::plain && (method.unit == Unit::load_uops || method.unit == Unit::store_uops);
  }
  /// Whether it counts cycles, or cycles in which something holds.
  static bool counts_cycles(const Method& method) {
    return method.form != Form::plain || method.unit == Unit::cycles || method.unit == Unit::ref_cycles;
  }
  static std::uint64_t cycles_beside(const vpmu::PlanEntry& entry, Form form, std::uint64_t alone, std::uint64_t both);
  std::uint64_t count_cycles(unsigned i, bool counts, std::uint64_t instructions, std::uint64_t cycles);
  static std::uint64_t events_of(Unit unit, const vpmu::exec::Passed& passed, const Ticks& ticks);
  static std::uint64_t events_of(Unit unit, const vpmu::Retirement& retired);
  using Elsewhere = std::array<std::uint64_t, vpmu::max_counters>;
  void pass(bool user, const vpmu::exec::Passed& passed, const Ticks& ticks, const Elsewhere& elsewhere);
  void give(unsigned i, std::uint64_t events);
  Elsewhere take_elsewhere();
  [[nodiscard]] std::uint64_t counted_elsewhere(unsigned i, const vpmu::PipelineTotals& totals) const;

  vpmu::CountPlan plan_{};
  std::array<Method, vpmu::max_counters> methods_{};  ///< By position in plan_.
  const vpmu::uarch::ProcessorModel* model_{};
  const vpmu::exec::ClassCounts* classes_{};
  const UnhaltedClocks* clocks_{};
  UnhaltedClocks beside_{{}};  ///< The same clocks while only the core's other thread runs.
  PipelineTold pipeline_;
  bool has_pipeline_{};    ///< Some entry counts what it tells.
  bool ran_user_{};        ///< The privilege level that ran last.
  Elsewhere elsewhere_{};  ///< What the counts elsewhere were at the last call, by position in plan_.
  vpmu::CountDeltas deltas_{};
};

}  // namespace vmm
