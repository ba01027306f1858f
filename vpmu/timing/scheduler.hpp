#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "timing/timed_block.hpp"

namespace vpmu::timing {

/// Micro-ops that leave the scheduler together.
struct Leaving {
  Tick at{};
  std::uint32_t micro_ops{};
};

/// Some of the scheduler's micro-ops, in the order in which they leave it.
class LeavingQueue {
 public:
  static constexpr std::size_t max_entries = 256;  ///< Each is of one micro-op at least, so this is more than any has.

  /// Later than any, if it is empty.
  [[nodiscard]] Tick first_at() const { return first_ == after_ ? std::numeric_limits<Tick>::max() : all_[first_].at; }
  /// Those that have left by then.
  std::uint32_t take_until(Tick when) {
    std::uint32_t micro_ops = 0;
    for (; first_ != after_ && all_[first_].at <= when; ++first_) micro_ops += all_[first_].micro_ops;
    return micro_ops;
  }
  /// Most come in order.
  void add(const Leaving& more) {
    std::uint8_t place = after_++;
    for (; place != first_ && all_[before(place)].at > more.at; place = before(place))
      all_[place] = all_[before(place)];
    all_[place] = more;
  }
  /// Where it is, as long as nothing is added.
  [[nodiscard]] std::uint8_t place() const { return first_; }
  void go_back(std::uint8_t place) { first_ = place; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::uint8_t>(after_ - first_); }
  /// In the order in which they leave.
  template <class Visitor>
  void each(const Visitor& visit) const {
    for (std::uint8_t at = first_; at != after_; ++at) visit(all_[at]);
  }
  void clear() { *this = {}; }
  template <class Change>
  void each_tick(const Change& change) {
    for (Leaving& one : all_) change(one.at);
  }
  /// Of any bytes.
  void accept(std::size_t most) {
    for (Leaving& one : all_) one.micro_ops = std::clamp<std::uint32_t>(one.micro_ops, 1, 255);
    after_ = static_cast<std::uint8_t>(first_ + std::min(size(), most));
  }

 private:
  static constexpr std::uint8_t before(std::uint8_t place) { return static_cast<std::uint8_t>(place - 1); }

  std::array<Leaving, max_entries> all_{};
  std::uint8_t first_{}, after_{};
  [[maybe_unused]] std::array<std::uint8_t, 2> reserved_{};
};

/// The micro-ops that wait in the scheduler.
class Scheduler {
 public:
  [[nodiscard]] bool is_empty() const { return waiting_ == 0; }

  /// When, from `when` on, no more than `most` are in it. Those that have left by then are gone.
  Tick leave(Tick when, unsigned most) {
    if (waiting_ == 0) return when;
    waiting_ -= std::min(prompt_.take_until(when) + late_.take_until(when), waiting_);
    while (waiting_ > most) {
      when = std::min(prompt_.first_at(), late_.first_at());
      waiting_ -= std::min(prompt_.take_until(when) + late_.take_until(when), waiting_);
    }
    return when;
  }
  /// Those that are dispatched as soon as they can be leave in order; those that wait for something leave in any.
  void enter(unsigned micro_ops, Tick at) { enter(prompt_, micro_ops, at); }
  void enter_late(unsigned micro_ops, Tick at) { enter(late_, micro_ops, at); }

  /// What leave() changes.
  struct Place {
    std::uint8_t prompt{}, late{};
    std::uint32_t waiting{};
  };
  [[nodiscard]] Place place() const { return {prompt_.place(), late_.place(), waiting_}; }
  void go_back(const Place& to) {
    prompt_.go_back(to.prompt);
    late_.go_back(to.late);
    waiting_ = to.waiting;
  }

  [[nodiscard]] const LeavingQueue& prompt() const { return prompt_; }
  [[nodiscard]] const LeavingQueue& late() const { return late_; }
  void clear() { *this = {}; }
  template <class Change>
  void each_tick(const Change& change) {
    prompt_.each_tick(change);
    late_.each_tick(change);
  }
  [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span{this, 1}); }
  /// Of any bytes, as that of a scheduler of so many micro-ops.
  void accept(std::size_t most) {
    prompt_.accept(most);
    late_.accept(most);
    count();
  }

 private:
  void enter(LeavingQueue& queue, unsigned micro_ops, Tick at) {
    if (micro_ops == 0) return;
    queue.add({.at = at, .micro_ops = micro_ops});
    waiting_ += micro_ops;
  }
  void count() {
    waiting_ = 0;
    for (const LeavingQueue* const queue : {&prompt_, &late_})
      queue->each([this](const Leaving& one) { waiting_ += one.micro_ops; });
  }

  LeavingQueue prompt_, late_;
  std::uint32_t waiting_{};
};
// Its bytes are saved.
static_assert(std::has_unique_object_representations_v<Scheduler>);

}  // namespace vpmu::timing
