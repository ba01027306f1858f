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

/// Rounds core cycles into ticks of the slower clocks, without a rounding error: the part of a tick that is left over
/// counts next time. The core runs at its nominal frequency, which is the TSC's, unless it is told another one.
class UnhaltedClocks {
 public:
  explicit UnhaltedClocks(vpmu::Frequency bus) : bus_{bus} {}

  /// The TSC's rate, which may change between two runs; 0: not known, and all clocks are as fast as the core.
  void follow(std::uint64_t tsc_khz) {
    if (tsc_khz != tsc_khz_) set_rate(tsc_khz);
  }
  /// The core runs at another frequency than the TSC, as with turbo; 0: it does not. Before anything passes.
  void run_core_at(std::uint64_t khz) { core_khz_ = khz; }
  /// Whether the core's other thread runs from now on.
  void beside(bool sibling_runs) { alone_ = !sibling_runs; }
  Ticks pass(std::uint64_t cycles);
  /// Ticks::ref of pass(), without passing them.
  [[nodiscard]] std::uint64_t ref_after(std::uint64_t cycles) const { return Rate{ref_}.pass(cycles); }
  /// The most cycles in which fewer than `ticks` ticks of the bus clock end; `ticks` is at least 1.
  [[nodiscard]] std::uint64_t cycles_before_bus(std::uint64_t ticks) const { return bus_rate_.before(ticks); }
  /// The same of the TSC.
  [[nodiscard]] std::uint64_t cycles_before_ref(std::uint64_t ticks) const { return ref_.before(ticks); }

  /// The saved state: the TSC's rate, and the parts of ticks.
  struct Image {
    std::uint64_t tsc_khz{}, bus_part{}, ref_part{};
    /// Whether clocks that have just begun are as these are.
    [[nodiscard]] bool is_new() const { return bus_part == 0 && ref_part == 0; }
  };
  [[nodiscard]] Image image() const { return {.tsc_khz = tsc_khz_, .bus_part = bus_rate_.part, .ref_part = ref_.part}; }
  /// False if no such clock can have this state.
  [[nodiscard]] bool restore(const Image& image);

 private:
  /// In a cycle of the core numerator / denominator of a tick ends.
  struct Rate {
    std::uint64_t numerator{1}, denominator{1};
    std::uint64_t part{};  ///< Of a tick, in 1 / denominator: below it.

    std::uint64_t pass(std::uint64_t cycles);
    [[nodiscard]] std::uint64_t before(std::uint64_t ticks) const;
    void set(std::uint64_t khz, std::uint64_t core_khz);
  };
  void set_rate(std::uint64_t tsc_khz);

  vpmu::Frequency bus_;
  std::uint64_t tsc_khz_{}, core_khz_{};
  Rate bus_rate_, ref_;
  bool alone_{true};
};

}  // namespace vmm
