#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvm/fd.hpp"
#include "support/result.hpp"
#include "vpmu/address.hpp"

/// Virtio devices, "modern" only: the Virtual I/O Device specification, version 1.2, has a section for each name here.
namespace vmm::virtio {

/// Virtio 1.2 section 5.
enum class DeviceType : std::uint16_t { net = 1, block = 2, console = 3, file_system = 26 };

/// Feature bits of all devices. Virtio 1.2 section 6.
inline constexpr std::uint64_t f_version_1 = 1ULL << 32U;

/// A split virtqueue as the driver has set it up; all of it is the guest's word and may be anywhere. Virtio 1.2 2.7.
struct Ring {
  std::uint16_t size{};  ///< A power of two, at most what the device offers: the transport has looked.
  vpmu::GuestPhysical descriptors, available, used;
};

/// What the driver has set up when it says DRIVER_OK. Virtio 1.2 3.1.
struct DriverSetup {
  std::uint64_t features{};                ///< Among those that the device offers.
  std::vector<std::optional<Ring>> rings;  ///< One for each queue; empty where the driver does not use it.
};

/// What a device tells of itself, to its transport. Any thread.
class DeviceEvents {
 public:
  virtual ~DeviceEvents() = default;
  /// The device has put buffers into the used ring of `queue`. Virtio 1.2 2.7.7.
  virtual void used(unsigned queue) = 0;
  /// Something of the configuration space is different. Virtio 1.2 2.4.
  virtual void configuration_changed() = 0;
  /// Bytes of the guest's RAM were written by others than the vCPUs and this process's own GuestMemory. On a vCPU's
  /// thread, inside notify().
  virtual void written(vpmu::GuestPhysical at, std::uint64_t bytes) = 0;
  /// What the driver has put into memory makes no sense: the device does nothing until the driver resets it.
  /// Virtio 1.2 2.1.2.
  virtual void broken(const Error& error) = 0;
  /// The device cannot go on, and so the machine cannot.
  virtual void failed(Error error) = 0;
  /// Asks for a call of Device::attend() soon.
  virtual void attention() = 0;
};

/// One device behind a transport. Calls come one at a time, on vCPUs' threads, unless said otherwise.
class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual DeviceType type() const = 0;
  /// What it offers. The transport adds nothing; f_version_1 is always there.
  [[nodiscard]] virtual std::uint64_t features() const = 0;
  /// The most entries of each queue, a power of two; the queues are as many as these.
  [[nodiscard]] virtual std::span<const std::uint16_t> queue_sizes() const = 0;
  /// The device's configuration space; what lies beyond reads as zeros.
  virtual void read_configuration(std::uint32_t offset, std::span<std::byte> out) = 0;
  virtual void write_configuration(std::uint32_t /*offset*/, std::span<const std::byte> /*in*/) {}

  /// The machine begins to run, in its jail: from now on the device may start threads. On the machine's own thread,
  /// once; `events` outlives the device.
  virtual Result<void> begin(DeviceEvents& events) = 0;
  /// The driver is ready. A failure is the back end's or the driver's: the device needs a reset.
  virtual Result<void> start(const DriverSetup& setup) = 0;
  /// The driver has made buffers of `queue` available. After start(); several vCPUs at a time.
  virtual void notify(unsigned queue) = 0;
  /// DeviceEvents::attention() asked for it: on a vCPU's thread, between two of its runs. May come after stop().
  virtual void attend() {}
  /// The driver resets the device: no access to its rings after this returns.
  virtual void stop() = 0;
  /// The machine is to stop: a notify() that waits for somebody else gives up, and so does each that follows. Any
  /// thread.
  virtual void cancel() {}

  /// Descriptors (eventfd) by which KVM itself notifies the device, and the device interrupts through KVM; null where
  /// notify() and DeviceEvents::used() are the way. For each queue, from the start.
  [[nodiscard]] virtual const Fd* notify_event(unsigned /*queue*/) const { return nullptr; }
  [[nodiscard]] virtual const Fd* used_event(unsigned /*queue*/) const { return nullptr; }
};

}  // namespace vmm::virtio
