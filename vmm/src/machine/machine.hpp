#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "devices/chipset.hpp"
#include "devices/pci_bus.hpp"
#include "devices/port_bus.hpp"
#include "devices/serial16550.hpp"
#include "devices/stop_requests.hpp"
#include "devices/test_device.hpp"
#include "machine/accelerator.hpp"
#include "machine/config.hpp"
#include "machine/load_guest.hpp"
#include "machine/statistics.hpp"
#include "machine/vcpu_thread.hpp"
#include "memory/guest_memory.hpp"
#include "memory/linear.hpp"
#include "memory/ram_access.hpp"
#include "snapshot/snapshot_file.hpp"
#include "support/log.hpp"
#include "virtio/pci_device.hpp"

namespace vmm {

/// A whole virtual machine: memory, devices, vCPUs and their threads. Built by create(), runs from start() until
/// something asks it to stop; each machine runs once. Members may be called from any thread but a vCPU's;
/// request_stop() from all threads.
class Machine final : public StopRequests {
 public:
  struct Hooks {
    Serial16550::Output console;  ///< Each byte that the guest sends on COM1; called on vCPU threads, one at a time.
    std::function<void()> stop_requested;  ///< Once, on any thread, when the machine is about to stop. May be empty.
    /// On a vCPU's thread: the vCPU has run for MachineConfig::max_ticks, and waits. Empty: the machine stops
    /// (StopReason::user).
    std::function<void()> time_up{};
    /// On each vCPU's thread, before the guest's first instruction: drops privileges of the thread that a guest does
    /// not need. A failure ends the machine. May be empty.
    std::function<Result<void>()> confine_vcpu{};
    /// Makes each vCPU's access to the host's counters, on its thread. Empty: the thread opens events itself.
    PerfHostFactory perf_hosts{};
    /// Makes the virtio devices, which are put on a PCI bus. The memory, which outlives them, can be shared with other
    /// processes. Empty: no bus.
    using DeviceFactory = std::function<Result<std::vector<std::unique_ptr<virtio::Device>>>(const GuestMemory&)>;
    DeviceFactory make_devices{};
  };

  /// Chooses what the configuration leaves open (machine/automatic.hpp), and logs that to `log` as LogLevel::info;
  /// checks the configuration, loads the kernel and makes the processors. `log` must outlive the machine. Fails with
  /// kind usage for what the user can change, kind host for what this host cannot do.
  static Result<std::unique_ptr<Machine>> create(const MachineConfig& given, Hooks hooks, Log& log);
  ~Machine() override;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  Machine(Machine&&) = delete;
  Machine& operator=(Machine&&) = delete;

  /// The port bus, to add devices before start().
  [[nodiscard]] PortBus& ports() { return ports_; }
  [[nodiscard]] const GuestMemory& memory() const { return memory_; }

  /// Starts the devices and the vCPUs.
  void start();
  /// Stops all vCPUs; the first reason is kept.
  void request_stop(StopReason reason) override;
  enum class AfterSnapshot : std::uint8_t { go_on, stop };
  /// Pauses every vCPU, writes the whole machine to a file (MachineConfig::restore), and resumes them or, once the file
  /// is complete, stops them there (StopReason::user). Not on a vCPU's thread. Cost: the time to write the guest's
  /// memory, all of it visible to the guest.
  Result<void> snapshot(WholeFile file, AfterSnapshot then = AfterSnapshot::go_on);
  /// Asks every vCPU to pause before it goes on; does not wait. Any thread: a vCPU's own runs no further instruction
  /// than the one that it is at. snapshot(), or pause() and resume(), must follow.
  void ask_to_pause();
  /// The parts of snapshot(), for a caller that lets another thread write: pauses every vCPU, and returns what
  /// write_snapshot() takes beside memory(). Unless it fails, resume() must follow.
  Result<MachineImage> pause();
  void resume();
  /// Waits until every vCPU has stopped, and says why. After start(), once.
  StopReason wait();
  /// The reason of the stop; empty while the machine runs.
  [[nodiscard]] std::optional<StopReason> stop_reason() const;
  /// The error, after StopReason::host_failure.
  [[nodiscard]] std::optional<Error> failure() const;

  /// Input of COM1. Returns how many bytes were taken.
  std::size_t console_input(std::span<const std::byte> bytes) { return serial_->receive(bytes); }
  /// All counters. Costs a kick for each vCPU.
  [[nodiscard]] MachineStatistics statistics();
  [[nodiscard]] unsigned cpus() const { return static_cast<unsigned>(vcpus_.size()); }

 private:
  class Line;
  Machine(GuestMemory memory, Hooks hooks, Log& log);
  void add_devices(const MachineConfig& config);
  void add_virtio(std::vector<std::unique_ptr<virtio::Device>> devices);
  Result<void> add_vcpus(const MachineConfig& config, const ResolvedConfig& resolved, const LoadedGuest& loaded,
                         const MachineImage* image);
  Result<MachineImage> save();
  Result<void> restore(const MachineImage& image);
  Result<Bytes> save_virtio();
  Result<void> restore_virtio(std::span<const std::byte> image);
  Bytes save_devices(std::span<const std::byte> virtio);
  Result<void> restore_devices(std::span<const std::byte> image);
  void fail(Error error);

  GuestMemory memory_;
  Hooks hooks_;
  Log* log_;
  RamAccess ram_access_;
  LinearMemory linear_;
  std::unique_ptr<Accelerator> accelerator_;
  PortBus ports_;
  std::unique_ptr<InterruptLine> serial_line_;
  Serial16550* serial_{};  ///< COM1, in devices_.
  std::vector<std::unique_ptr<PortDevice>> devices_;
  PciBus pci_;
  TestMemory test_memory_{pci_};
  std::vector<virtio::PciDevice*> virtio_;  ///< In pci_.
  std::atomic<bool> attention_{};           ///< One of these has asked for attend().
  MachineImage made_as_;                    ///< The part of the configuration that a snapshot stores.
  std::unique_ptr<PackageUncore> uncore_;
  std::unique_ptr<SharedCaches> caches_;
  std::vector<std::unique_ptr<VcpuThread>> vcpus_;
  std::chrono::steady_clock::time_point started_{};

  mutable std::mutex mutex_;
  std::optional<StopReason> reason_;  ///< Under mutex_.
  std::atomic<bool> stops_{};         ///< There is a reason.
  std::optional<Error> failure_;      ///< Under mutex_.
};

}  // namespace vmm
