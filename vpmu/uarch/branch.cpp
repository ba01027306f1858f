#include "uarch/branch.hpp"

#include <algorithm>

namespace vpmu::uarch {
BranchPredictor::BranchPredictor(const BranchShapes& shapes)
    : shapes_{shapes},
      history_mask_{(std::uint64_t{1} << shapes.history_bits) - 1},
      counters_(history_mask_ + 1, weakly_taken),
      targets_(shapes.targets.entries()) {}

void BranchPredictor::clear() {
  history_ = 0;
  std::ranges::fill(counters_, weakly_taken);
  std::ranges::fill(targets_, Target{});
  returns_.fill(0);
  top_ = depth_ = 0;
}

void BranchPredictor::visit_state(const StateVisitor& visit) {
  visit(state_bytes(history_));
  visit(state_bytes(counters_));
  visit(state_bytes(targets_));
  visit(state_bytes(returns_));
  visit(state_bytes(top_));
  visit(state_bytes(depth_));
  history_ &= history_mask_;
  constexpr std::uint8_t most = 3;
  for (std::uint8_t& counter : counters_) counter = std::min(counter, most);
  top_ = std::min<unsigned>(top_, shapes_.return_stack - 1);
  depth_ = std::min<unsigned>(depth_, shapes_.return_stack);
}

bool BranchPredictor::indirect(const Branch& branch) {
  Target& target = targets_[(slot(branch.at) * 0x9E37'79B9'7F4A'7C15ULL >> 32) % targets_.size()];
  const bool missed = target.at != branch.at || target.to != branch.to;
  target = {.at = branch.at, .to = branch.to};
  history_ = (history_ << 2 ^ branch.to >> 4) & history_mask_;
  return missed;
}

bool BranchPredictor::return_from(const Branch& branch) {
  if (depth_ == 0) return indirect(branch);
  --depth_;
  top_ = (top_ == 0 ? shapes_.return_stack : top_) - 1;
  return returns_[top_] != branch.to;
}

bool BranchPredictor::retire(const Branch& branch) {
  if (is_near_call(branch.kind)) {
    returns_[top_] = branch.behind;
    top_ = top_ + 1 == shapes_.return_stack ? 0 : top_ + 1;
    depth_ = std::min<unsigned>(depth_ + 1, shapes_.return_stack);
  }
  switch (branch.kind) {
    case BranchKind::conditional: return conditional(branch.at, branch.taken);
    case BranchKind::near_ind_call:
    case BranchKind::near_ind_jmp: return indirect(branch);
    case BranchKind::near_ret: return return_from(branch);
    case BranchKind::near_rel_call:
    case BranchKind::near_rel_jmp: return false;
    case BranchKind::far: return true;
    case BranchKind::none: return false;
  }
  return false;
}

}  // namespace vpmu::uarch
