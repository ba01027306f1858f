#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "devices/interrupt_line.hpp"
#include "devices/port_bus.hpp"
#include "snapshot/byte_stream.hpp"

namespace vmm {

/// National Semiconductor PC16550D UART as a PC has it at 3F8H: FIFO, interrupts for received data and empty
/// transmitter. Transmission takes no time. Modem lines read as connected. Not modelled: baud rate, parity, break,
/// overrun, character time-out.
class Serial16550 final : public PortDevice {
 public:
  static constexpr std::uint16_t com1_port = 0x3F8;
  static constexpr std::uint16_t port_count = 8;
  static constexpr unsigned com1_line = 4;

  /// Takes each byte the guest sends; called under the device's lock, so it must be quick.
  using Output = std::function<void(std::uint8_t)>;

  /// `line` must outlive the device.
  Serial16550(Output output, InterruptLine& line);

  void port_read(std::uint16_t port, std::span<std::byte> out) override;
  void port_write(std::uint16_t port, std::span<const std::byte> in) override;
  [[nodiscard]] std::vector<PortRange> ports() const override { return {{.first = com1_port, .count = port_count}}; }

  /// Hands bytes to the guest's receiver. They wait here until the guest reads them.
  /// @return how many were taken: at most `max_waiting` bytes wait at a time.
  std::size_t receive(std::span<const std::byte> bytes);

  static constexpr std::size_t max_waiting = 4096;

  /// Save and restore the registers and the bytes that wait to be read; restore() drives the line accordingly.
  void save(ByteWriter& out) override;
  void restore(ByteReader& in) override;

 private:
  std::uint8_t read_register(unsigned offset);
  void write_register(unsigned offset, std::uint8_t value);
  void write_data(std::uint8_t value);
  void write_fifo_control(std::uint8_t value);
  std::uint8_t read_data();
  std::uint8_t interrupt_identity();
  [[nodiscard]] std::uint8_t line_status() const;
  [[nodiscard]] std::uint8_t modem_status() const;
  void update_line();

  Output output_;
  InterruptLine* line_;
  std::mutex mutex_;
  std::deque<std::uint8_t> received_;
  std::array<std::uint8_t, 2> divisor_{};
  std::uint8_t interrupt_enable_{};
  std::uint8_t fifo_control_{};
  std::uint8_t line_control_{};
  std::uint8_t modem_control_{};
  std::uint8_t scratch_{};
  bool transmitter_interrupt_{};  ///< THR became empty and nobody has read IIR or written THR since.
  LineLevel level_{LineLevel::low};
};

}  // namespace vmm
