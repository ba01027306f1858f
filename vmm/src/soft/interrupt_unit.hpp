#pragma once
#include "soft/apic_timer.hpp"
#include "soft/io_apic.hpp"
#include "soft/soft_state.hpp"
#include "soft/virtual_time.hpp"
#include "vpmu/msr.hpp"

namespace vmm {

/// What interrupts reach a vCPU without KVM by: its local APIC's registers in both modes, the APIC's timer in virtual
/// time, and the IOAPIC. Nothing is due to a vCPU until refresh() has looked.
class InterruptUnit {
 public:
  /// All must outlive it; `io_apic` may be null.
  InterruptUnit(SoftState& state, const VirtualTime& time, IoApic* io_apic)
      : s_{&state}, time_{&time}, io_apic_{io_apic} {}

  /// A register of the APIC's page, as MMIO reads and writes it. SDM 3A table 10-1.
  [[nodiscard]] std::uint32_t read(std::uint32_t offset) const;
  void write(std::uint32_t offset, std::uint32_t value);
  /// The APIC's MSRs: x2APIC's (SDM 3A 10.12.1.2) and IA32_TSC_DEADLINE; `unknown` for all others.
  [[nodiscard]] vpmu::MsrReadResult rdmsr(std::uint32_t index) const;
  [[nodiscard]] vpmu::MsrStatus wrmsr(std::uint32_t index, std::uint64_t value);
  /// The TSC has been set: a deadline is in terms of it.
  void tsc_changed();

  /// Timers that have run out and lines that have risen become requests of the APIC.
  void refresh();
  /// Ticks until the timer runs out; very many when it does not run.
  [[nodiscard]] std::uint64_t until_due() const;
  [[nodiscard]] IoApic* io_apic() const { return io_apic_; }

 private:
  [[nodiscard]] bool in_deadline_mode() const;
  void start_count();
  void arm_deadline();

  SoftState* s_;
  const VirtualTime* time_;
  IoApic* io_apic_;
  ApicTimer timer_;
  std::uint64_t deadline_{};  ///< IA32_TSC_DEADLINE while it is armed.
};

}  // namespace vmm
