#pragma once
#include <sys/types.h>

#include <cstdint>
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
/// The most rows and columns that a terminal may have.
inline constexpr unsigned widest_terminal = 65535;

enum class ExecAccess { read_only, read_write };

/// A directory of the host that the command sees at the same path.
struct ExecMount {
  std::string tag;   ///< Of the virtio-fs device.
  std::string path;  ///< Absolute, in the guest as on the host.
  ExecAccess access{};
  bool operator==(const ExecMount&) const = default;
};

/// A root that is on one of the guest's disks.
struct ExecRootDisk {
  std::string device;    ///< In /dev: vda.
  unsigned partition{};  ///< 0: the disk itself if it is a file system, else its first partition that is one.
  bool operator==(const ExecRootDisk&) const = default;
};

/// The settings of the guest's network interface: IPv4, addresses with dots.
struct ExecNetwork {
  std::string address;
  unsigned prefix{};  ///< The length of the network's part, in bits.
  std::string gateway, name_server;
  bool operator==(const ExecNetwork&) const = default;
};

/// Who serves the guest's files on the host: root, or an ordinary user. That user is root in the guest, and files of
/// others belong to nobody there.
enum class FileServer { root, user };

/// What the init of `vpmu exec` does in the guest. It comes through the port vpmu.request, with another NUL at its end;
/// or the initramfs has it as the file `exec_request_file`.
struct ExecRequest {
  std::vector<std::string> arguments;    ///< The command, looked up in the environment's PATH, and its arguments.
  std::vector<std::string> environment;  ///< All of it: NAME=VALUE.
  std::string directory{"/"};            ///< Where the command starts.
  uid_t user{};
  gid_t group{};
  std::vector<gid_t> groups;              ///< The supplementary ones.
  mode_t file_mode_mask{022};             ///< As umask(2) takes it.
  std::optional<TerminalSize> terminal;   ///< The command gets a terminal of this size; without, three pipes.
  std::string root_tag{"root"};           ///< The tag of the root directory's virtio-fs device.
  std::optional<ExecRootDisk> root_disk;  ///< The root instead of that device.
  FileServer file_server{};
  std::vector<ExecMount> mounts;       ///< In this order.
  std::optional<ExecNetwork> network;  ///< Of the interface eth0; without it, there is only the loopback.
  std::string hostname;                ///< Empty: the kernel's.
  std::optional<std::uint64_t> clock;  ///< To set the time of day: nanoseconds since 1970, UTC. Empty: its own.
  std::string random_seed;             ///< Seeds the kernel's random numbers: 32 bytes or more. Empty: its own.
  /// Files of `exec_module_directory` that are loaded now, in this order: after those of `exec_module_list`.
  std::vector<std::string> modules;
  bool operator==(const ExecRequest&) const = default;
};

inline constexpr const char* exec_request_file = "request";
inline constexpr const char* exec_module_directory = "modules";
/// The files there that are loaded before the guest has its request: a name in each line, in their order.
inline constexpr const char* exec_module_list = "modules.first";

/// The content of that file. Fails with kind usage if the request breaks a limit: a string with a NUL or of more
/// than 128 KiB, 4 MiB in all, a path that is not absolute, an invalid name.
Result<std::string> write_request(const ExecRequest& request);

/// The request of such a file. Fails with kind usage on everything that write_request() does not write.
Result<ExecRequest> read_request(std::string_view file);

}  // namespace vmm::tool
