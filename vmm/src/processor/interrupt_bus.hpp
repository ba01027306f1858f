#pragma once
#include <compare>
#include <cstdint>
#include <vector>

#include "processor/io_apic.hpp"

namespace vmm {

class InterruptUnit;

/// The way between the interrupt controllers of a machine without KVM: from one local APIC to others, and from the I/O
/// APIC to all of them. For whichever processor has its turn.
class InterruptBus {
 public:
  /// `io_apic` must outlive it; null: the machine has none.
  explicit InterruptBus(IoApic* io_apic) : io_apic_{io_apic} {}

  /// Another local APIC, which must outlive the use of the bus.
  void add(InterruptUnit& unit) { units_.push_back(&unit); }
  /// To every APIC that `message` names but `not_to`; of the lowest priority: to one of them. SDM 3A 10.6.2.
  void send(const ApicMessage& message, const InterruptUnit* not_to = nullptr);
  /// What waits in the I/O APIC.
  void deliver_from_devices();
  [[nodiscard]] IoApic* io_apic() const { return io_apic_; }

 private:
  IoApic* io_apic_;
  std::vector<InterruptUnit*> units_;
};

}  // namespace vmm
