#pragma once
#include "exec/state/core.hpp"

/// How instructions are counted by their class (InstructionClass), at no cost while nobody asks.
///
/// A block that was decoded while somebody asks knows the classes of its instructions. Its first op, or its compiled
/// code, adds all of them when the block begins, as Core::left loses all of its counts. Where that takes back what did
/// not run, the classes are taken back too.
namespace vpmu::exec {

/// Makes the first op of a block that was just decoded count the classes of its instructions.
void count_classes(Block& block, std::vector<InstructionClass> of_ops);
/// `op` and the ops after it, which the block has counted, have not run.
void take_back_classes(Core& core, const Op* op);
/// The first op of the block has run alone.
inline void count_first_class(Core& core, const Block& block) {
  if (block.classes == nullptr) return;
  const InstructionClass of = block.classes->of_ops.front();
  if (of != InstructionClass::other) ++core.classes[static_cast<unsigned>(of)];
}

}  // namespace vpmu::exec
