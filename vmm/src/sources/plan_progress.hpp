#pragma once
#include <array>
#include <cstdint>
#include <utility>

#include "exec/engine.hpp"
#include "uarch/processor_model.hpp"
#include "vpmu/plan.hpp"

namespace vmm {

/// How far a plan has come, for a source whose instructions pass in whole blocks or are observed one by one: what each
/// counter takes from a block, and how many instructions may pass before one must be observed.
class PlanProgress {
 public:
  /// From here this plan. `model` is where what only a model tells is counted; null while the plan needs none.
  void begin(const vpmu::CountPlan& plan, const vpmu::uarch::ProcessorModel* model);
  [[nodiscard]] const vpmu::CountPlan& plan() const { return plan_; }
  /// Whether anything is to be counted or seen.
  [[nodiscard]] bool is_counting() const { return plan_.size != 0 || plan_.branches_wanted; }
  /// How many instructions, `most` at most, may pass unseen in this mode: each is at most one of anything but what a
  /// model tells of more.
  [[nodiscard]] std::uint64_t unseen(bool user, std::uint64_t most) const;

  /// So much passed in whole blocks, no more than unseen() allowed.
  void pass(bool user, const vpmu::exec::Passed& passed);
  /// An instruction was observed. The PMU counts a retirement by itself; here only what is left until each overflow is
  /// followed.
  void observe(const vpmu::Retirement& retired);
  /// What passed in whole blocks since the last time.
  vpmu::CountDeltas take_deltas() { return std::exchange(deltas_, {}); }

 private:
  /// What a counter counts, as far as whole blocks can tell.
  enum class Unit : std::uint8_t { instructions, branches, near_branches, loads, stores, model, nothing, each };
  /// How CMASK, INV and EDGE count that, with a cycle to an instruction.
  enum class Form : std::uint8_t {
    plain,        ///< An event is one.
    no_events,    ///< As if none came: they are too few for CMASK.
    every_cycle,  ///< One in each cycle,
    clock,        ///< and it is the cycle itself.
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
  std::array<Way, vpmu::max_counters> ways_{};  ///< By place in plan_.
  const vpmu::uarch::ProcessorModel* model_{};
  ModelCounts modelled_{};  ///< What the model had counted the last time, by place in plan_.
  vpmu::CountDeltas deltas_{};
};

}  // namespace vmm
