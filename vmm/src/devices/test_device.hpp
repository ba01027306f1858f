#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "devices/interrupt_line.hpp"
#include "devices/mmio.hpp"
#include "devices/port_bus.hpp"

namespace vmm {

/// A device for test kernels, with the ports of QEMU's pc-testdev: four bytes at E0H that keep what is written to them,
/// E4H, which takes a page's address and does nothing, and one port for each line of the interrupt controllers from
/// 2000H on, which sets the line high or low.
class TestDevice final : public PortDevice {
 public:
  static constexpr std::uint16_t first_byte = 0xE0, bytes = 4, flush_port = 0xE4, flush_ports = 4;
  static constexpr std::uint16_t first_line = 0x2000, lines = 24;

  /// `set_line` is called on vCPU threads, with a number below `lines`.
  explicit TestDevice(std::function<void(std::uint32_t line, LineLevel level)> set_line)
      : set_line_{std::move(set_line)} {}
  void port_read(std::uint16_t port, std::span<std::byte> out) override;
  void port_write(std::uint16_t port, std::span<const std::byte> in) override;
  [[nodiscard]] std::vector<PortRange> ports() const override {
    return {{.first = first_byte, .count = bytes},
            {.first = flush_port, .count = flush_ports},
            {.first = first_line, .count = lines}};
  }
  void save(ByteWriter& out) override;
  void restore(ByteReader& in) override;

 private:
  std::function<void(std::uint32_t line, LineLevel level)> set_line_;
  std::array<std::atomic<std::uint8_t>, bytes> kept_{};
};

/// The memory of QEMU's pc-testdev: 64 KiB at FF000000H that keep what is written to them, but each access goes to a
/// device. Other addresses are those of `others`, which must outlive it.
class TestMemory final : public MmioDevices {
 public:
  static constexpr vpmu::GuestPhysical first{0xFF00'0000};
  static constexpr std::size_t bytes = 0x1'0000;

  explicit TestMemory(MmioDevices& others) : others_{&others} {}
  void mmio_read(vpmu::GuestPhysical at, std::span<std::byte> out) override;
  void mmio_write(vpmu::GuestPhysical at, std::span<const std::byte> in) override;

  /// All of it; empty if nothing was ever written.
  [[nodiscard]] std::vector<std::byte> kept() const;
  /// False if `kept` has another size.
  [[nodiscard]] bool set_kept(std::span<const std::byte> kept);

 private:
  MmioDevices* others_;
  std::atomic<bool> written_{};
  std::vector<std::atomic<std::byte>> kept_{bytes};
};

}  // namespace vmm
