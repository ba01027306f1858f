#pragma once
#include "decode/instruction.hpp"
#include "vpmu/counts.hpp"
#include "vpmu/plan.hpp"
#include "vpmu/retirement.hpp"

namespace vmm {

/// Which instructions a record may show.
struct WalkGoal {
  bool usr{}, os{};                     ///< Privilege levels that count.
  bool any{};                           ///< Any retirement meets the goal.
  bool load{}, locked_load{}, store{};  ///< Otherwise an instruction of one of these kinds,
  vpmu::BranchKinds branches{};         ///< or one of these branches.
  [[nodiscard]] bool meets(const Instruction& i) const {
    return any || (load && i.load) || (locked_load && i.load && i.locked) || (store && i.store) ||
           branches.has(i.branch);
  }
};

/// The combined goal of the plan's armed counters.
WalkGoal goal_of(const vpmu::CountPlan& plan);

/// For a source that sees instructions but no caches, TLBs or predictors: fills in what the events of the plan's armed
/// counters imply about a recorded instruction, such as a load that missed L2 or a mispredicted branch. Changes only
/// what such a source cannot see, not kinds of instructions, locks, splits or directions. If counters disagree on where
/// a load hit, the first one decides and the others wait for another instruction.
void state_outcome(const vpmu::CountPlan& plan, vpmu::Retirement& retirement);

}  // namespace vmm
