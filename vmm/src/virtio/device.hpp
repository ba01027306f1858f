#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvm/fd.hpp"
#include "snapshot/byte_stream.hpp"
#include "support/result.hpp"
#include "vpmu/address.hpp"

/// Virtio devices, "modern" only: the Virtual I/O Device specification, version 1.2, has a section for each name here.
namespace vmm::virtio {

/// Virtio 1.2 section 5.
enum class DeviceType : std::uint16_t { net = 1, block = 2, console = 3, file_system = 26 };

/// Feature bits of all devices. Virtio 1.2 section 6.
inline constexpr std::uint64_t f_version_1 = 1ULL << 32U;

/// A split virtqueue as the driver has set it up. Untrusted: its parts may be anywhere. Virtio 1.2 2.7.
struct Ring {
  std::uint16_t size{};  ///< A power of two, at most what the device offers: checked by the transport.
  vpmu::GuestPhysical descriptors, available, used;
};

/// The driver's settings at DRIVER_OK. Virtio 1.2 3.1.
struct DriverSetup {
  std::uint64_t features{};                ///< Among those that the device offers.
  std::vector<std::optional<Ring>> rings;  ///< One for each queue; empty where the driver does not use it.
};

/// What a device reports to its transport. Any thread.
class DeviceEvents {
 public:
  virtual ~DeviceEvents() = default;
  /// The device has put buffers into the used ring of `queue`. Virtio 1.2 2.7.7.
  virtual void used(unsigned queue) = 0;
  /// The configuration space has changed. Virtio 1.2 2.4.
  virtual void configuration_changed() = 0;
  /// Guest RAM was written by somebody other than the vCPUs and this process's own GuestMemory. On a vCPU's thread,
  /// inside notify().
  virtual void written(vpmu::GuestPhysical at, std::uint64_t bytes) = 0;
  /// The driver has put invalid data into memory: the device does nothing until the driver resets it. Virtio 1.2 2.1.2.
  virtual void broken(const Error& error) = 0;
  /// The device cannot go on, and neither can the machine.
  virtual void failed(Error error) = 0;
  /// Asks for a call of Device::attend() soon.
  virtual void attention() = 0;
};

/// One device behind a transport. Calls come one at a time, on vCPUs' threads, unless stated otherwise.
class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual DeviceType type() const = 0;
  /// The features that the device offers, f_version_1 always among them. The transport adds none.
  [[nodiscard]] virtual std::uint64_t features() const = 0;
  /// The maximum size of each queue, a power of two. Its length is the number of queues.
  [[nodiscard]] virtual std::span<const std::uint16_t> queue_sizes() const = 0;
  /// The device's configuration space; bytes beyond it read as zeros.
  virtual void read_configuration(std::uint32_t offset, std::span<std::byte> out) = 0;
  virtual void write_configuration(std::uint32_t /*offset*/, std::span<const std::byte> /*in*/) {}

  /// The machine starts to run, in its jail: the device may start threads from now on. Called once, on the machine's
  /// own thread; `events` outlives the device.
  virtual Result<void> begin(DeviceEvents& events) = 0;
  /// The driver is ready. A failure is the back end's or the driver's: the device then needs a reset.
  virtual Result<void> start(const DriverSetup& setup) = 0;
  /// What is not in the guest's memory, for resume(). While the driver is ready and no vCPU runs. Fails if a part of
  /// the state is elsewhere, or the device does not come to rest. It then leaves the guest's memory alone until
  /// go_on().
  virtual Result<void> save(ByteWriter& out) = 0;
  /// Ends the rest after save(), if there is one. What fails is reported as DeviceEvents::failed().
  virtual void go_on() = 0;
  /// Instead of start(), and maybe before begin(): the driver was ready when the machine was saved, and the rings go on
  /// where they were. The state may be harmful.
  virtual Result<void> resume(const DriverSetup& setup, ByteReader& in) = 0;
  /// The driver has made buffers of `queue` available. After start(); several vCPUs at a time.
  virtual void notify(unsigned queue) = 0;
  /// Answers DeviceEvents::attention(): on a vCPU's thread, between two of its runs. May come after stop().
  virtual void attend() {}
  /// The driver resets the device: no access to its rings after this returns.
  virtual void stop() = 0;
  /// The machine is about to stop: whichever call waits for somebody else, or has much to do, gives up, and later ones
  /// do not begin. Any thread.
  virtual void cancel() {}

  /// The eventfds through which KVM notifies the device, and the device interrupts through KVM; null if notify() and
  /// DeviceEvents::used() are used instead. For each queue, from the start.
  [[nodiscard]] virtual const Fd* notify_event(unsigned /*queue*/) const { return nullptr; }
  [[nodiscard]] virtual const Fd* used_event(unsigned /*queue*/) const { return nullptr; }
};

}  // namespace vmm::virtio
