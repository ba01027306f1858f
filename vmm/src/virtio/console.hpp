#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kvm/fd.hpp"
#include "memory/guest_memory.hpp"
#include "virtio/device.hpp"
#include "virtio/queue.hpp"

namespace vmm::virtio {

/// A console with several named ports, each of which is a pair of descriptors of this process: a program in the guest
/// opens a port and reads and writes as if it had these. Virtio 1.2 section 5.3, with VIRTIO_CONSOLE_F_MULTIPORT.
///
/// Nothing is lost: the guest waits while an output takes no more, and so does an input while the guest reads none. The
/// end of an input, unless somebody is told of it, and an output whose reader has gone, close the port; both directions
/// of it.
class Console final : public Device {
 public:
  struct Port {
    std::string name;  ///< As /sys/class/virtio-ports/*/name has it.
    Fd input{};        ///< What the guest reads; empty: nothing ever comes.
    Fd output{};       ///< Where what it writes goes; empty: nowhere.
    /// Told of the end of `input`, and how many bytes there were, in place of closing the port. On any thread. May be
    /// empty.
    std::function<void(std::uint64_t bytes)> at_end{};
  };
  /// Who does the work when a descriptor is ready.
  enum class Work : std::uint8_t {
    by_itself,  ///< A thread of the device's.
    by_vcpu,    ///< Device::attend(); and notify() waits until all is written: the guest's virtual time stands still.
  };
  static constexpr std::size_t most_ports = 8;

  /// `memory` must outlive it. Fails where the host gives no eventfd.
  static Result<std::unique_ptr<Console>> create(const GuestMemory& memory, std::vector<Port> ports, Work work);
  ~Console() override;
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  Console(Console&&) = delete;
  Console& operator=(Console&&) = delete;

  [[nodiscard]] std::size_t ports() const { return queue_sizes_.size() / 2 - 1; }
  /// How many bytes that the guest has written to a port its output has taken, or nobody will. Any thread.
  [[nodiscard]] std::uint64_t passed_on(unsigned port);

  [[nodiscard]] DeviceType type() const override { return DeviceType::console; }
  [[nodiscard]] std::uint64_t features() const override;
  [[nodiscard]] std::span<const std::uint16_t> queue_sizes() const override { return queue_sizes_; }
  void read_configuration(std::uint32_t offset, std::span<std::byte> out) override;
  Result<void> begin(DeviceEvents& events) override;
  Result<void> start(const DriverSetup& setup) override;
  void notify(unsigned queue) override;
  void attend() override;
  void stop() override;
  void cancel() override;

 private:
  /// Most bytes that are moved at a time: a pipe that can be written to takes as many. pipe(7).
  static constexpr std::size_t most_at_a_time = 4096;

  struct State {
    Port port;
    bool opened{};                ///< By a program of the guest's.
    bool closed_by_us{};          ///< The guest has been told, or will be.
    std::optional<Chain> output;  ///< Of which `written` bytes have gone.
    std::size_t written{};
    std::uint64_t passed_on{}, received{};  ///< Bytes, of the output and the input.
  };
  /// A control message. Virtio 1.2 5.3.6.2.
  struct Message {
    std::uint32_t port;
    std::uint16_t event, value;
    std::string text{};
  };

  Console(const GuestMemory& memory, std::vector<Port> ports, Work work, Fd wake, Fd cancel);
  void watch();
  void serve();
  Result<void> serve_queues();
  Result<bool> serve_output(unsigned port);
  Result<bool> serve_input(unsigned port);
  Result<bool> take_messages();
  void take(const Message& message);
  Result<bool> send_messages();
  void close_port(unsigned port);
  [[nodiscard]] bool can_write(const State& state) const;
  void wake();
  void done(unsigned queue);

  const GuestMemory* memory_;
  Work work_;
  Fd wake_, cancel_;  ///< eventfd: for the thread; for who waits in notify().
  std::vector<std::uint16_t> queue_sizes_;
  DeviceEvents* events_{};
  std::atomic<bool> ends_{};
  std::thread thread_;

  std::mutex mutex_;  ///< Around what stands below.
  std::vector<State> ports_;
  std::vector<std::optional<Queue>> queues_;  ///< While the device is started.
  std::deque<Message> messages_;              ///< For the guest.
  bool broken_{};
};

}  // namespace vmm::virtio
