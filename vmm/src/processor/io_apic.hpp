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

/// What local APICs are sent. SDM 3A 10.6, 10.11.
struct ApicMessage {
  /// As ICR, a redirection table entry and a message's data encode it.
  enum class Mode : std::uint8_t { fixed, lowest_priority, smi, reserved, nmi, init, start_up, external };
  std::uint8_t vector{};
  Mode mode{};
  bool everyone{};              ///< Whatever `destination` says.
  bool logical{};               ///< `destination` is no id, but matches logical ids.
  std::uint32_t destination{};  ///< Of as many bits as its sender has for it.
  auto operator<=>(const ApicMessage&) const = default;
};

/// The I/O APIC of a machine without KVM: 24 lines; and the way for what devices send as messages. Intel 82093AA data
/// sheet.
/// Thread-safe: devices drive lines on any thread, a vCPU takes what waits.
class IoApic {
 public:
  static constexpr unsigned lines = 24;
  IoApic();

  /// The registers in its page. Data sheet 3.1: an index at 0, the register of that index at 10H.
  [[nodiscard]] std::uint32_t read(std::uint32_t offset);
  void write(std::uint32_t offset, std::uint32_t value);

  /// Lines that do not exist are ignored. An edge on a masked line waits for the line.
  void set_line(std::uint32_t line, LineLevel level);
  /// A message-signalled interrupt (SDM 3A 10.11). One that is not fixed, nor of the lowest priority, is lost.
  void send(std::uint64_t address, std::uint32_t data);
  /// The next message for local APICs, if one waits. Cheap when none does.
  [[nodiscard]] std::optional<ApicMessage> take();
  /// A local APIC has served `vector`: a line that is still high interrupts again.
  void end_of_interrupt(std::uint8_t vector);

  /// Waits until something may be there to take, at most so long.
  void wait(std::chrono::milliseconds at_most);

  /// All of it as bytes, and the reverse: false where they are not of an I/O APIC, which then is as it was.
  void save(ByteWriter& out);
  [[nodiscard]] bool restore(ByteReader& in);

 private:
  [[nodiscard]] std::optional<unsigned> ready() const;
  void look();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> attention_{};  ///< A line is ready.
  std::uint8_t index_{};
  std::uint32_t id_{};
  std::uint32_t high_{}, edges_{};  ///< A bit for each line.
  std::set<ApicMessage> messages_;  ///< They were sent and wait. Two that are the same join, as in IRR.
  std::array<std::uint64_t, lines> redirection_;
};

}  // namespace vmm
