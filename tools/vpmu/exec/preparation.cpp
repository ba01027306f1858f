#include "exec/preparation.hpp"
#include "exec/guest_date.hpp"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "control/console.hpp"
#include "exec/guest_date.hpp"
#include "exec/modules.hpp"

namespace vmm::tool {
namespace {

namespace fs = std::filesystem;

// The addresses of QEMU's user network, which many know by heart.
const virtio::NetworkAddresses addresses{
    .guest = "10.0.2.15", .gateway = "10.0.2.2", .name_server = "10.0.2.3", .prefix = 24};

/// Whether the variable belongs to this machine's desktop or services, which the guest does not see.
bool is_of_this_machine(std::string_view variable) {
  constexpr std::array names{"DBUS_SESSION_BUS_ADDRESS=",
                             "DISPLAY=",
                             "WAYLAND_DISPLAY=",
                             "XAUTHORITY=",
                             "XDG_RUNTIME_DIR=",
                             "SSH_AUTH_SOCK=",
                             "SSH_CONNECTION=",
                             "SSH_CLIENT=",
                             "SSH_TTY=",
                             "NOTIFY_SOCKET=",
                             "INVOCATION_ID=",
                             "JOURNAL_STREAM=",
                             "LISTEN_",
                             "SYSTEMD_EXEC_PID="};
  return std::ranges::any_of(names, [variable](const char* name) { return variable.starts_with(name); });
}

std::vector<std::string> environment(const ExecArguments& arguments) {
  std::vector<std::string> all;
  for (char** variable = ::environ; *variable != nullptr; ++variable)
    if (!is_of_this_machine(*variable) && (!arguments.passes_variable || arguments.passes_variable(*variable)))
      all.emplace_back(*variable);
  return all;
}

Result<std::vector<gid_t>> supplementary_groups() {
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, ::getgroups(0, nullptr))));
  if (::getgroups(static_cast<int>(groups.size()), groups.data()) < 0) return host_error("getgroups", errno);
  return groups;
}

/// The size of our terminal if both standard input and output are one, else none.
std::optional<TerminalSize> terminal() {
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0) return std::nullopt;
  const auto size = window_size(STDIN_FILENO);
  return size ? TerminalSize{.rows = size->rows, .columns = size->columns} : TerminalSize{.rows = 24, .columns = 80};
}

Result<std::string> real_directory(const std::string& path, const std::string& option) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error || !fs::is_directory(real, error))
    return usage_error(printable(path) + " is no directory", "give a directory with " + option);
  return real.string();
}

/// The seed of the guest's random numbers: from this host or, if every run is to be the same, a constant.
Result<std::string> random_seed(Accel accel) {
  if (accel == Accel::soft) return std::string{"the same random numbers on each run"};
  std::array<unsigned char, 32> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return host_error("getrandom", errno);
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

/// Where the guest's root comes from: one of these.
struct Root {
  std::string directory;
  std::optional<DiskImage> image;
  std::string socket;
};

Result<Root> find_root(const ExecArguments& arguments) {
  if (!arguments.root_socket.empty()) {
    if (arguments.root != "/")
      return usage_error("--root and --root-socket both name the guest's root", "give only one of them");
    return Root{.directory = {}, .image = {}, .socket = arguments.root_socket};
  }
  std::error_code error;
  const fs::path real = fs::canonical(arguments.root, error);
  if (!error && fs::is_directory(real, error)) return Root{.directory = real.string(), .image = {}, .socket = {}};
  VMM_ASSIGN(DiskImage image, read_disk_image(arguments.root));
  if (!fs::is_regular_file(image.path, error))
    return usage_error(fmt::format("the root {} is neither a directory nor an image", printable(image.path)),
                       "give a directory or an image with --root");
  image.access = virtio::Access::read_only;
  return Root{.directory = {}, .image = std::move(image), .socket = {}};
}

/// The command, and what it inherits from this process.
Result<ExecRequest> make_request(const ExecArguments& arguments, const Root& root) {
  std::error_code error;
  const fs::path here = fs::current_path(error);
  // As in a rootless container: files of this ordinary user belong to root in the guest, so the command is root there.
  const bool is_root = ::geteuid() == 0;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ExecRequest request{.arguments = arguments.command,
                      .environment = environment(arguments),
                      .directory = root.directory == "/" && !error ? here.string() : "/",
                      .user = is_root ? ::getuid() : 0,
                      .group = is_root ? ::getgid() : 0,
                      .groups = {},
                      .file_mode_mask = mask,
                      .terminal = terminal(),
                      .root_disk = {},
                      .file_server = is_root || root.image ? FileServer::root : FileServer::user,
                      .hostname = "vpmu"};
  VMM_ASSIGN(request.random_seed, random_seed(arguments.machine.accel));
  if (is_root) {
    VMM_ASSIGN(request.groups, supplementary_groups());
  }
  return request;
}

/// The shared directories, in the order of the devices.
Result<void> add_shares(const ExecArguments& arguments, const Root& root, ExecPreparation& preparation) {
  ExecRequest& request = preparation.request;
  GuestDevices::Choice& devices = preparation.devices;
  if (!root.image)
    devices.shares.push_back({.tag = request.root_tag,
                              .directory = root.directory,
                              .access = virtio::Access::read_only,
                              .socket = root.socket});
  const auto add = [&](std::string tag, std::string host, std::string guest, virtio::SpecialFiles special) {
    devices.shares.push_back({.tag = tag,
                              .directory = std::move(host),
                              .access = virtio::Access::read_write,
                              .socket = {},
                              .special = special});
    request.mounts.push_back({.tag = std::move(tag), .path = std::move(guest), .access = ExecAccess::read_write});
  };
  for (std::size_t i = 0; i < arguments.writable.size(); ++i) {
    VMM_ASSIGN(const auto path, real_directory(arguments.writable[i], "--rw"));
    add(fmt::format("rw{}", i), path, path,
        arguments.special_files ? virtio::SpecialFiles::allowed : virtio::SpecialFiles::refused);
  }
  for (std::size_t i = 0; i < arguments.elsewhere.size(); ++i)
    add(fmt::format("at{}", i), arguments.elsewhere[i].host, arguments.elsewhere[i].guest,
        virtio::SpecialFiles::refused);
  return {};
}

/// The root's disk comes last, so that the name of the first --disk, /dev/vda, does not depend on it.
Result<void> add_disks(const ExecArguments& arguments, const Root& root, ExecPreparation& preparation) {
  auto& disks = preparation.devices.disks;
  for (const std::string& text : arguments.disks) {
    VMM_ASSIGN(DiskImage image, read_disk_image(text));
    if (image.partition != 0)
      return usage_error(fmt::format("--disk {}: a partition cannot be chosen here", printable(text)),
                         "leave out ,partition=N: only --root takes it");
    disks.push_back({.image = std::move(image), .socket = {}});
  }
  for (const std::string& socket : arguments.disk_sockets) disks.push_back({.image = {}, .socket = socket});
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz";
  const std::size_t all = disks.size() + (root.image ? 1 : 0);
  if (all > letters.size())
    return usage_error(fmt::format("the guest would have {} disks", all),
                       fmt::format("give at most {}", letters.size()));
  if (!root.image) return {};
  preparation.request.root_disk = {.device = std::string{"vd"} + letters[disks.size()],
                                   .partition = root.image->partition};
  disks.push_back({.image = *root.image, .socket = {}});
  return {};
}

void add_network(const ExecArguments& arguments, ExecPreparation& preparation) {
  if (!arguments.net && arguments.net_socket.empty()) return;
  preparation.devices.network = {.addresses = addresses, .socket = arguments.net_socket};
  preparation.request.network = {.address = addresses.guest,
                                 .prefix = addresses.prefix,
                                 .gateway = addresses.gateway,
                                 .name_server = addresses.name_server};
}

/// In virtual time the date is a matter of choice. Empty: the one at which the guest has booted.
std::optional<std::uint64_t> clock_of(const ExecArguments& arguments, const ExecRequest& request) {
  constexpr std::int64_t least = MachineConfig::default_epoch;
  constexpr std::uint64_t ns = 1'000'000'000;
  if (arguments.machine.accel != Accel::soft || arguments.machine.epoch != least) return std::nullopt;
  std::vector<std::string> directories = arguments.writable;
  directories.push_back(request.directory);
  const std::int64_t date = guest_date(least, directories);
  return date == least ? std::nullopt : std::optional{static_cast<std::uint64_t>(date) * ns};
}

void choose_modules(const ExecArguments& arguments, ExecPreparation& preparation) {
  auto& names = preparation.modules;
  names.assign(exec_module_names().begin(), exec_module_names().end());
  if (preparation.devices.shares.empty()) std::erase(names, "virtiofs");
  if (preparation.request.root_disk) names.emplace_back("ext4");
  names.insert(names.end(), arguments.more_modules.begin(), arguments.more_modules.end());
  if (!preparation.devices.disks.empty()) preparation.later_modules.emplace_back("virtio_blk");
  if (preparation.request.network) preparation.later_modules.emplace_back("virtio_net");
}

}  // namespace

Result<ExecPreparation> prepare_exec(const ExecArguments& arguments) {
  VMM_ASSIGN(const Root root, find_root(arguments));
  ExecPreparation preparation;
  VMM_ASSIGN(preparation.request, make_request(arguments, root));
  VMM_TRY(add_shares(arguments, root, preparation));
  VMM_TRY(add_disks(arguments, root, preparation));
  add_network(arguments, preparation);
  choose_modules(arguments, preparation);
  preparation.request.clock = clock_of(arguments, preparation.request);
  return preparation;
}

}  // namespace vmm::tool
