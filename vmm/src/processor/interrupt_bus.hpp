#pragma once
#include <compare>
#include <cstdint>
#include <vector>

#include "processor/io_apic.hpp"

namespace vmm {

class InterruptUnit;

/// Connects the interrupt controllers of a machine without KVM: each local APIC with the others, and the I/O APIC with
/// all of them. Used by the processor whose turn it is.
class InterruptBus {
 public:
  /// `io_apic` must outlive it; null: the machine has none.
  explicit InterruptBus(IoApic* io_apic) : io_apic_{io_apic} {}

  /// Another local APIC, which must outlive the use of the bus.
  void add(InterruptUnit& unit) { units_.push_back(&unit); }
  /// Sends `message` to every addressed APIC but `not_to`; with lowest priority, to one of them. SDM 3A 10.6.2.
  void send(const ApicMessage& message, const InterruptUnit* not_to = nullptr);
  /// Sends the messages that wait in the I/O APIC.
  void deliver_from_devices();
  [[nodiscard]] IoApic* io_apic() const { return io_apic_; }

 private:
  IoApic* io_apic_;
  std::vector<InterruptUnit*> units_;
};

}  // namespace vmm
