#pragma once
#include <optional>
#include <string>
#include <vector>

#include "support/result.hpp"
#include "virtio/daemon.hpp"
#include "virtio/vhost_user_channel.hpp"

namespace vmm::virtio {

enum class Access { read_only, read_write };
enum class DiskFormat { raw, qcow2 };

/// Files that are more than their content, and what a guest may do with them in a directory that it can write to.
enum class SpecialFiles {
  refused,  ///< No set-user-ID or set-group-ID bit is set, and no device node made: the guest gets EPERM.
  allowed,  ///< As far as virtiofsd's user may.
};

/// Which program to start, and with which arguments.
struct ProgramChoice {
  std::string path{};                    ///< Empty: searched for in its usual places.
  std::string search_path{};             ///< Value of PATH, to search for the program.
  std::string last{};                    ///< A further path, tried last.
  std::vector<std::string> arguments{};  ///< Further ones, after ours.
};

/// A daemon that implements a device, and the connection to it.
struct BackEnd {
  std::string name;  ///< For messages.
  Fd socket;
  std::optional<Daemon> daemon{};  ///< None if others have started it.
  Fd lock{};                       ///< On a disk's image.

  /// For VhostUser::connect(). Hands over the socket, so call it once.
  VhostUserPeer take_peer();
};

/// Starts virtiofsd for the directory: that of QEMU up to 7.2 or the one in Rust, told apart by their output. Both
/// confine themselves: virtiofsd changes its root to the directory, drops the capabilities that it does not need and
/// filters its system calls. We give it mount, network and IPC namespaces of its own if the host allows that (root in a
/// container may be refused; with Access::read_write virtiofsd then runs without). Access::read_only makes every mount
/// that it sees read-only, whatever it does, and is an error if that is impossible. Run as root, virtiofsd accesses
/// files as any user that the guest asks for. Run by another user, it has that user's rights: the guest's root is that
/// user, and files of others appear as nobody's. By default it keeps no extended attributes, so no file capabilities.
/// Writing to a file clears its set-user-ID and set-group-ID bits, unless these are allowed. Fails with kind usage if
/// `directory` is no directory. Call before the process has threads or is in the jail.
Result<BackEnd> share_directory(const std::string& directory, Access access, const ProgramChoice& choice,
                                SpecialFiles special = SpecialFiles::refused);

/// Starts qemu-storage-daemon for the image. It runs as this process's user and is not confined; with Access::read_only
/// it opens the image, and its backing files, for reading only. A qcow2 image may name other files, which the guest can
/// then read: use images of your own. The contents of a raw image are never taken for another format. An image is not
/// shared if any of its users may write to it: QEMU's locks exclude QEMU's machines, and ours (flock) other disks of
/// this kind. Fails with kind usage if `image` is no file. Call before the process has threads or is in the jail.
Result<BackEnd> serve_disk(const std::string& image, DiskFormat format, Access access, const ProgramChoice& choice);

/// The addresses of the guest's network; passt does not assign them by itself.
struct NetworkAddresses {
  std::string guest, gateway, name_server;  ///< IPv4, with dots.
  unsigned prefix{};                        ///< Bits of the network's part.
};

/// Starts passt, which turns the guest's traffic into connections of this host, and accepts none from outside. The
/// gateway's address is this host's loopback; the name server's leads to the name server of this host. passt drops its
/// own privileges. Fails with kind usage if passt is missing, or too old to know vhost-user. Call before the process
/// has threads or is in the jail.
Result<BackEnd> start_network(const NetworkAddresses& addresses, const ProgramChoice& choice);

/// Connects to a daemon that others have started and look after, at its socket. `name` is for messages, `advice` for
/// the error if nobody listens there.
Result<BackEnd> join_back_end(const std::string& socket, const std::string& name, const std::string& advice);

}  // namespace vmm::virtio
