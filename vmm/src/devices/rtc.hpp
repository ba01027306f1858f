#pragma once
#include <array>
#include <cstdint>
#include <ctime>
#include <functional>
#include <mutex>

#include "devices/port_bus.hpp"

namespace vmm {

/// MC146818 real-time clock and CMOS memory at ports 70H and 71H. Gives the time (UTC); alarms and periodic interrupts
/// never come. Setting the time is accepted and has no effect.
class Rtc final : public PortDevice {
 public:
  static constexpr std::uint16_t first_port = 0x70;
  static constexpr std::uint16_t port_count = 2;

  /// `now` gives seconds since 1970.
  explicit Rtc(std::function<std::time_t()> now);

  void port_read(std::uint16_t port, std::span<std::byte> out) override;
  void port_write(std::uint16_t port, std::span<const std::byte> in) override;
  [[nodiscard]] std::vector<PortRange> ports() const override { return {{.first = first_port, .count = port_count}}; }
  /// The CMOS memory and the index.
  void save(ByteWriter& out) override;
  void restore(ByteReader& in) override;

 private:
  [[nodiscard]] std::uint8_t read_cell(std::uint8_t index) const;
  [[nodiscard]] std::uint8_t encode(int value) const;

  std::function<std::time_t()> now_;
  std::mutex mutex_;
  std::uint8_t index_{};
  std::array<std::uint8_t, 128> cells_{};
};

}  // namespace vmm
