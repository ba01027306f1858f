#pragma once
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "devices/port_bus.hpp"
#include "memory/guest_memory.hpp"
#include "test_result.hpp"

namespace gt_runner {

/// The device at gt::command_port: collects a test's messages. It checks them, because they come from the guest.
class Conversation final : public vmm::PortDevice {
 public:
  /// `over` is called once, on the vCPU's thread, with the message that ends the test.
  Conversation(const vmm::GuestMemory& memory, std::function<void()> over) : memory_{&memory}, over_{std::move(over)} {}

  void port_read(std::uint16_t, std::span<std::byte>) override {}
  void port_write(std::uint16_t port, std::span<const std::byte> in) override;

  /// Whether a message has ended the test.
  [[nodiscard]] bool ended() const;
  /// Verdict, reason, failures, log and checks so far.
  [[nodiscard]] TestResult result() const;

 private:
  /// True when the message ends the test.
  bool take(std::span<const std::byte> in);
  bool fail(std::string reason);
  bool complete(std::uint32_t checks);

  const vmm::GuestMemory* memory_;
  std::function<void()> over_;
  mutable std::mutex mutex_;
  TestResult result_;  ///< Under mutex_.
  bool ended_{};       ///< Under mutex_.
};

}  // namespace gt_runner
