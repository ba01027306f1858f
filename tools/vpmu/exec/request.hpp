#pragma once
#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/result.hpp"

namespace vmm::tool {

/// A terminal's size in characters.
struct TerminalSize {
  unsigned rows{};
  unsigned columns{};
  bool operator==(const TerminalSize&) const = default;
};

enum class ExecAccess { read_only, read_write };

/// A directory of the host's that the command sees at its own path.
struct ExecMount {
  std::string tag;   ///< Of the virtio-fs device.
  std::string path;  ///< Absolute, in the guest as on the host.
  ExecAccess access{};
  bool operator==(const ExecMount&) const = default;
};

/// A root that is on a disk of the guest's.
struct ExecRootDisk {
  std::string device;    ///< In /dev: vda.
  unsigned partition{};  ///< 0: the disk itself where it is a file system, else its first partition that is one.
  bool operator==(const ExecRootDisk&) const = default;
};

/// What the guest's network interface is set to: IPv4, with dots.
struct ExecNetwork {
  std::string address;
  unsigned prefix{};  ///< Bits of the network's part.
  std::string gateway, name_server;
  bool operator==(const ExecNetwork&) const = default;
};

/// Who serves the guest's files on the host: root, or an ordinary user, who is the guest's root; what belongs to others
/// is nobody's then.
enum class FileServer { root, user };

/// What the init of `vpmu exec` does in the guest. The initramfs has it as the file `exec_request_file`.
struct ExecRequest {
  std::vector<std::string> arguments;    ///< The command and its own; looked up in the environment's PATH.
  std::vector<std::string> environment;  ///< All of it: NAME=VALUE.
  std::string directory{"/"};            ///< Where the command starts.
  uid_t user{};
  gid_t group{};
  std::vector<gid_t> groups;              ///< The supplementary ones.
  mode_t file_mode_mask{022};             ///< As umask(2) takes it.
  std::optional<TerminalSize> terminal;   ///< The command gets a terminal of this size; without, three pipes.
  std::string root_tag{"root"};           ///< The virtio-fs device of the root directory.
  std::optional<ExecRootDisk> root_disk;  ///< In place of that.
  FileServer file_server{};
  std::vector<ExecMount> mounts;       ///< In this order.
  std::optional<ExecNetwork> network;  ///< Of the interface eth0; without, there is none but the loopback.
  std::string hostname;                ///< Empty: the kernel's.
  std::string random_seed;           ///< What the kernel's random numbers begin with: 32 bytes or more. Empty: its own.
  std::vector<std::string> modules;  ///< Files of `exec_module_directory`, in the order in which they are loaded.
  bool operator==(const ExecRequest&) const = default;
};

inline constexpr const char* exec_request_file = "request";
inline constexpr const char* exec_module_directory = "modules";

/// The request as the bytes of that file. Fails with kind usage where it breaks a limit: a string with a NUL or of more
/// than 128 KiB, 4 MiB in all, a path that is not absolute, a name that is none.
Result<std::string> write_request(const ExecRequest& request);

/// The request of such a file. Fails with kind usage on everything that write_request() does not write.
Result<ExecRequest> read_request(std::string_view file);

}  // namespace vmm::tool
