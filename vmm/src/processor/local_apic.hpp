#pragma once
#include <linux/kvm.h>

#include <cstdint>
#include <optional>

namespace vmm {

/// Offsets in the APIC's page. SDM 3A table 10-1.
namespace apic {
inline constexpr std::uint32_t id = 0x20, version = 0x30, task_priority = 0x80, arbitration_priority = 0x90,
                               processor_priority = 0xA0, remote_read = 0xC0, end_of_interrupt = 0xB0,
                               logical_destination = 0xD0, destination_format = 0xE0, spurious = 0xF0,
                               in_service = 0x100, trigger_mode = 0x180, requested = 0x200, error_status = 0x280,
                               lvt_cmci = 0x2F0, command_low = 0x300, command_high = 0x310, lvt_timer = 0x320,
                               lvt_thermal = 0x330, lvtpc = 0x340, lvt_lint0 = 0x350, lvt_lint1 = 0x360,
                               lvt_error = 0x370, initial_count = 0x380, current_count = 0x390, divide = 0x3E0,
                               self_interrupt = 0x3F0;
/// Bits of the error status register. SDM 3A figure 10-9.
inline constexpr std::uint32_t send_illegal_vector = 1U << 5, receive_illegal_vector = 1U << 6,
                               illegal_register = 1U << 7;

/// What software may do with a register. SDM 3A table 10-6.
struct Register {
  bool readable{}, writable{};
  std::uint32_t bits{};     ///< Those that software writes.
  std::uint32_t ignored{};  ///< Read-only bits that may be written without effect.
};
/// No access at all where there is no such register.
[[nodiscard]] Register register_at(std::uint32_t offset);
/// Whether an interrupt may have the vector. SDM 3A 10.5.2.
constexpr bool is_legal_vector(std::uint8_t vector) { return vector >= 16; }
}  // namespace apic

/// The local APIC of a vCPU without KVM. InterruptUnit implements its timer, x2APIC mode and the sending of IPIs. SDM
/// 3A chapter 10.
class SoftApic {
 public:
  SoftApic() { reset(0); }
  /// The state after power-up or INIT, with APIC id `processor`. SDM 3A 10.4.7.1.
  void reset(std::uint32_t processor);

  /// A register of the page, by its offset; 0 where there is none.
  [[nodiscard]] std::uint32_t read(std::uint32_t offset) const;
  /// Changes the bits that software may write.
  void write(std::uint32_t offset, std::uint32_t value);
  /// EOI: ends the service of the vector with the highest priority. Returns it if other controllers must hear of that,
  /// as its request came from a line that is sensitive to its level. SDM 3A 10.8.5.
  std::optional<std::uint8_t> end_interrupt();

  /// Requests a fixed interrupt; `level` from a line that is sensitive to its level (SDM 3A 10.8.4). It is lost while
  /// the APIC is software-disabled, as on hardware.
  void request(std::uint8_t vector, bool level = false);
  /// Notes an error, which software sees once it has written the error status register. SDM 3A 10.5.3.
  void note_error(std::uint32_t error);
  /// The pending vector that may interrupt now. SDM 3A 10.8.3.
  [[nodiscard]] std::optional<std::uint8_t> pending() const;
  /// The processor takes `vector`.
  void accept(std::uint8_t vector);

  /// The register page in KVM's form.
  [[nodiscard]] const kvm_lapic_state& page() const { return page_; }
  void set_page(const kvm_lapic_state& page) { page_ = page; }
  /// Errors that no write of the error status register has shown yet.
  [[nodiscard]] std::uint32_t errors() const { return errors_; }
  void set_errors(std::uint32_t errors) { errors_ = errors; }

 private:
  [[nodiscard]] std::optional<std::uint8_t> highest(std::uint32_t first_offset) const;
  void set_bit(std::uint32_t first_offset, std::uint8_t vector, bool on);
  [[nodiscard]] bool has_bit(std::uint32_t first_offset, std::uint8_t vector) const;
  void update_priority();
  void mask_local_vectors();
  void put(std::uint32_t offset, std::uint32_t value);

  kvm_lapic_state page_{};
  std::uint32_t errors_{};
};

}  // namespace vmm
