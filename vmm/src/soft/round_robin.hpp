#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "processor/machine_clock.hpp"
#include "processor/split_mix.hpp"
#include "soft/schedule.hpp"

namespace vmm {

/// A processor that takes turns. The holder of the turn calls the members.
class TurnTaker {
 public:
  virtual ~TurnTaker() = default;
  /// Whether it has anything to run now.
  virtual bool is_ready() = 0;
  /// Ticks of the clock until it has something to run, if nobody else acts; very many: never.
  virtual std::uint64_t until_ready() = 0;
  /// Whether a device could make it ready.
  [[nodiscard]] virtual bool may_be_woken() = 0;
  /// Somebody waits for it to leave run(). Any thread.
  virtual void kick() = 0;
};

/// The processors of a machine without KVM run one at a time, each on its own thread: the holder of the turn runs for a
/// number of ticks, then the next one that has something to run holds it. So all happens in the same order in each run,
/// and the holder may access what belongs to the others. Who has run for longer than its turn, because one instruction
/// takes many ticks, has a shorter one next, or none: all run equally long while they have something to run.
///
/// A kicked processor need not wait for its turn: it is let in to leave its run(), and then gives the turn back.
class RoundRobin {
 public:
  explicit RoundRobin(MachineClock& clock, const Schedule& schedule = {})
      : clock_{&clock}, schedule_{schedule}, random_{.state = schedule.seed}, turn_{schedule.turn} {}

  /// Adds a processor with the next number. Before any of them runs.
  void add(TurnTaker& processor);

  /// Waits until the processor holds the turn, because it is its own or because it was kicked. The first turn begins
  /// when all processors wait for theirs. If its own turn is over, or the turn that it holds is another's, the other
  /// one runs first. Costs next to nothing while the turn lasts.
  void hold(unsigned id) {
    if (!holds(id) || owner_ != id || left_ == 0 || wanted_.load(std::memory_order_relaxed)) wait(id);
  }
  /// Whether `id` holds the turn.
  [[nodiscard]] bool holds(unsigned id) const { return holder_.load(std::memory_order_relaxed) == id; }
  /// Whether `id` holds the turn, and it is its own.
  [[nodiscard]] bool owns(unsigned id) const { return holds(id) && owner_ == id; }
  /// Ticks left in its own turn; 0 if it does not hold that.
  [[nodiscard]] std::uint64_t left(unsigned id) const { return owns(id) ? left_ : 0; }
  /// Ticks of the turn have passed.
  void pass(std::uint64_t ticks) {
    if (ticks > left_ && owner_ < members_.size()) members_[owner_].ahead += ticks - left_;
    left_ -= std::min(ticks, left_);
  }
  /// The owner has taken a line that another processor had changed. While that is so in each turn or so, turns become
  /// as short as such lines go from one to the other on a machine whose processors run at the same time; then longer
  /// again.
  void contend() { is_contended_ = true; }
  /// How long turns are now; very long for one processor alone. For the holder.
  [[nodiscard]] std::uint64_t turn() const { return members_.size() == 1 ? ~std::uint64_t{0} : turn_; }
  /// Of a turn while processors contend, on average: while a line goes there and back. 248966, table 2-10: 60 cycles
  /// from another core's L1 or L2 that has it changed.
  static constexpr std::uint64_t shortest = 130;
  /// Whether the processor had something to run when the present turn began.
  [[nodiscard]] bool was_ready(unsigned id) const { return (ready_ >> id & 1) != 0; }
  /// Grows with each turn that goes to another processor than the one before.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }
  /// The owner holds its turn and has nothing to run: ends the turn. If nobody has anything to run, time advances to
  /// when somebody does. Returns who wakes the machine: a processor, a device, or nobody ever.
  enum class Waker : std::uint8_t { processor, device, nobody };
  Waker rest();
  /// The holder will not run for some time: others that were kicked need not wait for it.
  void let_go(unsigned id);
  /// The processor never runs again.
  void leave(unsigned id);
  /// Somebody wants the processor to leave run(). Any thread.
  void kicked(unsigned id);

  static constexpr std::size_t max_processors = 64;
  /// The saved state: whose turn it is, and how much of it is left. While nobody runs.
  struct Image {
    std::uint64_t owner{}, left{};  ///< `owner` is no processor before the first turn.
    std::uint64_t seed{}, random{};
    std::uint64_t ready{};  ///< The processors that were ready when it began, a bit each.
    std::uint64_t turn{};   ///< How long turns are now.
    std::uint64_t is_contended{};
    std::array<std::uint64_t, max_processors> ahead{};  ///< For how long each has run beyond its turns.
  };
  [[nodiscard]] Image image() const;
  /// Before any of them runs: continues the turn. If the schedule's seed has changed, later turns follow the new one.
  /// False if there is no such processor.
  [[nodiscard]] bool restore(const Image& image);
  [[nodiscard]] std::size_t processors() const { return members_.size(); }

 private:
  struct Member {
    TurnTaker* processor{};
    bool waits{};   ///< Blocked in wait().
    bool kicked{};  ///< Was kicked, and is to be let in.
    bool has_left{};
    std::uint64_t ahead{};  ///< For how long it has run beyond its turns. The holder's, as below.
    std::unique_ptr<std::condition_variable> changed{std::make_unique<std::condition_variable>()};
  };
  static constexpr unsigned nobody = ~0U;

  void wait(unsigned id);
  void hand_on();
  bool begin_next_turn();
  [[nodiscard]] std::uint64_t length_of_turn();

  MachineClock* clock_;
  Schedule schedule_;
  SplitMix64 random_;
  std::mutex mutex_;
  std::vector<Member> members_;
  bool has_begun_{};
  std::atomic<bool> wanted_{};            ///< A kicked processor waits to be let in.
  std::atomic<unsigned> holder_{nobody};  ///< The owner, one that was let in, or briefly nobody.
  unsigned owner_{nobody};  ///< Whose turn it is; nobody's before the first. For the holder only, as all below.
  std::uint64_t left_{};
  std::uint64_t ready_{};  ///< was_ready(), a bit for each.
  std::uint64_t turn_;     ///< How long turns are now: at most as the schedule says.
  bool is_contended_{};
  std::uint64_t changes_{};
};

}  // namespace vmm
