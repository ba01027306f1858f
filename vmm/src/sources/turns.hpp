#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace vmm {

/// Whose turn it is to run the guest's next instruction, the engine's or the back end's, and for how long it is the
/// engine's. Interrupts and timers of a back end that does not know its deadlines wait for the back end's turn.
///
///     back_end --take--> engine --stop--> stopped --exit--> in_exit
///     engine, stopped --give_back--> back_end
///     stopped, in_exit --go_on--> engine
class Turns {
 public:
  enum class Phase : std::uint8_t {
    back_end,  ///< The back end holds the vCPU.
    engine,    ///< The engine holds the vCPU, and runs its next instruction.
    stopped,   ///< The engine holds it, but cannot run its next instruction: that is emulated in place, or given back.
    in_exit,   ///< The instruction that was emulated in place made an exit, which has not been answered yet.
  };
  enum class Event : std::uint8_t {
    take,       ///< The engine has taken the vCPU's state from the back end.
    stop,       ///< The engine has stopped before an instruction.
    exit,       ///< That instruction was begun in place, and made an exit.
    go_on,      ///< That instruction was emulated in place, or its exit has been answered.
    give_back,  ///< The back end has the vCPU's state again.
  };
  /// The phase that follows; empty if the event cannot occur in this phase.
  static std::optional<Phase> next(Phase phase, Event event);

  /// Instructions that the engine runs before the back end gets a turn for interrupts and timers: well below a
  /// millisecond. Here and below, where instructions take other than a tick each, ticks.
  static constexpr std::uint64_t burst = 50'000;
  /// Instructions that the engine runs after the guest has stopped its counters, in case it soon starts them again, as
  /// the handler of a PMI does: more than such a handler has. In KVM it would take the host's time, with an exit for
  /// each MSR, instead of one tick for each instruction.
  static constexpr std::uint64_t max_pause = 20'000;
  /// Instructions by which the back end's turn may be delayed.
  static constexpr unsigned max_delay = 64;

  [[nodiscard]] Phase phase() const { return phase_; }
  /// Whether the engine holds the vCPU's state.
  [[nodiscard]] bool is_held() const { return phase_ != Phase::back_end; }
  /// The event must be possible in this phase.
  void on(Event event);

  /// Nobody else counts what the guest does while nothing is counted: the engine may go on for max_pause.
  void stay_in_pauses() { stays_in_pauses_ = true; }
  /// Whether anything is counted from now on.
  void count(bool counting);
  /// An event is pending that the back end must handle before the next instruction.
  void raise() { raised_ = true; }
  [[nodiscard]] bool is_raised() const { return raised_; }

  /// Whether the engine must give the vCPU back before the next instruction, because an event was raised, or because
  /// nothing is counted any more and it does not stay in pauses. `hides_time`: VcpuAbilities::hides_time. An event
  /// counts once.
  bool is_called_off(bool hides_time) { return std::exchange(raised_, false) || (!counting_ && !pauses(hides_time)); }
  /// Whether the guest may run freely: nothing is counted, and the engine does not hold the vCPU.
  [[nodiscard]] bool is_free() const { return !counting_ && !is_held(); }

  /// A pause may go on for longer than the burst in which it began.
  void extend_pause() {
    if (!counting_) left_ = std::max(left_, pause_left_);
  }
  /// The engine may run so many instructions from now on, but no more than a burst.
  void allow(std::uint64_t instructions) { left_ = std::min(burst, instructions); }
  /// The back end's turn is delayed by one instruction, if it has not been delayed too often.
  [[nodiscard]] bool may_delay() const { return delayed_ != max_delay; }
  void delay() {
    ++delayed_;
    left_ = 1;
  }
  /// Instructions until the back end's turn.
  [[nodiscard]] std::uint64_t left() const { return left_; }
  /// The same, and no more than are left of a pause.
  [[nodiscard]] std::uint64_t at_once() const { return counting_ ? left_ : std::min(left_, pause_left_); }
  /// The engine has run so many.
  void pass(std::uint64_t instructions) {
    left_ -= std::min(instructions, left_);
    if (!counting_) pause_left_ -= std::min(instructions, pause_left_);
  }

  /// The vCPU comes out of its guest: a new burst begins.
  void come_out() { left_ = burst; }
  /// The back end has its turn: a new burst begins, which may be delayed again.
  void hand_over() {
    left_ = burst;
    delayed_ = 0;
  }

 private:
  /// Whether the engine goes on although nothing is counted.
  [[nodiscard]] bool pauses(bool hides_time) const {
    return stays_in_pauses_ && is_held() && pause_left_ != 0 && hides_time;
  }

  Phase phase_{};
  bool counting_{};
  bool raised_{};               ///< raise() was called since is_called_off().
  bool stays_in_pauses_{};      ///< stay_in_pauses() was called.
  std::uint64_t left_{burst};   ///< Instructions until the back end's turn.
  unsigned delayed_{};          ///< Instructions by which that turn has been delayed.
  std::uint64_t pause_left_{};  ///< Of max_pause, since something was last counted.
};

}  // namespace vmm
