#include "soft/soft_board.hpp"

namespace vmm {

void SoftBoard::add(TurnTaker& processor) {
  turns.add(processor);
  ran_.resize(turns.processors());
}

/// The number of the core's other thread.
std::optional<unsigned> SoftBoard::other_thread(unsigned id) const {
  const unsigned other = id ^ 1U;
  if (threads_per_core_ == 1 || other >= ran_.size()) return std::nullopt;
  return other;
}

Sibling SoftBoard::sibling_of(unsigned id) const {
  const auto other = other_thread(id);
  if (!other) return {};
  Sibling is = ran_[*other];
  is.runs = turns.was_ready(*other);
  return is;
}

void SoftBoard::ran(unsigned id, bool in_ring_0, std::uint64_t ticks, std::uint64_t instructions) {
  turns.pass(ticks);
  const auto other = other_thread(id);
  if (!other) return;
  const unsigned level = in_ring_0 ? 0 : 1;
  Sibling& mine = ran_[id];
  mine.instructions[level] += instructions;
  if (!turns.was_ready(*other)) mine.alone[level] += instructions;
}

}  // namespace vmm
