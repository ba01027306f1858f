#pragma once
#include <linux/kvm.h>

#include <cstdint>
#include <optional>

namespace vmm {

/// The local APIC of a single vCPU without KVM: what interrupts need, in xAPIC mode. No timer and no other processors. SDM 3A chapter 10.
class SoftApic {
 public:
  SoftApic();

  /// A register of the page, by its offset. SDM 3A table 10-1.
  [[nodiscard]] std::uint32_t read(std::uint32_t offset) const;
  void write(std::uint32_t offset, std::uint32_t value);

  /// A fixed interrupt. Lost while the APIC is disabled by software, as on hardware.
  void request(std::uint8_t vector);
  /// The vector that waits and may interrupt now. SDM 3A 10.8.3.
  [[nodiscard]] std::optional<std::uint8_t> pending() const;
  /// The processor takes `vector`.
  void accept(std::uint8_t vector);

  /// The page as KVM gives and takes it.
  [[nodiscard]] const kvm_lapic_state& page() const { return page_; }
  void set_page(const kvm_lapic_state& page) { page_ = page; }

 private:
  [[nodiscard]] std::optional<std::uint8_t> highest(std::uint32_t first_offset) const;
  void set_bit(std::uint32_t first_offset, std::uint8_t vector, bool on);
  void update_priority();
  void mask_local_vectors();

  kvm_lapic_state page_{};
};

}  // namespace vmm
