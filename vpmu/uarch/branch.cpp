#include "uarch/branch.hpp"

#include <algorithm>

namespace vpmu::uarch {
BranchPredictor::BranchPredictor(const BranchShapes& shapes)
    : shapes_{shapes},
      history_mask_{(std::uint64_t{1} << shapes.history_bits) - 1},
      counters_(history_mask_ + 1, Gshare::weakly_taken),
      targets_(shapes.targets.entries()) {}

void BranchPredictor::visit_state(const StateVisitor& visit) {
  visit(state_bytes(history_));
  visit(state_bytes(counters_));
  visit(state_bytes(targets_));
  visit(state_bytes(returns_));
  visit(state_bytes(top_));
  visit(state_bytes(depth_));
  history_ &= history_mask_;
  constexpr std::uint8_t max = 3;
  for (std::uint8_t& counter : counters_) counter = std::min(counter, max);
  top_ = std::min<unsigned>(top_, shapes_.return_stack - 1);
  depth_ = std::min<unsigned>(depth_, shapes_.return_stack);
}

bool BranchPredictor::indirect(std::uint64_t at, std::uint64_t to) {
  Target& target = targets_[(begin_conditional().slot(at) * 0x9E37'79B9'7F4A'7C15ULL >> 32) % targets_.size()];
  const bool missed = target.at != at || target.to != to;
  target = {.at = at, .to = to};
  history_ = (history_ << 2 ^ to >> 4) & history_mask_;
  return missed;
}

bool BranchPredictor::retire(const Branch& branch) {
  return branch.kind == BranchKind::conditional ? conditional(branch.at, branch.taken)
                                                : unconditional(branch.at, branch.fall_through, branch.to, branch.kind);
}

}  // namespace vpmu::uarch
