#pragma once
#include "processor/apic_timer.hpp"
#include "processor/interrupt_bus.hpp"
#include "processor/soft_state.hpp"
#include "processor/virtual_time.hpp"
#include "vpmu/msr.hpp"

namespace vmm {

/// The interrupt logic of a vCPU without KVM: its local APIC's registers in both modes, the APIC's timer in virtual
/// time, and the connection to other interrupt controllers. An interrupt becomes pending only when refresh() is called.
class InterruptUnit {
 public:
  /// All must outlive it; `bus` is null if there are no other controllers.
  InterruptUnit(SoftState& state, VirtualTime& time, InterruptBus* bus) : s_{&state}, time_{&time}, bus_{bus} {
    if (bus != nullptr) bus->add(*this);
  }
  InterruptUnit(const InterruptUnit&) = delete;
  InterruptUnit& operator=(const InterruptUnit&) = delete;
  InterruptUnit(InterruptUnit&&) = delete;
  InterruptUnit& operator=(InterruptUnit&&) = delete;
  ~InterruptUnit() = default;

  /// A register of the APIC's page, as MMIO reads and writes it. SDM 3A table 10-1.
  [[nodiscard]] std::uint32_t read(std::uint32_t offset) const;
  void write(std::uint32_t offset, std::uint32_t value);
  /// The APIC's MSRs: x2APIC's (SDM 3A 10.12.1.2) and IA32_TSC_DEADLINE; `unknown` for all others.
  [[nodiscard]] vpmu::MsrReadResult rdmsr(std::uint32_t index) const;
  [[nodiscard]] vpmu::MsrStatus wrmsr(std::uint32_t index, std::uint64_t value);
  /// The vCPU's time. Whoever sets the TSC calls tsc_changed(), as the deadline is in TSC ticks.
  [[nodiscard]] VirtualTime& time() const { return *time_; }
  void tsc_changed();
  /// Stops the timer, for INIT or a disabled APIC; SoftApic::reset() resets the registers.
  void reset();

  /// Whether a message addresses this APIC. SDM 3A 10.6.2, 10.12.10.
  [[nodiscard]] bool is_addressed(const ApicMessage& message) const;
  /// Receives such a message, from another processor or a device.
  void receive(const ApicMessage& message);
  /// PPR: a message of the lowest priority goes to the addressed APIC with the least.
  [[nodiscard]] std::uint32_t priority() const { return s_->apic.read(apic::processor_priority); }

  /// Turns an expired timer into a request of the APIC, and sends waiting device interrupts to the APICs.
  void refresh();
  /// Ticks until the timer expires; very many if it is stopped.
  [[nodiscard]] std::uint64_t until_due() const;
  /// The saved state besides the APIC's registers.
  struct Image {
    ApicTimer::Image timer;
    std::uint64_t deadline{}, errors{};
  };
  [[nodiscard]] Image image() const {
    return {.timer = timer_.image(), .deadline = deadline_, .errors = s_->apic.errors()};
  }
  /// False if no timer can have this state.
  [[nodiscard]] bool restore(const Image& image) {
    deadline_ = image.deadline;
    s_->apic.set_errors(static_cast<std::uint32_t>(image.errors));
    return timer_.restore(image.timer);
  }
  [[nodiscard]] IoApic* io_apic() const { return bus_ == nullptr ? nullptr : bus_->io_apic(); }

 private:
  [[nodiscard]] bool in_deadline_mode() const;
  [[nodiscard]] bool is_periodic() const;
  void check_register(std::uint32_t offset) const;
  void start_count();
  void write_timer_vector(std::uint32_t value);
  void arm_deadline();
  [[nodiscard]] bool is_x2apic() const;
  [[nodiscard]] std::uint32_t x2apic_logical_id() const;
  [[nodiscard]] bool has_logical_id(std::uint32_t destination) const;
  void send(std::uint32_t command, std::uint32_t destination);

  SoftState* s_;
  VirtualTime* time_;
  InterruptBus* bus_;
  ApicTimer timer_;
  std::uint64_t deadline_{};  ///< IA32_TSC_DEADLINE while it is armed.
};

}  // namespace vmm
