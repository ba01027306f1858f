#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>

#include "devices/interrupt_line.hpp"
#include "snapshot/byte_stream.hpp"

namespace vmm {

/// A message to local APICs. SDM 3A 10.6, 10.11.
struct ApicMessage {
  /// As ICR, a redirection table entry and a message's data encode it.
  enum class Mode : std::uint8_t { fixed, lowest_priority, smi, reserved, nmi, init, start_up, external };
  std::uint8_t vector{};
  Mode mode{};
  bool everyone{};              ///< To all, regardless of `destination`.
  bool logical{};               ///< `destination` is matched against logical ids.
  bool level{};                 ///< Of a line that is sensitive to its level: its EOI must be told to the I/O APIC.
  std::uint32_t destination{};  ///< As wide as its sender encodes it.
  auto operator<=>(const ApicMessage&) const = default;
};

/// The I/O APIC of a machine without KVM, with 24 lines; also forwards devices' message-signalled interrupts. Intel
/// 82093AA data sheet.
/// Thread-safe: devices drive lines on any thread, a vCPU takes what waits.
class IoApic {
 public:
  static constexpr unsigned lines = 24;
  IoApic();

  /// The registers in its page. Data sheet 3.1: an index at 0, the register of that index at 10H.
  [[nodiscard]] std::uint32_t read(std::uint32_t offset);
  void write(std::uint32_t offset, std::uint32_t value);

  /// Lines that do not exist are ignored, as are edges on a masked line (data sheet 3.2.4).
  void set_line(std::uint32_t line, LineLevel level);
  /// A message-signalled interrupt (SDM 3A 10.11). It is lost unless its mode is fixed or lowest priority.
  void send(std::uint64_t address, std::uint32_t data);
  /// The next pending message for local APICs. Cheap if there is none.
  [[nodiscard]] std::optional<ApicMessage> take();
  /// A local APIC has received EOI for `vector`: a line that is still high interrupts again.
  void end_of_interrupt(std::uint8_t vector);

  /// Waits until take() may have a message, for `at_most` at most.
  void wait(std::chrono::milliseconds at_most);

  /// Saves the state as bytes, and restores it; false if the bytes are not of an I/O APIC, which then is unchanged.
  void save(ByteWriter& out);
  [[nodiscard]] bool restore(ByteReader& in);

 private:
  [[nodiscard]] std::optional<unsigned> ready() const;
  void look();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> attention_{};  ///< A line may have a message.
  std::uint8_t index_{};
  std::uint32_t id_{};
  std::uint32_t high_{}, edges_{};  ///< A bit for each line.
  std::set<ApicMessage> messages_;  ///< Messages that wait. Equal ones are merged, as in IRR.
  std::array<std::uint64_t, lines> redirection_;
};

}  // namespace vmm
