#include "soft/round_robin.hpp"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

namespace vmm {

void RoundRobin::add(TurnTaker& processor) { members_.emplace_back().processor = &processor; }

void RoundRobin::wait(unsigned id) {
  std::unique_lock lock{mutex_};
  Member& me = members_[id];
  if (holds(id)) {
    if (owner_ == id && left_ == 0) begin_next_turn();
    holder_ = nobody;
  }
  me.waits = true;
  hand_on();
  me.changed->wait(lock, [&] { return holds(id); });
  me.waits = false;
}

/// If nobody holds the turn, gives it to a kicked vCPU that waits, else to its owner once that waits.
void RoundRobin::hand_on() {
  if (holder_ != nobody) return;
  const auto give_to = [this](Member& member) {
    member.kicked = false;
    holder_ = static_cast<unsigned>(&member - members_.data());
    member.changed->notify_one();
  };
  const auto wants = std::ranges::find_if(members_, [](const Member& m) { return m.kicked && m.waits; });
  if (wants != members_.end()) {
    give_to(*wants);
  } else if (!has_begun_ && std::ranges::all_of(members_, [](const Member& m) { return m.waits || m.has_left; })) {
    has_begun_ = true;
    if (owner_ == nobody) {
      owner_ = static_cast<unsigned>(members_.size()) - 1;
      begin_next_turn();
    }
  } else if (has_begun_ && members_[owner_].has_left) {
    begin_next_turn();
  }
  wanted_ = std::ranges::any_of(members_, [](const Member& m) { return m.kicked; });
  if (holder_ == nobody && has_begun_ && members_[owner_].waits) give_to(members_[owner_]);
}

std::uint64_t RoundRobin::length_of_turn() {
  if (members_.size() == 1) return ~0ULL;
  const std::uint64_t least = std::min(shortest, schedule_.turn);
  turn_ = std::exchange(is_contended_, false) ? std::max(turn_ / 4, least) : std::min(turn_ * 2, schedule_.turn);
  if (schedule_.seed != 0) return 1 + random_.next() % (2 * turn_ - 1);
  // Of one length they could always end at the same place of a loop, as between its load and its store.
  return turn_ == schedule_.turn ? turn_ : turn_ / 2 + random_.next() % turn_;
}

bool RoundRobin::begin_next_turn() {
  const auto all = static_cast<unsigned>(members_.size());
  std::optional<unsigned> next;
  std::uint64_t ready = 0;
  for (unsigned n = 1; n <= all; ++n) {
    const unsigned id = (owner_ + n) % all;
    if (members_[id].has_left || !members_[id].processor->is_ready()) continue;
    ready |= std::uint64_t{1} << id;
    if (!next) next = id;
  }
  if (!next) return false;
  left_ = length_of_turn();
  // Those that are not ready are no longer ahead: the others have had the time since.
  for (unsigned id = 0; id < all; ++id)
    if ((ready >> id & 1) == 0) members_[id].ahead = 0;
  // By what all are ahead, none is.
  std::uint64_t least = ~0ULL;
  for (unsigned id = 0; id < all; ++id)
    if ((ready >> id & 1) != 0) least = std::min(least, members_[id].ahead);
  for (Member& member : members_) member.ahead -= std::min(member.ahead, least);
  // One that is ahead by a turn or more leaves its own to the next. One of them is not ahead at all.
  while (members_[*next].ahead >= left_) {
    members_[*next].ahead -= left_;
    do {
      next = (*next + 1) % all;
    } while ((ready >> *next & 1) == 0);
  }
  left_ -= std::exchange(members_[*next].ahead, 0);
  if (owner_ != *next) ++changes_;
  owner_ = *next;
  ready_ = ready;
  clock_->share(static_cast<unsigned>(std::popcount(ready)));
  return true;
}

RoundRobin::Image RoundRobin::image() const {
  Image image{.owner = owner_,
              .left = left_,
              .seed = schedule_.seed,
              .random = random_.state,
              .ready = ready_,
              .turn = turn_,
              .is_contended = is_contended_};
  for (std::size_t id = 0; id < members_.size(); ++id) image.ahead[id] = members_[id].ahead;
  return image;
}

bool RoundRobin::restore(const Image& image) {
  if (image.owner >= members_.size() && image.owner != nobody) return false;
  owner_ = static_cast<unsigned>(image.owner);
  left_ = image.left;
  ready_ = image.ready;
  turn_ = std::clamp<std::uint64_t>(image.turn, 1, schedule_.turn);
  is_contended_ = image.is_contended != 0;
  // Of a state that is none of ours: nobody waits for longer than the longest turn.
  for (std::size_t id = 0; id < members_.size(); ++id)
    members_[id].ahead = std::min(image.ahead[id], Schedule::max_quantum);
  if (image.seed == schedule_.seed) random_.state = image.random;
  return true;
}

RoundRobin::Waker RoundRobin::rest() {
  const std::scoped_lock lock{mutex_};
  left_ = 0;
  if (begin_next_turn()) return Waker::processor;
  std::uint64_t min = ~0ULL;
  for (const Member& member : members_)
    if (!member.has_left) min = std::min(min, member.processor->until_ready());
  if (min == ~0ULL) {
    const bool may_be =
        std::ranges::any_of(members_, [](const Member& m) { return !m.has_left && m.processor->may_be_woken(); });
    return may_be ? Waker::device : Waker::nobody;
  }
  clock_->skip(min);
  begin_next_turn();
  return Waker::processor;
}

void RoundRobin::let_go(unsigned id) {
  const std::scoped_lock lock{mutex_};
  if (!holds(id)) return;
  holder_ = nobody;
  hand_on();
}

void RoundRobin::leave(unsigned id) {
  const std::scoped_lock lock{mutex_};
  members_[id].has_left = true;
  members_[id].kicked = false;
  if (holds(id)) holder_ = nobody;
  hand_on();
}

void RoundRobin::kicked(unsigned id) {
  const std::scoped_lock lock{mutex_};
  Member& member = members_[id];
  member.processor->kick();
  if (holds(id) || member.has_left) return;
  member.kicked = true;
  wanted_ = true;
  if (holder_ == nobody)
    hand_on();
  else
    members_[holder_].processor->kick();
}

}  // namespace vmm
