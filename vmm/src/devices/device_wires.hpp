#pragma once
#include <cstdint>
#include <optional>

#include "kvm/fd.hpp"
#include "support/result.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// A message-signalled interrupt, as a device writes it. SDM 3A 10.11.
struct InterruptMessage {
  std::uint64_t address{};
  std::uint32_t data{};
  bool operator==(const InterruptMessage&) const = default;
};

/// How devices on a bus reach the processors. Any thread.
class DeviceWires {
 public:
  virtual ~DeviceWires() = default;
  /// Sends an interrupt. One that no processor takes is lost, as on hardware.
  virtual Result<void> send(const InterruptMessage& message) = 0;
  /// From now on each write to `event` (an eventfd) sends `message`. If that is empty, writes wait in the eventfd until
  /// there is a message again. Only with KVM.
  virtual Result<void> wire_interrupt(const Fd& event, const std::optional<InterruptMessage>& message) = 0;
  /// While connected, the guest's two-byte stores at `at` write to `event` (an eventfd). Only with KVM.
  enum class Wire : std::uint8_t { connect, cut };
  virtual Result<void> wire_store(vpmu::GuestPhysical at, const Fd& event, Wire wire) = 0;
};

}  // namespace vmm
