#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/control_lines.hpp"
#include "exec/disk_image.hpp"
#include "machine/machine.hpp"
#include "virtio/back_ends.hpp"
#include "virtio/console.hpp"
#include "virtio/vhost_user_device.hpp"

namespace vmm::tool {

/// The devices of `vpmu exec`'s guest, from the daemons behind them to the descriptors of its console.
class GuestDevices {
 public:
  /// A directory of this machine's and the tag that the guest knows it by. With a socket, others serve it there.
  struct Share {
    std::string tag, directory;
    virtio::Access access;
    std::string socket{};
  };
  /// A disk's image. With a socket, others serve a disk there, and the image says nothing.
  struct Disk {
    DiskImage image;
    std::string socket{};
  };
  /// With a socket, others serve the network there.
  struct Network {
    virtio::NetworkAddresses addresses;
    std::string socket{};
  };
  /// What there is beside the console. The guest sees the devices in this order.
  struct Choice {
    std::vector<Share> shares;
    std::vector<Disk> disks;
    std::optional<Network> network;
  };
  /// Starts a daemon for each. Before the process has threads or goes to jail. Fails where one cannot be started.
  static Result<GuestDevices> start(const Choice& choice);

  /// The guest's streams are this process's own; `channel` is the guest's end of the port vpmu.control, of a socket.
  /// What it writes goes nowhere with `drops_output`. Fails where the host gives no descriptors.
  Result<void> connect(const Fd& channel, bool has_terminal, bool drops_output);
  /// For the machine: once. This object must outlive it.
  [[nodiscard]] Machine::Hooks::DeviceFactory factory(Accel accel);
  [[nodiscard]] WrittenLine passed_on() const;
  /// Who hears of the end of our standard input, and after how many bytes it came. Before the machine runs; `told` may
  /// be called on any thread.
  void when_input_ends(std::function<void(std::uint64_t bytes)> told) { input_ends_ = std::move(told); }

 private:
  GuestDevices() = default;
  /// A daemon, and the device that it is to be.
  struct Started {
    virtio::BackEnd back_end;
    virtio::VhostUserDevice::Options options;
  };
  Result<void> add(const Share& share);
  Result<void> add(const Disk& disk);
  Result<void> add(const Network& network);
  Result<std::vector<std::unique_ptr<virtio::Device>>> make(const GuestMemory& memory, Accel accel);

  std::vector<Started> started_;
  std::vector<virtio::Console::Port> ports_;
  virtio::Console* console_{};  ///< Of the machine.
  std::function<void(std::uint64_t)> input_ends_;
};

}  // namespace vmm::tool
