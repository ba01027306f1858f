#pragma once
#include <cstdint>

#include "vpmu/generation.hpp"

namespace vmm {

/// What has passed on the clocks of a vCPU that run while it is not halted.
struct Ticks {
  std::uint64_t cycles{};  ///< Of the core.
  std::uint64_t ref{};     ///< Of the TSC.
  std::uint64_t bus{};     ///< Of the bus clock, or the core crystal clock. SDM 3B 18.17.4.
  bool alone{true};        ///< The core's other thread was halted, or there is none.
};

/// Rounds core cycles into ticks of the slower clocks, without a rounding error: the part of a tick that is left
/// over counts next time. The core runs at its nominal frequency, which is the TSC's.
class UnhaltedClocks {
 public:
  explicit UnhaltedClocks(vpmu::Frequency bus) : bus_{bus} {}

  /// The TSC's rate, which may change between two runs; 0: not known, and the bus clock is as fast as the core.
  void follow(std::uint64_t tsc_khz) {
    if (tsc_khz != tsc_khz_) set_rate(tsc_khz);
  }
  /// Whether the core's other thread runs from now on.
  void beside(bool sibling_runs) { alone_ = !sibling_runs; }
  Ticks pass(std::uint64_t cycles);
  /// The most cycles in which fewer than `ticks` ticks of the bus clock end; `ticks` is at least 1.
  [[nodiscard]] std::uint64_t cycles_before_bus(std::uint64_t ticks) const;

  /// The saved state: the TSC's rate, and the part of a tick.
  struct Image {
    std::uint64_t tsc_khz{}, part{};
  };
  [[nodiscard]] Image image() const { return {.tsc_khz = tsc_khz_, .part = part_}; }
  /// False if no such clock can have this state.
  [[nodiscard]] bool restore(const Image& image);

 private:
  void set_rate(std::uint64_t tsc_khz);

  vpmu::Frequency bus_;
  std::uint64_t tsc_khz_{};
  // In a cycle numerator_ / denominator_ of a tick ends.
  std::uint64_t numerator_{1}, denominator_{1};
  bool alone_{true};
  std::uint64_t part_{};  ///< Of a tick, in 1 / denominator_: below it.
};

}  // namespace vmm
