#pragma once
#include <cstdint>
#include <optional>

namespace vmm {

/// The timer of a local APIC, in ticks of a clock that its owner keeps and that never runs backwards. SDM 3A 10.5.4.
class ApicTimer {
 public:
  /// Sets the initial count: 0 stops the timer. A count lasts `divisor` ticks.
  void count(std::uint32_t initial, std::uint64_t divisor, bool periodic, std::uint64_t now);
  /// Expires once, at `at`.
  void arm(std::uint64_t at) {
    stop();
    due_ = at;
  }
  /// A running count begins anew each time that it is over, after `count` ticks of its divisor; 0: it ends then.
  void repeat(std::uint32_t count) {
    if (due_) period_ = count * divisor_;
  }
  /// What is left of a running count, and each further one, takes as many ticks of another divisor.
  void divide(std::uint64_t divisor, std::uint64_t now);
  void stop() {
    due_.reset();
    period_ = 0;
  }

  /// The current count.
  [[nodiscard]] std::uint32_t left(std::uint64_t now) const;
  /// When it expires.
  [[nodiscard]] std::optional<std::uint64_t> due() const { return due_; }
  /// Whether it has expired since the last call; a periodic timer continues.
  [[nodiscard]] bool take_due(std::uint64_t now);

  /// The saved state.
  struct Image {
    std::uint64_t runs{}, due{}, period{}, divisor{1};
  };
  [[nodiscard]] Image image() const {
    return {.runs = due_ ? 1ULL : 0, .due = due_.value_or(0), .period = period_, .divisor = divisor_};
  }
  /// False if no timer can have this state.
  [[nodiscard]] bool restore(const Image& image);

 private:
  std::optional<std::uint64_t> due_;
  std::uint64_t period_{};  ///< 0: expires once.
  std::uint64_t divisor_{1};
};

}  // namespace vmm
