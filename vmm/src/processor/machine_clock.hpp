#pragma once
#include <algorithm>
#include <cstdint>

namespace vmm {

/// The clock of a machine without KVM, in ticks of its TSC. It advances as the processors' instructions pass, and, when
/// all of them wait, to what they wait for. Processors take turns, but to a guest they must seem to run at the same
/// time: so with N processors sharing the time, an instruction takes 1/N tick. Each of them then runs as many
/// instructions as ticks pass, and none ever sees the clock run backwards.
class MachineClock {
 public:
  /// Ticks since the start.
  [[nodiscard]] std::uint64_t now() const { return now_; }
  /// The time after that many more instructions.
  [[nodiscard]] std::uint64_t after(std::uint64_t instructions) const {
    return now_ + (part_ + instructions) / sharers_;
  }
  void pass(std::uint64_t instructions) {
    part_ += instructions;
    now_ += part_ / sharers_;
    part_ %= sharers_;
  }
  /// Instructions until that many ticks have passed; very many if that time is never reached.
  [[nodiscard]] std::uint64_t instructions_in(std::uint64_t ticks) const {
    return ticks > ~0ULL / sharers_ ? ~0ULL : ticks * sharers_ - std::min<std::uint64_t>(part_, ticks * sharers_);
  }
  /// Advances the clock while no processor runs.
  void skip(std::uint64_t ticks) { now_ += ticks; }
  /// How many processors share the time from now on: at least 1.
  void share(unsigned processors) {
    sharers_ = processors;
    part_ = std::min(part_, std::uint64_t{processors} - 1);
  }

  /// The saved state.
  struct Image {
    std::uint64_t now{}, part{}, sharers{1};
  };
  [[nodiscard]] Image image() const { return {.now = now_, .part = part_, .sharers = sharers_}; }
  /// False if no clock of that many processors can have this state.
  [[nodiscard]] bool restore(const Image& image, std::uint64_t processors) {
    constexpr std::uint64_t latest = 1ULL << 60U;  // in ticks: 14 years at 2.5 GHz
    if (image.sharers == 0 || image.sharers > processors || image.part >= image.sharers || image.now > latest)
      return false;
    now_ = image.now;
    part_ = image.part;
    sharers_ = image.sharers;
    return true;
  }

 private:
  std::uint64_t now_{};
  std::uint64_t part_{};  ///< Instructions that have passed since the last whole tick.
  std::uint64_t sharers_{1};
};

}  // namespace vmm
