#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "devices/device_wires.hpp"
#include "devices/msix_table.hpp"
#include "devices/pci_bus.hpp"
#include "devices/pci_header.hpp"
#include "virtio/device.hpp"

namespace vmm::virtio {

/// A virtio device as a function on the PCI bus: the "modern" transport, with MSI-X and no INTx. Virtio 1.2 section
/// 4.1. Thread-safe.
class PciDevice final : public PciFunction, public DeviceEvents {
 public:
  /// What it reports to the machine. Any thread, except for `written`.
  struct Machine {
    std::function<void(vpmu::GuestPhysical at, std::uint64_t bytes)> written;  ///< DeviceEvents::written.
    std::function<void(Error)> failed;                                         ///< The machine cannot go on.
    std::function<void(const Error&)> refused;  ///< The device needs a reset; the guest is notified too.
    std::function<void()> attention;            ///< PciDevice::attend() should be called on a vCPU's thread.
  };
  /// Size and alignment of the address range of its BARs.
  static constexpr std::uint32_t window_bytes = 32768;

  /// The BARs start at `window`. `wires` must outlive it.
  PciDevice(std::unique_ptr<Device> device, std::uint32_t window, DeviceWires& wires, Machine machine);
  ~PciDevice() override;
  PciDevice(const PciDevice&) = delete;
  PciDevice& operator=(const PciDevice&) = delete;
  PciDevice(PciDevice&&) = delete;
  PciDevice& operator=(PciDevice&&) = delete;

  /// Device::begin().
  Result<void> begin() { return device_->begin(*this); }

  std::uint32_t config_read(std::uint8_t offset) override;
  void config_write(std::uint8_t offset, std::uint32_t value, std::uint32_t mask) override;
  bool memory_read(vpmu::GuestPhysical at, std::span<std::byte> out) override;
  bool memory_write(vpmu::GuestPhysical at, std::span<const std::byte> in) override;

  void used(unsigned queue) override;
  void configuration_changed() override;
  void written(vpmu::GuestPhysical at, std::uint64_t bytes) override { machine_.written(at, bytes); }
  void broken(const Error& error) override;
  void failed(Error error) override { machine_.failed(std::move(error)); }
  void attention() override;
  /// Device::attend(), if the device has asked for it.
  void attend();
  /// Its state, and the device's, while no vCPU runs. Fails as Device::save() does. go_on() ends the device's rest.
  Result<void> save(ByteWriter& out);
  void go_on();
  /// Takes it over, of a device of the same kind, before the vCPUs run. The state may be harmful; a failure names what
  /// does not fit.
  Result<void> restore(ByteReader& in);
  /// Device::cancel().
  void cancel() { device_->cancel(); }

 private:
  /// What the driver has written for a queue. Virtio 1.2 4.1.4.3.
  struct Queue {
    std::uint16_t size{};
    std::uint16_t vector{no_vector};
    bool enabled{};
    std::uint64_t descriptors{}, driver{}, device{};
  };
  /// What KVM currently does for a queue.
  struct Wired {
    std::optional<InterruptMessage> interrupt;
    std::optional<vpmu::GuestPhysical> stores;
  };
  static constexpr std::uint16_t no_vector = 0xFFFF;

  /// As it is saved; then each queue. Any bytes are values of these.
  struct Saved {
    std::uint64_t driver_features;
    std::uint32_t device_feature_select, driver_feature_select;
    std::uint16_t type, queues, select, configuration_vector;
    std::uint8_t status, generation, isr, started;
    std::uint32_t none;
  };
  struct SavedQueue {
    std::uint64_t descriptors, driver, device;
    std::uint16_t size, vector, enabled, none;
  };
  void add_capabilities();
  [[nodiscard]] bool is_possible(const Queue& queue, std::size_t number) const;
  [[nodiscard]] std::uint64_t read_common(std::uint32_t offset) const;
  void write_common(std::uint32_t offset, unsigned bytes, std::uint64_t value);
  void write_queue(std::uint32_t offset, unsigned bytes, std::uint64_t value);
  void write_status(std::uint8_t value);
  void reset();
  void start();
  [[nodiscard]] DriverSetup setup() const;
  [[nodiscard]] Queue* selected() { return select_ < queues_.size() ? &queues_[select_] : nullptr; }
  void notify(std::uint32_t offset);
  void raise(std::uint16_t vector);
  void rewire();
  Result<void> rewire(unsigned queue, const Wired& wanted);
  void check(const Result<void>& done) const;

  std::unique_ptr<Device> device_;
  DeviceWires* wires_;
  Machine machine_;
  std::atomic<bool> started_{}, wants_attention_{};

  /// Calls the device, one call at a time even if several vCPUs do so; not for notify().
  template <class Call>
  void with_driver(Call call) {
    const std::scoped_lock order{driver_};
    call();
  }

  std::mutex driver_;         ///< Held while the device starts or stops. Taken before mutex_.
  mutable std::mutex mutex_;  ///< Guards the members below; not held while the device is called.
  PciHeader header_;
  std::uint8_t msix_capability_{};
  MsixTable msix_;
  std::vector<Queue> queues_;
  std::vector<Wired> wired_;
  std::uint64_t driver_features_{};
  std::uint32_t device_feature_select_{}, driver_feature_select_{};
  std::uint16_t select_{};
  std::uint16_t configuration_vector_{no_vector};
  std::uint8_t status_{}, generation_{}, isr_{};
};

}  // namespace vmm::virtio
