#pragma once
#include <array>
#include <optional>
#include <vector>

#include "processor/interrupt_bus.hpp"
#include "processor/machine_clock.hpp"
#include "soft/round_robin.hpp"
#include "vcpu/backend.hpp"

namespace vmm {

/// What the processors of a machine without KVM share.
class SoftBoard {
 public:
  /// `io_apic`, which may be null, must outlive it.
  explicit SoftBoard(IoApic* io_apic = nullptr, const Schedule& schedule = {}, unsigned threads_of_core = 1,
                     std::uint64_t core_frequency = 0)
      : interrupts{io_apic}, turns{clock, schedule}, core_khz{core_frequency}, threads_per_core_{threads_of_core} {}

  /// Adds a processor with the next number. Before any of them runs.
  void add(TurnTaker& processor);
  /// The holder of the turn has run that many instructions, at CPL 0 or at another level, in so many ticks.
  void ran(unsigned id, bool in_ring_0, std::uint64_t ticks, std::uint64_t instructions);
  /// What the other thread of a processor's core has done. For the holder of the turn.
  [[nodiscard]] Sibling sibling_of(unsigned id) const;

  MachineClock clock;
  InterruptBus interrupts;
  RoundRobin turns;
  const std::uint64_t core_khz;  ///< The frequency of the cores; 0: the TSC's.

 private:
  [[nodiscard]] std::optional<unsigned> other_thread(unsigned id) const;

  unsigned threads_per_core_;
  /// What each processor has run, by its number (Sibling::instructions and alone).
  std::vector<Sibling> ran_;
};

}  // namespace vmm
