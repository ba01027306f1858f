#pragma once
#include <atomic>
#include <cstdint>

#include "devices/port_bus.hpp"
#include "devices/stop_requests.hpp"

namespace vmm {

/// Reset control register of a PC chipset at CF9H: bit 2 resets. Also the ACPI reset register.
class ResetPort final : public PortDevice {
 public:
  static constexpr std::uint16_t port = 0xCF9;

  explicit ResetPort(StopRequests& machine) : machine_{&machine} {}
  void port_read(std::uint16_t port, std::span<std::byte> out) override;
  void port_write(std::uint16_t port, std::span<const std::byte> in) override;
  [[nodiscard]] std::vector<PortRange> ports() const override { return {{.first = port}}; }

 private:
  StopRequests* machine_;
};

/// The keyboard controller's ports 60H and 64H without a keyboard. Command FEH resets the machine. The status always
/// says that the output buffer is full, so that a guest's probe gives up within a millisecond instead of waiting for
/// answers.
class KeyboardController final : public PortDevice {
 public:
  static constexpr std::uint16_t data_port = 0x60;
  static constexpr std::uint16_t command_port = 0x64;

  explicit KeyboardController(StopRequests& machine) : machine_{&machine} {}
  void port_read(std::uint16_t port, std::span<std::byte> out) override;
  void port_write(std::uint16_t port, std::span<const std::byte> in) override;
  [[nodiscard]] std::vector<PortRange> ports() const override {
    return {{.first = data_port}, {.first = command_port}};
  }

 private:
  StopRequests* machine_;
};

/// System control port B at 61H, which KVM's 8254 serves if there is one: it reports no NMI of the board, so that a
/// guest's handler does not take other NMIs for one, and keeps the bits that software writes: the gates of the timer's
/// channel 2, the speaker, and of the NMIs.
class SystemControlPort final : public PortDevice {
 public:
  static constexpr std::uint16_t port = 0x61;

  void port_read(std::uint16_t port, std::span<std::byte> out) override;
  void port_write(std::uint16_t port, std::span<const std::byte> in) override;
  [[nodiscard]] std::vector<PortRange> ports() const override { return {{.first = port}}; }
  void save(ByteWriter& out) override { out.put(gates_.load()); }
  void restore(ByteReader& in) override { gates_ = in.get<std::uint8_t>() & writable; }

 private:
  static constexpr std::uint8_t writable = 0x0F;
  std::atomic<std::uint8_t> gates_{0};  ///< The bits that software has written.
};

/// The ports of an 8254, which KVM's serves if there is one: its counters stand at 0. A guest that waits for one to
/// come down from its top, as Linux does 50,000 times to measure the TSC, gives up at once; FFH, of no device, is the
/// top.
class StoppedTimer final : public PortDevice {
 public:
  static constexpr std::uint16_t first_port = 0x40, port_count = 4;

  void port_read(std::uint16_t port, std::span<std::byte> out) override;
  void port_write(std::uint16_t /*port*/, std::span<const std::byte> /*in*/) override {}
  [[nodiscard]] std::vector<PortRange> ports() const override { return {{.first = first_port, .count = port_count}}; }
};

/// PM1a event and control registers: ACPI mode is always on, no event ever comes, S5 powers off. ACPI 4.8.3.
class AcpiPower final : public PortDevice {
 public:
  static constexpr std::uint16_t first_port = 0x600;
  static constexpr std::uint16_t port_count = 6;

  explicit AcpiPower(StopRequests& machine) : machine_{&machine} {}
  void port_read(std::uint16_t port, std::span<std::byte> out) override;
  void port_write(std::uint16_t port, std::span<const std::byte> in) override;
  [[nodiscard]] std::vector<PortRange> ports() const override { return {{.first = first_port, .count = port_count}}; }
  void save(ByteWriter& out) override { out.put(enable_.load()); }
  void restore(ByteReader& in) override { enable_ = in.get<std::uint16_t>(); }

 private:
  StopRequests* machine_;
  std::atomic<std::uint16_t> enable_{0};  ///< PM1a_EN.
};

/// The pvpanic port (QEMU docs/specs/pvpanic): the guest says that it panicked.
class PanicPort final : public PortDevice {
 public:
  static constexpr std::uint16_t port = 0x505;

  explicit PanicPort(StopRequests& machine) : machine_{&machine} {}
  void port_read(std::uint16_t port, std::span<std::byte> out) override;
  void port_write(std::uint16_t port, std::span<const std::byte> in) override;
  [[nodiscard]] std::vector<PortRange> ports() const override { return {{.first = port}}; }

 private:
  StopRequests* machine_;
};

/// Test kernels report their result here, as to QEMU's isa-debug-exit: 0 is a power-off, anything else a failure.
class ExitPort final : public PortDevice {
 public:
  static constexpr std::uint16_t port = 0xF4;

  explicit ExitPort(StopRequests& machine) : machine_{&machine} {}
  void port_read(std::uint16_t port, std::span<std::byte> out) override;
  void port_write(std::uint16_t port, std::span<const std::byte> in) override;
  [[nodiscard]] std::vector<PortRange> ports() const override { return {{.first = port}}; }

 private:
  StopRequests* machine_;
};

/// Accepts writes that have no effect here, such as POST codes at 80H, so that they do not count as unclaimed.
class IgnoredPort final : public PortDevice {
 public:
  static constexpr std::uint16_t post_port = 0x80;

  void port_read(std::uint16_t /*port*/, std::span<std::byte> /*out*/) override {}
  void port_write(std::uint16_t /*port*/, std::span<const std::byte> /*in*/) override {}
  [[nodiscard]] std::vector<PortRange> ports() const override { return {{.first = post_port}}; }
};

}  // namespace vmm
