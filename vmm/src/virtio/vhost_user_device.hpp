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

/// A device that a daemon implements, over vhost-user. Guest and daemon share the rings; this class handles
/// notifications, and the end of the daemon, which ends the machine.
class VhostUserDevice final : public Device {
 public:
  /// When the guest gets its answers.
  enum class Answers {
    by_kvm,         ///< As they come: KVM forwards notifications and interrupts by itself.
    before_return,  ///< Before notify() returns, so that a guest with a virtual time does not see how long they took.
  };
  /// The configuration space is read from the back end, `bytes` bytes of it.
  struct FromBackEnd {
    std::uint32_t bytes;
  };
  struct Options {
    DeviceType type;
    std::vector<std::uint16_t> queue_sizes;
    std::uint64_t features{};  ///< Which of the back end's features the guest may see, besides f_version_1.
    std::variant<std::vector<std::byte>, FromBackEnd> configuration;
    Answers answers{Answers::by_kvm};
    /// Queues whose answers come at any time even with before_return: those of a network's receiver. For these the
    /// device asks for DeviceEvents::attention().
    std::vector<unsigned> asynchronous{};
  };

  /// Negotiates with the back end. `memory` is as for VhostUser::connect(). Fails if the back end has too few queues or
  /// does not answer within VhostUserPeer::patience.
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
  /// Fails if a guest has begun to use a file system, whose open files only the daemon knows.
  Result<void> save(ByteWriter& out) override;
  void go_on() override;
  Result<void> resume(const DriverSetup& setup, ByteReader& in) override;
  void notify(unsigned number) override;
  void attend() override;
  void stop() override;
  /// Also allows the daemon to end. Permanent; may be called by signal handlers.
  void cancel() override;
  [[nodiscard]] const Fd* notify_event(unsigned queue) const override;
  [[nodiscard]] const Fd* used_event(unsigned queue) const override;

 private:
  struct Queue {
    Fd kick, call;
    bool asynchronous{};
    std::mutex mutex;
    std::optional<SplitRing> ring;  ///< Empty while the device does not run.
    std::uint16_t seen{};           ///< The used ring's index at the last look.
  };
  /// The result of a look at a queue. Reported to DeviceEvents without a lock held: others may be stopping us there.
  struct Found {
    std::vector<MemoryRange> written;
    std::optional<Error> error;
  };

  VhostUserDevice(VhostUser back_end, const GuestMemory& memory, Options options);
  Result<void> make_events();
  [[nodiscard]] std::optional<Error> wait_for_answers(const Queue& queue, std::uint16_t target) const;
  Result<void> run(const DriverSetup& setup, bool anew);
  Result<void> run_as_they_are(const DriverSetup& setup);
  Result<void> come_to_rest(unsigned number);
  void forget_rings();
  /// Looks for new buffers in the used ring of a queue whose mutex is held.
  Found look(unsigned number, Queue& queue);
  void tell(unsigned queue, const Found& found);
  void fail(Error error);
  void watch();

  VhostUser back_end_;
  const GuestMemory* memory_;
  Options options_;
  std::uint64_t features_{};
  std::vector<std::unique_ptr<Queue>> queues_;
  DriverSetup setup_;    ///< Of the last start.
  bool stands_still_{};  ///< After save().
  Fd interrupt_;         ///< Readable after cancel().
  std::atomic<bool> interrupted_{false}, stopping_{false}, failed_{false};
  std::atomic<DeviceEvents*> events_{nullptr};
  std::thread watcher_;
};

}  // namespace vmm::virtio
