#pragma once
#include <linux/kvm.h>

#include <cstdint>
#include <optional>

namespace vmm {

/// Offsets in the APIC's page. SDM 3A table 10-1.
namespace apic {
inline constexpr std::uint32_t id = 0x20, version = 0x30, task_priority = 0x80, processor_priority = 0xA0,
                               end_of_interrupt = 0xB0, logical_destination = 0xD0, destination_format = 0xE0,
                               spurious = 0xF0, in_service = 0x100, requested = 0x200, error_status = 0x280,
                               command_low = 0x300, command_high = 0x310, lvt_timer = 0x320,
                               first_local_vector = lvt_timer, lvtpc = 0x340, last_local_vector = 0x370,
                               initial_count = 0x380, current_count = 0x390, divide = 0x3E0, self_interrupt = 0x3F0;
}  // namespace apic

/// The local APIC of a vCPU without KVM. InterruptUnit implements its timer, x2APIC mode and the sending of IPIs. SDM
/// 3A chapter 10.
class SoftApic {
 public:
  SoftApic() { reset(0); }
  /// The state after power-up or INIT, with APIC id `processor`. SDM 3A 10.4.7.1.
  void reset(std::uint32_t processor);

  /// A register of the page, by its offset.
  [[nodiscard]] std::uint32_t read(std::uint32_t offset) const;
  void write(std::uint32_t offset, std::uint32_t value);

  /// Requests a fixed interrupt. It is lost while the APIC is software-disabled, as on hardware.
  void request(std::uint8_t vector);
  /// The pending vector that may interrupt now. SDM 3A 10.8.3.
  [[nodiscard]] std::optional<std::uint8_t> pending() const;
  /// The processor takes `vector`.
  void accept(std::uint8_t vector);
  /// The vector in service with the highest priority.
  [[nodiscard]] std::optional<std::uint8_t> serving() const;

  /// The register page in KVM's form.
  [[nodiscard]] const kvm_lapic_state& page() const { return page_; }
  void set_page(const kvm_lapic_state& page) { page_ = page; }

 private:
  [[nodiscard]] std::optional<std::uint8_t> highest(std::uint32_t first_offset) const;
  void set_bit(std::uint32_t first_offset, std::uint8_t vector, bool on);
  void update_priority();
  void mask_local_vectors();
  void put(std::uint32_t offset, std::uint32_t value);

  kvm_lapic_state page_{};
};

}  // namespace vmm
