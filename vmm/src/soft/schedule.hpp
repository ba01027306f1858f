#pragma once
#include <cstdint>

namespace vmm {

/// How processors without KVM take turns.
struct Schedule {
  static constexpr std::uint64_t default_quantum = 50'000, max_quantum = 1'000'000'000;
  /// Ticks of the clock in a turn, an instruction each where no model keeps the time; with a seed, on average. Turns
  /// are shorter while processors take lines from each other that they have changed (RoundRobin::contend()).
  std::uint64_t turn{default_quantum};
  /// If not 0, the seed of random turn lengths.
  std::uint64_t seed{};

  [[nodiscard]] constexpr bool is_possible() const { return turn >= 1 && turn <= max_quantum; }
};

}  // namespace vmm
