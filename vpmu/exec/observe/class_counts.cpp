#include "exec/observe/class_counts.hpp"

#include <algorithm>
#include <utility>

namespace vpmu::exec {
namespace {

void count_and_run(const Op* op, Core* c) {
  const BlockClasses& classes = *c->block->classes;
  for (const BlockClasses::Total& total : classes.totals) c->classes[static_cast<unsigned>(total.of)] += total.count;
  return classes.first(op, c);
}

}  // namespace

void count_classes(Block& block, std::vector<InstructionClass> of_ops) {
  block.classes = std::make_unique<BlockClasses>();
  BlockClasses& classes = *block.classes;
  classes.of_ops = std::move(of_ops);
  for (const InstructionClass of : classes.of_ops) {
    if (of == InstructionClass::other) continue;
    const auto known = std::ranges::find(classes.totals, of, &BlockClasses::Total::of);
    if (known != classes.totals.end())
      ++known->count;
    else
      classes.totals.push_back({.of = of, .count = 1});
  }
  if (classes.totals.empty()) {
    block.classes.reset();
    return;
  }
  classes.first = block.ops()[0].run;
  block.ops()[0].run = count_and_run;
}

// The op may be a copy that runs alone: its offset tells which it is.
void take_back_classes(Core& core, const Op* op) {
  if (core.block->classes == nullptr) return;
  const auto ops = core.block->ops();
  auto index = static_cast<std::size_t>(std::ranges::find(ops, op->offset, &Op::offset) - ops.begin());
  const auto& of_ops = core.block->classes->of_ops;
  for (; op->length != 0 && index < of_ops.size(); ++op, ++index)
    if (of_ops[index] != InstructionClass::other) --core.classes[static_cast<unsigned>(of_ops[index])];
}

}  // namespace vpmu::exec
