#pragma once
#include "decode/instruction.hpp"
#include "vpmu/counts.hpp"
#include "vpmu/plan.hpp"
#include "vpmu/retirement.hpp"

namespace vmm {

/// Which instructions a record may stand on.
struct WalkGoal {
  bool usr{}, os{};                     ///< Privilege levels that count.
  bool any{};                           ///< Any retirement will do.
  bool load{}, locked_load{}, store{};  ///< Else one of these kinds,
  vpmu::BranchKinds branches{};         ///< or one of these branches.
  [[nodiscard]] bool meets(const Instruction& i) const {
    return any || (load && i.load) || (locked_load && i.load && i.locked) || (store && i.store) ||
           branches.has(i.branch);
  }
};

/// What the plan's armed counters wait for, together.
WalkGoal goal_of(const vpmu::CountPlan& plan);

/// For a source that sees instructions but no caches, TLBs or predictors: says of `retirement` what the events of the
/// plan's armed counters say of an instruction that they record, such as a load that missed L2 or a branch that was
/// mispredicted. Only what cannot be seen is said; kinds of instructions, locks, splits and directions stay as they
/// are. Where counters disagree on where a load hit, the first has its way and the others wait for another instruction.
void state_outcome(const vpmu::CountPlan& plan, vpmu::Retirement& retirement);

}  // namespace vmm
