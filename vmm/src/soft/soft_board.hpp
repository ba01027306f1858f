#pragma once
#include "processor/interrupt_bus.hpp"
#include "processor/machine_clock.hpp"
#include "soft/turns.hpp"

namespace vmm {

/// What the processors of a machine without KVM share.
struct SoftBoard {
  /// `io_apic`, which may be null, must outlive it.
  explicit SoftBoard(IoApic* io_apic = nullptr, const Schedule& schedule = {})
      : interrupts{io_apic}, turns{clock, schedule} {}

  MachineClock clock;
  InterruptBus interrupts;
  Turns turns;
};

}  // namespace vmm
