#pragma once
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

/// A processor as one of those that take turns. Called by whoever holds the turn.
class TurnTaker {
 public:
  virtual ~TurnTaker() = default;
  /// Whether it has anything to run now.
  virtual bool is_ready() = 0;
  /// Ticks of the clock until it has, if nobody does anything; very many: never.
  virtual std::uint64_t until_ready() = 0;
  /// Whether something that a device does could make it ready.
  [[nodiscard]] virtual bool may_be_woken() = 0;
  /// Somebody waits for it to leave its run(). Any thread.
  virtual void kick() = 0;
};

/// The processors of a machine without KVM run one at a time, each on its own thread: whoever holds the turn runs so
/// many instructions, and then the next that has something to run holds it. So the order of all they do is the same in
/// each run, and who holds the turn may touch what belongs to the others.
///
/// Who is kicked need not wait for its turn: it is let in to come out of its run(), and then gives the turn back.
class Turns {
 public:
  explicit Turns(MachineClock& clock, const Schedule& schedule = {})
      : clock_{&clock}, schedule_{schedule}, random_{.state = schedule.seed} {}

  /// Another processor, of the next number. Before any of them runs.
  void add(TurnTaker& processor);

  /// Waits until the processor holds the turn: because it is its own, or because it was kicked. The first turn begins
  /// when all of them wait for it. Where a turn is over, or it was another's, that one is let in before. Costs next to
  /// nothing while the turn goes on.
  void hold(unsigned id) {
    if (!holds(id) || owner_ != id || left_ == 0 || wanted_.load(std::memory_order_relaxed)) wait(id);
  }
  /// Whether `id` holds the turn,
  [[nodiscard]] bool holds(unsigned id) const { return holder_.load(std::memory_order_relaxed) == id; }
  /// and it is its own.
  [[nodiscard]] bool owns(unsigned id) const { return holds(id) && owner_ == id; }
  /// Instructions that are left of that; 0 where it does not.
  [[nodiscard]] std::uint64_t left(unsigned id) const { return owns(id) ? left_ : 0; }
  /// They have passed.
  void pass(std::uint64_t instructions) { left_ -= instructions < left_ ? instructions : left_; }
  /// Grows with each turn of another processor than the one before.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }
  /// The owner of the turn, which it holds, has nothing to run. It ends its turn; where nobody has anything to run,
  /// time goes on to where somebody does. Returns who wakes the machine: a processor, a device, or nobody ever.
  enum class Waker : std::uint8_t { processor, device, nobody };
  Waker rest();
  /// The holder does not run for long, for another reason: others that were kicked need not wait for it.
  void let_go(unsigned id);
  /// The processor never runs again.
  void leave(unsigned id);
  /// Somebody wants the processor out of its run(). Any thread.
  void kicked(unsigned id);

  /// What is saved: whose turn it is, and how much of it is left. While nobody runs.
  struct Image {
    std::uint64_t owner{}, left{};  ///< Of no processor before the first turn.
    std::uint64_t seed{}, random{};
  };
  [[nodiscard]] Image image() const;
  /// Before any of them runs: the turn goes on. Where the seed is another now, those behind it are as that one says.
  /// False where there is no such processor.
  [[nodiscard]] bool restore(const Image& image);
  [[nodiscard]] std::size_t processors() const { return members_.size(); }

 private:
  struct Member {
    TurnTaker* processor{};
    bool waits{};   ///< In wait().
    bool kicked{};  ///< It wants to be let in.
    bool has_left{};
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
  std::atomic<bool> wanted_{};            ///< Somebody wants to be let in.
  std::atomic<unsigned> holder_{nobody};  ///< The owner, one that was let in, or for a moment nobody.
  unsigned owner_{nobody};  ///< Whose turn it is; nobody's before the first. The holder's to read, as what follows.
  std::uint64_t left_{};
  std::uint64_t changes_{};
};

}  // namespace vmm
