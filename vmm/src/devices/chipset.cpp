#include "devices/chipset.hpp"

#include <algorithm>
#include <cstring>

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

std::uint32_t value_of(std::span<const std::byte> in) {
  std::uint32_t value = 0;
  std::memcpy(&value, in.data(), std::min(in.size(), sizeof value));
  return value;
}

void answer(std::span<std::byte> out, std::uint32_t value) {
  std::ranges::fill(out, std::byte{0});
  std::memcpy(out.data(), &value, std::min(out.size(), sizeof value));
}

using RESET_CPU = vpmu::Bits<2>;
using PM1_SCI_EN = vpmu::Bits<0>;
using PM1_SLP_TYP = vpmu::Bits<12, 10>;
using PM1_SLP_EN = vpmu::Bits<13>;

constexpr std::uint16_t pm1_status_offset = 0;
constexpr std::uint16_t pm1_enable_offset = 2;
constexpr std::uint16_t pm1_control_offset = 4;
constexpr std::uint32_t sleep_type_off = 5;  // as \_S5 in the DSDT says

constexpr std::uint8_t reset_command = 0xFE;
constexpr std::uint8_t status_output_full = 0x01;
constexpr std::uint8_t timer_output = 0x20;  // of channel 2, as if it had counted down: guests wait for that

using PANICKED = vpmu::Bits<0>;
using CRASH_LOADED = vpmu::Bits<1>;

}  // namespace

void ResetPort::port_read(std::uint16_t /*port*/, std::span<std::byte> out) { answer(out, 0); }

void ResetPort::port_write(std::uint16_t /*port*/, std::span<const std::byte> in) {
  if (RESET_CPU::test(value_of(in))) {
    machine_->request_stop(StopReason::reset);
  }
}

void KeyboardController::port_read(std::uint16_t port, std::span<std::byte> out) {
  if (port == command_port) answer(out, status_output_full);
}

void KeyboardController::port_write(std::uint16_t port, std::span<const std::byte> in) {
  if (port == command_port && (value_of(in) & 0xFFU) == reset_command) {
    machine_->request_stop(StopReason::reset);
  }
}

void SystemControlPort::port_read(std::uint16_t /*port*/, std::span<std::byte> out) {
  answer(out, gates_ | timer_output);
}

void SystemControlPort::port_write(std::uint16_t /*port*/, std::span<const std::byte> in) {
  gates_ = static_cast<std::uint8_t>(value_of(in)) & writable;
}

void StoppedTimer::port_read(std::uint16_t /*port*/, std::span<std::byte> out) { answer(out, 0); }

void AcpiPower::port_read(std::uint16_t port, std::span<std::byte> out) {
  switch (port - first_port) {
    case pm1_status_offset: return answer(out, out.size() == 4 ? std::uint32_t{enable_.load()} << 16U : 0);
    case pm1_enable_offset: return answer(out, enable_.load());
    case pm1_control_offset: return answer(out, PM1_SCI_EN::mask);
    default: return answer(out, 0);
  }
}

void AcpiPower::port_write(std::uint16_t port, std::span<const std::byte> in) {
  const auto value = value_of(in);
  switch (port - first_port) {
    case pm1_enable_offset: enable_ = static_cast<std::uint16_t>(value); return;
    case pm1_control_offset:
      if (PM1_SLP_EN::test(value) && PM1_SLP_TYP::get(value) == sleep_type_off) {
        machine_->request_stop(StopReason::power_off);
      }
      return;
    default: return;
  }
}

void PanicPort::port_read(std::uint16_t /*port*/, std::span<std::byte> out) {
  answer(out, PANICKED::mask | CRASH_LOADED::mask);
}

void PanicPort::port_write(std::uint16_t /*port*/, std::span<const std::byte> in) {
  if (PANICKED::test(value_of(in))) {
    machine_->request_stop(StopReason::guest_panic);
  }
}

void ExitPort::port_read(std::uint16_t /*port*/, std::span<std::byte> out) { answer(out, 0); }

void ExitPort::port_write(std::uint16_t /*port*/, std::span<const std::byte> in) {
  machine_->request_stop(value_of(in) == 0 ? StopReason::power_off : StopReason::guest_failed);
}

}  // namespace vmm
