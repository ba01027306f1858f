#pragma once
#include <cstdint>
#include <optional>

namespace vmm {

/// The timer of a local APIC, in ticks of a clock that its owner keeps and that never goes back. SDM 3A 10.5.4.
class ApicTimer {
 public:
  /// The initial count has been written: 0 stops it. A count lasts `divisor` ticks.
  void count(std::uint32_t initial, std::uint64_t divisor, bool periodic, std::uint64_t now);
  /// Runs out once, at `at`.
  void arm(std::uint64_t at) {
    stop();
    due_ = at;
  }
  void stop() {
    due_.reset();
    period_ = 0;
  }

  /// The current count.
  [[nodiscard]] std::uint32_t left(std::uint64_t now) const;
  /// When it runs out.
  [[nodiscard]] std::optional<std::uint64_t> due() const { return due_; }
  /// Whether it has run out since it was last asked; a periodic one goes on.
  [[nodiscard]] bool take_due(std::uint64_t now);

  /// What is saved.
  struct Image {
    std::uint64_t runs{}, due{}, period{}, divisor{1};
  };
  [[nodiscard]] Image image() const {
    return {.runs = due_ ? 1ULL : 0, .due = due_.value_or(0), .period = period_, .divisor = divisor_};
  }
  /// False where no such timer can be.
  [[nodiscard]] bool restore(const Image& image);

 private:
  std::optional<std::uint64_t> due_;
  std::uint64_t period_{};  ///< 0: runs out once.
  std::uint64_t divisor_{1};
};

}  // namespace vmm
