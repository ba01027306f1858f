#include "uarch/branch.hpp"

#include <algorithm>
#include <span>

namespace vpmu::uarch {

const std::uint64_t* TargetTable::find(std::uint64_t key) const {
  const std::span set = std::span{entries_}.subspan(first_of(key), shape_.ways);
  const auto entry = std::ranges::find(set, key, &Entry::key);
  return entry == set.end() ? nullptr : &entry->to;
}

void TargetTable::put(std::uint64_t key, std::uint64_t to) {
  const std::span set = std::span{entries_}.subspan(first_of(key), shape_.ways);
  auto entry = std::ranges::find(set, key, &Entry::key);
  if (entry == set.end()) {
    std::ranges::copy_backward(set.begin(), set.end() - 1, set.end());
    entry = set.begin();
  }
  *entry = {.key = key, .to = to};
}

BranchPredictor::BranchPredictor(const BranchShapes& shapes)
    : shapes_{shapes},
      conditional_{shapes},
      path_{shapes.path_from_bit},
      buffer_{shapes},
      last_targets_{shapes.targets},
      targets_{shapes.targets} {}

void BranchPredictor::visit_state(const StateVisitor& visit) {
  conditional_.visit_state(visit);
  path_.visit_state(visit);
  buffer_.visit_state(visit);
  last_targets_.visit_state(visit);
  targets_.visit_state(visit);
  visit(state_bytes(returns_));
  visit(state_bytes(top_));
  visit(state_bytes(depth_));
  top_ = std::min<unsigned>(top_, shapes_.return_stack - 1);
  depth_ = std::min<unsigned>(depth_, shapes_.return_stack);
}

bool BranchPredictor::indirect(std::uint64_t at, std::uint64_t to) {
  constexpr std::uint64_t mixer = 0x9E37'79B9'7F4A'7C15ULL;
  const std::uint64_t key = (at + 1) * mixer | 1;
  const std::uint64_t history = shapes_.outcomes != 0 ? conditional_.outcomes() : path_.of(PathHistory::for_targets);
  const std::uint64_t key_here = (key ^ history) * mixer | 1;
  const std::uint64_t* const here = targets_.find(key_here);
  const std::uint64_t* const predicted = here != nullptr ? here : last_targets_.find(key);
  const bool missed = predicted == nullptr || *predicted != to;
  if (missed) targets_.put(key_here, to);
  last_targets_.put(key, to);
  conditional_.note_target(to);
  return missed;
}

}  // namespace vpmu::uarch
