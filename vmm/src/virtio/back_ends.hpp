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

/// Which program, and how.
struct ProgramChoice {
  std::string path{};                    ///< Empty: where it usually is.
  std::string search_path{};             ///< What PATH says, for programs that are looked for.
  std::string last{};                    ///< Where it is looked for last.
  std::vector<std::string> arguments{};  ///< Further ones, after ours.
};

/// A daemon that is a device, and the connection to it.
struct BackEnd {
  std::string name;  ///< For messages.
  Fd socket;
  std::optional<Daemon> daemon{};  ///< None where others have started it.
  Fd lock{};                       ///< Of a disk's image.

  /// For VhostUser::connect(). The socket goes along: once.
  VhostUserPeer take_peer();
};

/// Starts virtiofsd for the directory: the one of QEMU up to 7.2 or the one in Rust, told apart by what they say of
/// themselves. What holds the guest back, in either: virtiofsd changes its root to the directory, drops the
/// capabilities that it does not need and filters its system calls; we give it mounts, a network and IPC of its own
/// where the host lets us (root in a container may be refused that; with Access::read_write it goes on without).
/// Access::read_only makes every mount that it sees read-only, which holds whatever it does, and is an error where it
/// cannot be done. Run as root, it does with files what the guest asks for in the name of any user. Run by another
/// user, it can do what that user can: the guest's root is that user, and what belongs to others shows as nobody's.
/// Its default is not to keep extended attributes. Fails with kind usage on what is no directory.
/// Before the process has threads or goes to jail.
Result<BackEnd> share_directory(const std::string& directory, Access access, const ProgramChoice& choice);

/// Starts qemu-storage-daemon for the image. It runs as this process's user and nothing but that holds it back; with
/// Access::read_only it opens the image, and the files that the image names as its backing, for reading alone. A qcow2
/// image may name other files that the guest then reads: use images of your own. A raw image's contents are never taken
/// for another format. Nobody shares an image that one of them may write to: QEMU's locks keep its own machines out,
/// and ours (flock) the other disks of this kind. Fails with kind usage on what is no file. Before the process has
/// threads or goes to jail.
Result<BackEnd> serve_disk(const std::string& image, DiskFormat format, Access access, const ProgramChoice& choice);

/// What the guest's end of a network is told to be; passt gives addresses to nobody by itself.
struct NetworkAddresses {
  std::string guest, gateway, name_server;  ///< IPv4, with dots.
  unsigned prefix{};                        ///< Bits of the network's part.
};

/// Starts passt, which makes connections of this host out of what the guest sends, and lets nobody in. The gateway's
/// address is this host's loopback; the name server's leads to the one that this host asks. passt takes its own rights
/// away. Fails with kind usage where it is not there, or is of before it knew vhost-user.
/// Before the process has threads or goes to jail.
Result<BackEnd> start_network(const NetworkAddresses& addresses, const ProgramChoice& choice);

/// Connects to a daemon that others have started and look after, at its socket. `name` is for messages, `advice` for
/// where nobody listens there.
Result<BackEnd> join_back_end(const std::string& socket, const std::string& name, const std::string& advice);

}  // namespace vmm::virtio
