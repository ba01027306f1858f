#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/control_lines.hpp"
#include "exec/disk_image.hpp"
#include "machine/machine.hpp"
#include "virtio/back_ends.hpp"
#include "virtio/console.hpp"
#include "virtio/vhost_user_device.hpp"

namespace vmm::tool {

/// What the guest's command has written, and could not be passed on.
struct LostOutput {
  const char* stream;  ///< "output" or "error".
  std::uint64_t bytes;
  int error;  ///< errno.
};

/// The devices of `vpmu exec`'s guest: their daemons, and the descriptors of the guest's console.
class GuestDevices {
 public:
  /// A directory of this machine, and the tag under which the guest mounts it. With a socket, another daemon serves it.
  struct Share {
    std::string tag, directory;
    virtio::Access access;
    std::string socket{};
    virtio::SpecialFiles special{virtio::SpecialFiles::refused};
  };
  /// A disk's image. With a socket, another daemon serves the disk, and the image is unused.
  struct Disk {
    DiskImage image;
    std::string socket{};
  };
  /// With a socket, another daemon serves the network.
  struct Network {
    virtio::NetworkAddresses addresses;
    std::string socket{};
  };
  /// What devices there are besides the console. The guest sees the devices in this order.
  struct Choice {
    std::vector<Share> shares;
    std::vector<Disk> disks;
    std::optional<Network> network;
  };
  /// Starts a daemon for each device. Before the process has threads or enters the jail. Fails if one does not start.
  static Result<GuestDevices> start(const Choice& choice);

  /// Connects the guest's streams to this process's own; `channel` is the guest's end of the port vpmu.control, a
  /// socket; `request` is what the guest reads from vpmu.request. With `drops_output` the guest's output is discarded.
  /// Fails if the host has no more descriptors.
  Result<void> connect(const Fd& channel, std::string_view request, bool drops_output);
  /// For the machine: once. This object must outlive it.
  [[nodiscard]] Machine::Hooks::DeviceFactory factory(Accel accel);
  [[nodiscard]] WrittenLine passed_on() const;
  /// After the machine's end. A reader that has gone is no loss: the command was told.
  [[nodiscard]] std::vector<LostOutput> lost_output() const;
  /// Sets who is told of the end of our standard input, with the number of bytes before it. Before the machine runs;
  /// `told` may be called on any thread.
  void when_input_ends(std::function<void(std::uint64_t bytes)> told) { input_ends_ = std::move(told); }
  /// The same for the guest's word that it is ready; before it goes on.
  void when_ready(std::function<void()> told) { ready_ = std::move(told); }

 private:
  GuestDevices() = default;
  /// A daemon, and the device that it implements.
  struct Started {
    virtio::BackEnd back_end;
    virtio::VhostUserDevice::Options options;
  };
  Result<void> add(const Share& share);
  Result<void> add(const Disk& disk);
  Result<void> add(const Network& network);
  Result<std::vector<std::unique_ptr<virtio::Device>>> make(const GuestMemory& memory, Accel accel);

  /// Of one stream.
  struct Loss {
    std::atomic<std::uint64_t> bytes{};
    std::atomic<int> error{};
  };
  static virtio::Console::Port output_port(const char* name, Fd output, std::shared_ptr<Loss> loss);
  void heard(std::span<const std::byte> bytes);

  std::vector<Started> started_;
  std::vector<virtio::Console::Port> ports_;
  virtio::Console* console_{};  ///< Of the machine.
  std::function<void(std::uint64_t)> input_ends_;
  std::function<void()> ready_;
  LineBuffer said_;  ///< By the guest, on vpmu.control, before it was ready.
  std::shared_ptr<Loss> lost_output_{std::make_shared<Loss>()}, lost_error_{std::make_shared<Loss>()};
};

}  // namespace vmm::tool
