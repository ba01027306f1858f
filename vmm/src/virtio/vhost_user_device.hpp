#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "virtio/device.hpp"
#include "virtio/split_ring.hpp"
#include "virtio/vhost_user.hpp"

namespace vmm::virtio {

/// A device whose work a daemon does, over vhost-user. The rings are between the guest and the daemon: here is who
/// tells whom, and the end of the daemon, which is the end of the machine.
class VhostUserDevice final : public Device {
 public:
  /// How the guest gets its answers.
  enum class Answers {
    by_kvm,         ///< When they come: KVM passes notifications and interrupts on by itself.
    before_return,  ///< Before notify() returns, so that no guest with a time of its own sees how long they took.
  };
  /// The configuration space is the back end's, and so long.
  struct FromBackEnd {
    std::uint32_t bytes;
  };
  struct Options {
    DeviceType type;
    std::vector<std::uint16_t> queue_sizes;
    std::uint64_t features{};  ///< What of the back end's offer the guest may see, f_version_1 apart.
    std::variant<std::vector<std::byte>, FromBackEnd> configuration;
    Answers answers{Answers::by_kvm};
    /// Queues whose answers come when they come even with before_return: those of a network's receiver. Then the device
    /// asks for DeviceEvents::attention().
    std::vector<unsigned> asynchronous{};
  };

  /// Agrees with the back end. `memory` is as for VhostUser::connect(). Fails where the back end has too few queues or
  /// does not speak, after VhostUserPeer::patience at the latest.
  static Result<std::unique_ptr<VhostUserDevice>> create(VhostUserPeer peer, const GuestMemory& memory,
                                                         Options options);
  /// Closes the connection. Not before the vCPUs' threads have ended.
  ~VhostUserDevice() override;
  VhostUserDevice(const VhostUserDevice&) = delete;
  VhostUserDevice& operator=(const VhostUserDevice&) = delete;

  [[nodiscard]] DeviceType type() const override { return options_.type; }
  [[nodiscard]] std::uint64_t features() const override { return features_; }
  [[nodiscard]] std::span<const std::uint16_t> queue_sizes() const override { return options_.queue_sizes; }
  void read_configuration(std::uint32_t offset, std::span<std::byte> out) override;
  void write_configuration(std::uint32_t offset, std::span<const std::byte> in) override;
  Result<void> begin(DeviceEvents& events) override;
  Result<void> start(const DriverSetup& setup) override;
  void notify(unsigned number) override;
  void attend() override;
  void stop() override;
  /// The daemon may end, too. For good; signal handlers may call it.
  void cancel() override;
  [[nodiscard]] const Fd* notify_event(unsigned queue) const override;
  [[nodiscard]] const Fd* used_event(unsigned queue) const override;

 private:
  struct Queue {
    Fd kick, call;
    bool asynchronous{};
    std::mutex mutex;
    std::optional<SplitRing> ring;  ///< Empty while the device does not run.
    std::uint16_t seen{};           ///< Of the used ring's index.
  };
  /// What came of a look at a queue, told to DeviceEvents when no lock is held: there, others may be about to stop us.
  struct Found {
    std::vector<MemoryRange> written;
    std::optional<Error> error;
  };

  VhostUserDevice(VhostUser back_end, const GuestMemory& memory, Options options);
  Result<void> make_events();
  [[nodiscard]] std::optional<Error> wait_for_answers(const Queue& queue, std::uint16_t target) const;
  void forget_rings();
  /// New buffers in the used ring of a queue whose mutex is held.
  Found look(unsigned number, Queue& queue);
  void tell(unsigned queue, const Found& found);
  void fail(Error error);
  void watch();

  VhostUser back_end_;
  const GuestMemory* memory_;
  Options options_;
  std::uint64_t features_{};
  std::vector<std::unique_ptr<Queue>> queues_;
  Fd interrupt_;  ///< Has something to read from interrupt() on.
  std::atomic<bool> interrupted_{false}, stopping_{false}, failed_{false};
  std::atomic<DeviceEvents*> events_{nullptr};
  std::thread watcher_;
};

}  // namespace vmm::virtio
