#pragma once
#include <array>
#include <cstdint>
#include <utility>

#include "exec/engine.hpp"
#include "uarch/processor_model.hpp"
#include "vpmu/plan.hpp"

namespace vmm {

/// Tracks the progress of a plan, for a source whose instructions run in whole blocks or are observed one by one: what
/// each counter gets from a block, and how many instructions may run before one must be observed.
class PlanProgress {
 public:
  /// Starts this plan. `model` counts the events that only a model can tell; null if the plan has none.
  void begin(const vpmu::CountPlan& plan, const vpmu::uarch::ProcessorModel* model);
  [[nodiscard]] const vpmu::CountPlan& plan() const { return plan_; }
  /// Whether anything is to be counted or seen.
  [[nodiscard]] bool is_counting() const { return plan_.size != 0 || plan_.branches_wanted; }
  /// How many instructions, at most `most`, may run unobserved in this mode before an overflow could occur. Assumes one
  /// event per instruction, or the maximum of a model's event.
  [[nodiscard]] std::uint64_t unseen(bool user, std::uint64_t most) const;

  /// `passed` ran in whole blocks; no more than unseen() allowed.
  void pass(bool user, const vpmu::exec::Passed& passed);
  /// One instruction was observed. The PMU counts the retirement itself; this only updates the distance to each
  /// overflow.
  void observe(const vpmu::Retirement& retired);
  /// The counts of whole blocks since the last call.
  vpmu::CountDeltas take_deltas() { return std::exchange(deltas_, {}); }

 private:
  /// What a counter counts, as far as whole blocks can tell. `each`: every instruction must be observed.
  enum class Unit : std::uint8_t { instructions, branches, near_branches, loads, stores, model, nothing, each };
  /// How CMASK, INV and EDGE apply to it, with one cycle per instruction.
  enum class Form : std::uint8_t {
    plain,        ///< Counts each event.
    no_events,    ///< Counts as if there were no events: there are too few for CMASK.
    every_cycle,  ///< One event in each cycle.
    clock,        ///< The event is the cycle itself.
  };
  struct Way {
    Unit unit{};
    Form form{};
  };
  static Unit unit_of(const vpmu::PlanEntry& entry);
  static Way way_of(const vpmu::PlanEntry& entry);
  std::uint64_t count_cycles(unsigned i, bool counts, std::uint64_t cycles);
  static std::uint64_t events_of(Unit unit, const vpmu::exec::Passed& passed);
  static bool is_one(Unit unit, const vpmu::Retirement& retired);
  using ModelCounts = std::array<std::uint64_t, vpmu::max_counters>;
  ModelCounts take_modelled();

  vpmu::CountPlan plan_{};
  std::array<Way, vpmu::max_counters> ways_{};  ///< By position in plan_.
  const vpmu::uarch::ProcessorModel* model_{};
  ModelCounts modelled_{};  ///< The model's counts at the last call, by position in plan_.
  vpmu::CountDeltas deltas_{};
};

}  // namespace vmm
