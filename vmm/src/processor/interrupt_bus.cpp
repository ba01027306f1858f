#include "processor/interrupt_bus.hpp"

#include "processor/interrupt_unit.hpp"

namespace vmm {

void InterruptBus::send(const ApicMessage& message, const InterruptUnit* not_to) {
  InterruptUnit* min = nullptr;
  for (InterruptUnit* const unit : units_) {
    if (unit == not_to || !unit->is_addressed(message)) continue;
    if (message.mode != ApicMessage::Mode::lowest_priority)
      unit->receive(message);
    else if (min == nullptr || unit->priority() < min->priority())
      min = unit;
  }
  if (min != nullptr) min->receive(message);
}

void InterruptBus::deliver_from_devices() {
  if (io_apic_ == nullptr) return;
  constexpr unsigned max = IoApic::lines + 256;  // at a time: further messages of a device that sends without end must
                                                 // wait
  for (unsigned i = 0; i < max; ++i) {
    const auto message = io_apic_->take();
    if (!message) return;
    send(*message);
  }
}

}  // namespace vmm
