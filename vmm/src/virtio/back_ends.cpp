#include "virtio/back_ends.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "files/work_directory.hpp"

namespace vmm::virtio {
namespace {

using std::chrono::milliseconds;

/// The two ends of a connection; the daemon gets `theirs`.
struct Connection {
  Fd theirs, ours;
};

/// Which kind of socket a daemon is given.
enum class Handed { listening, connected };

/// A listening socket whose queue already holds our connection, ahead of any other. It lies in a directory that only
/// this user can enter, and that is removed before this returns: nobody else ever connects.
Result<Connection> make_listening() {
  std::optional<WorkDirectory> directory;
  Error why;
  for (const char* const place : {"/tmp", "/dev/shm", "/var/tmp"}) {
    auto made = WorkDirectory::create(place);
    if (made) {
      directory.emplace(std::move(*made));
      break;
    }
    why = made.error();
  }
  if (!directory) return Failure{why};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory->path() + "/socket";
  path.copy(static_cast<char*>(address.sun_path), sizeof address.sun_path - 1);
  const auto* const where = reinterpret_cast<const sockaddr*>(&address);
  Connection made{.theirs = Fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)},
                  .ours = Fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)}};
  const bool done = ::bind(made.theirs.get(), where, sizeof address) == 0 && ::listen(made.theirs.get(), 1) == 0 &&
                    ::connect(made.ours.get(), where, sizeof address) == 0;
  if (!done) return host_error("cannot connect a socket in " + directory->path(), errno);
  return made;
}

Result<Connection> make_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return host_error("socketpair", errno);
  return Connection{.theirs = Fd{ends[0]}, .ours = Fd{ends[1]}};
}

bool is_program(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

/// The program's path, which execv() takes.
Result<std::string> find_program(std::string_view name, const ProgramChoice& choice,
                                 std::initializer_list<std::string_view> usual, std::string advice) {
  if (!choice.path.empty()) {
    if (is_program(choice.path)) return choice.path;
    return usage_error(fmt::format("{} is not a program that can be started", printable(choice.path)),
                       std::move(advice));
  }
  for (const std::string_view path : usual)
    if (is_program(std::string{path})) return std::string{path};
  for (std::string_view rest = choice.search_path; !rest.empty();) {
    const auto directory = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), directory.size() + 1));
    std::string path = fmt::format("{}/{}", directory, name);
    if (!directory.empty() && is_program(path)) return path;
  }
  if (!choice.last.empty() && is_program(choice.last)) return choice.last;
  return usage_error(fmt::format("no {} on this host", name), std::move(advice));
}

/// `text` with `escape` before each character of `special`.
std::string escaped(std::string_view text, std::string_view special, char escape) {
  std::string result;
  for (const char character : text) {
    if (special.find(character) != std::string_view::npos) result += escape;
    result += character;
  }
  return result;
}

enum class Virtiofsd { of_qemu, in_rust };

Result<Virtiofsd> kind_of(const std::string& program) {
  VMM_ASSIGN(const std::string said, said_by({program, "--version"}, milliseconds{10'000}));
  if (said.find("using FUSE kernel interface") != std::string::npos) return Virtiofsd::of_qemu;
  if (said.starts_with("virtiofsd ")) return Virtiofsd::in_rust;
  return usage_error(fmt::format("{} is not virtiofsd: its --version says \"{}\"", program, printable(said)),
                     "name the program of virtiofsd");
}

Result<BackEnd> start(DaemonLaunch launch, Handed handed, const ProgramChoice& choice) {
  launch.arguments.insert(launch.arguments.end(), choice.arguments.begin(), choice.arguments.end());
  VMM_ASSIGN(auto connection, handed == Handed::listening ? make_listening() : make_pair());
  launch.keeps = std::move(connection.theirs);
  std::string name = launch.name;
  VMM_ASSIGN(auto daemon, Daemon::start(std::move(launch)));
  return BackEnd{.name = std::move(name), .socket = std::move(connection.ours), .daemon = std::move(daemon)};
}

/// Locks the image, as qemu-storage-daemon lets others write to an image that it serves.
Result<Fd> lock_image(const std::string& image, Access access) {
  Fd file{::open(image.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file.valid())
    return Failure{Error{.kind = ErrorKind::usage,
                         .what = "cannot open " + printable(image),
                         .advice = "name an image that this user may read",
                         .system_errno = errno}};
  // A file system without locks does not prevent anything: the image is used without one.
  if (::flock(file.get(), (access == Access::read_write ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return usage_error(printable(image) + " is in use as another machine's disk",
                       "wait until that ends, or let both only read it (,ro)");
  return file;
}

/// Fails if passt has no vhost-user, as in Debian 12.
Result<void> check_passt(const std::string& program) {
  constexpr milliseconds patience{10'000};
  // Every vhost-user program understands this option; others reject it.
  VMM_ASSIGN(const std::string can, said_by({program, "--print-capabilities"}, patience));
  if (can.find("\"net\"") != std::string::npos) return {};
  VMM_ASSIGN(const std::string said, said_by({program, "--version"}, patience));
  const std::string version = said.substr(0, said.find('\n'));
  return usage_error(fmt::format("{} has no vhost-user: its --version says \"{}\"", program, printable(version)),
                     "install passt of January 2025 or later (Debian 13 has it), or name that program");
}

/// Fails unless `path` is a directory, or a regular file.
Result<void> check_path(const std::string& path, bool wants_directory) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0)
    return Failure{
        Error{.kind = ErrorKind::usage, .what = "cannot use " + printable(path), .advice = {}, .system_errno = errno}};
  const bool fits = wants_directory ? S_ISDIR(status.st_mode) : S_ISREG(status.st_mode);
  if (fits) return {};
  return usage_error(fmt::format("{} is not a {}", printable(path), wants_directory ? "directory" : "regular file"),
                     wants_directory ? "name the directory to share" : "name a disk's image");
}

}  // namespace

VhostUserPeer BackEnd::take_peer() {
  return {.name = name, .socket = std::move(socket), .messages = daemon ? daemon->messages() : nullptr};
}

Result<BackEnd> share_directory(const std::string& directory, Access access, const ProgramChoice& choice,
                                SpecialFiles special) {
  VMM_TRY(check_path(directory, true));
  VMM_ASSIGN(const std::string program,
             find_program("virtiofsd", choice, {"/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd"},
                          "install virtiofsd (Debian 12: qemu-system-common has it), or name the program"));
  VMM_ASSIGN(const auto kind, kind_of(program));
  DaemonLaunch launch{.name = "virtiofsd for " + printable(directory), .arguments = {program}};
  launch.surroundings =
      access == Access::read_only ? DaemonLaunch::Surroundings::apart_read_only : DaemonLaunch::Surroundings::apart;
  launch.arguments.push_back(fmt::format("--fd={}", Daemon::kept_descriptor));
  // Keeps the current limit: a user that is not root may not raise it.
  launch.arguments.emplace_back("--rlimit-nofile=0");
  launch.refuses_setuid_bits = special == SpecialFiles::refused;
  // CAP_FSETID keeps such bits when a file is written to. Both programs write capabilities alike.
  const std::string capabilities = special == SpecialFiles::refused ? "modcaps=-mknod:-fsetid" : "";
  if (kind == Virtiofsd::of_qemu) {
    launch.arguments.emplace_back("-o");
    launch.arguments.push_back(fmt::format("sandbox=chroot,log_level=warn,{}{}source={}", capabilities,
                                           capabilities.empty() ? "" : ",", escaped(directory, ",\\", '\\')));
  } else {
    // If a directory is announced as a submount, an overlay in the guest takes it for a mount that is yet to be made.
    launch.arguments.insert(launch.arguments.end(), {"--sandbox=chroot", "--log-level=warn", "--no-announce-submounts",
                                                     "--shared-dir=" + directory});
    if (!capabilities.empty()) launch.arguments.push_back("--" + capabilities);
  }
  return start(std::move(launch), Handed::listening, choice);
}

Result<BackEnd> serve_disk(const std::string& image, DiskFormat format, Access access, const ProgramChoice& choice) {
  VMM_TRY(check_path(image, false));
  VMM_ASSIGN(const std::string program,
             find_program("qemu-storage-daemon", choice, {},
                          "install it (Debian: qemu-system-common or qemu-utils has it), or name the program"));
  DaemonLaunch launch{.name = "qemu-storage-daemon for " + printable(image), .arguments = {program}};
  const bool writable = access == Access::read_write;
  const std::string_view read_only = writable ? "off" : "on";
  launch.arguments.emplace_back("--blockdev");
  launch.arguments.push_back(fmt::format("driver={},node-name=disk,read-only={},file.driver=file,file.filename={}",
                                         format == DiskFormat::raw ? "raw" : "qcow2", read_only,
                                         escaped(image, ",", ',')));
  launch.arguments.emplace_back("--export");
  launch.arguments.push_back(
      fmt::format("type=vhost-user-blk,id=export,node-name=disk,writable={},addr.type=fd,addr.str={}",
                  writable ? "on" : "off", Daemon::kept_descriptor));
  VMM_ASSIGN(Fd lock, lock_image(image, access));
  VMM_ASSIGN(auto back_end, start(std::move(launch), Handed::listening, choice));
  back_end.lock = std::move(lock);
  return back_end;
}

Result<BackEnd> start_network(const NetworkAddresses& addresses, const ProgramChoice& choice) {
  VMM_ASSIGN(const std::string program,
             find_program("passt", choice, {},
                          "install passt of January 2025 or later (Debian 13 has it), or name the program"));
  VMM_TRY(check_passt(program));
  DaemonLaunch launch{.name = "passt",
                      .arguments = {program, "--vhost-user", "--foreground", "--quiet", "--fd",
                                    fmt::format("{}", Daemon::kept_descriptor), "--ipv4-only"}};
  launch.arguments.insert(launch.arguments.end(),
                          {"--address", addresses.guest, "--netmask", fmt::format("{}", addresses.prefix), "--gateway",
                           addresses.gateway, "--map-host-loopback", addresses.gateway, "--dns-forward",
                           addresses.name_server, "--tcp-ports", "none", "--udp-ports", "none", "--no-dhcp"});
  return start(std::move(launch), Handed::connected, choice);
}

Result<BackEnd> join_back_end(const std::string& socket, const std::string& name, const std::string& advice) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.empty() || socket.size() >= sizeof address.sun_path)
    return usage_error(fmt::format("{}: \"{}\" is empty or too long for the path of a socket", name, printable(socket)),
                       advice);
  socket.copy(static_cast<char*>(address.sun_path), sizeof address.sun_path - 1);
  BackEnd joined{.name = fmt::format("{} at {}", name, printable(socket)),
                 .socket = Fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)}};
  if (::connect(joined.socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Failure{Error{.kind = ErrorKind::usage,
                         .what = fmt::format("{}: cannot connect", joined.name),
                         .advice = advice,
                         .system_errno = errno}};
  return joined;
}

}  // namespace vmm::virtio
