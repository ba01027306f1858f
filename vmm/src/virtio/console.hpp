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
/// that opens a port reads and writes these. Virtio 1.2 section 5.3, with VIRTIO_CONSOLE_F_MULTIPORT.
///
/// Nothing is lost: the guest waits while an output is full, and an input waits while the guest reads none. The end of
/// an input (without at_end) and an output that cannot be written to close the port, in both directions.
class Console final : public Device {
 public:
  struct Port {
    std::string name;  ///< As /sys/class/virtio-ports/*/name has it.
    Fd input{};        ///< What the guest reads; empty: it never gets input.
    Fd output{};       ///< Where the guest's output goes; empty: it is discarded.
    /// Called at the end of `input` with its number of bytes, instead of closing the port. On any thread. May be empty.
    std::function<void(std::uint64_t bytes)> at_end{};
    /// Called with what the guest writes, once `output` has it and before the guest goes on. On any thread, which may
    /// not call the console. May be empty.
    std::function<void(std::span<const std::byte> bytes)> heard{};
    /// Called with each number of bytes that `output` did not take, and errno, but not if its reader has gone: that is
    /// for the guest to know. On any thread. May be empty.
    std::function<void(std::uint64_t bytes, int error)> lost{};
  };
  /// Who does the work when a descriptor is ready.
  enum class Work : std::uint8_t {
    by_itself,  ///< A thread of the device.
    by_vcpu,    ///< Device::attend(); notify() waits until all is written, so the guest's virtual time stands still.
  };
  static constexpr std::size_t max_ports = 8;

  /// `memory` must outlive it. Fails where the host gives no eventfd.
  static Result<std::unique_ptr<Console>> create(const GuestMemory& memory, std::vector<Port> ports, Work work);
  ~Console() override;
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  Console(Console&&) = delete;
  Console& operator=(Console&&) = delete;

  [[nodiscard]] std::size_t ports() const { return queue_sizes_.size() / 2 - 1; }
  /// How many bytes of the guest's output to a port have been taken or discarded. Any thread.
  [[nodiscard]] std::uint64_t passed_on(unsigned port) const;

  [[nodiscard]] DeviceType type() const override { return DeviceType::console; }
  [[nodiscard]] std::uint64_t features() const override;
  [[nodiscard]] std::span<const std::uint16_t> queue_sizes() const override { return queue_sizes_; }
  void read_configuration(std::uint32_t offset, std::span<std::byte> out) override;
  Result<void> begin(DeviceEvents& events) override;
  Result<void> start(const DriverSetup& setup) override;
  Result<void> save(ByteWriter& out) override;
  void go_on() override;
  Result<void> resume(const DriverSetup& setup, ByteReader& in) override;
  void notify(unsigned queue) override;
  void attend() override;
  void stop() override;
  void cancel() override;

 private:
  /// Most bytes that are moved at a time: a pipe that is ready for writing takes that many. pipe(7).
  static constexpr std::size_t max_at_a_time = 4096;

  struct State {
    Port port;
    bool opened{};                ///< By a program in the guest.
    bool closed_by_us{};          ///< The guest has been told that we closed it, or will be.
    std::optional<Chain> output;  ///< Guest output of which `written` bytes have been written.
    std::size_t written{};
    int error{};               ///< Why `output` takes nothing more.
    std::uint64_t received{};  ///< Bytes of the input.
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
  Result<void> resume_port(unsigned port, ByteReader& in);
  Result<bool> serve_output(unsigned port);
  Result<bool> serve_input(unsigned port);
  Result<bool> take_messages();
  void take(const Message& message);
  Result<bool> send_messages();
  std::size_t write(const Queue& queue, const Chain& chain, std::span<const std::byte> bytes);
  void close_port(unsigned port);
  [[nodiscard]] bool can_write(const State& state) const;
  void wake();
  void done(unsigned queue);

  const GuestMemory* memory_;
  Work work_;
  Fd wake_, cancel_;  ///< eventfds that wake the thread, and a vCPU that waits in notify().
  std::vector<std::uint16_t> queue_sizes_;
  DeviceEvents* events_{};
  std::atomic<bool> ends_{};  ///< After cancel().
  std::array<std::atomic<std::uint64_t>, max_ports> passed_on_{};
  std::thread thread_;

  std::mutex mutex_;  ///< Guards the members below.
  std::vector<State> ports_;
  std::vector<std::optional<Queue>> queues_;  ///< While the device is started.
  std::deque<Message> messages_;              ///< For the guest.
  bool broken_{}, stands_still_{};            ///< The latter after save().
};

}  // namespace vmm::virtio
