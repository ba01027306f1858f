#include "exec/guest/ports.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "exec/guest/system.hpp"

namespace vmm::tool::guest {
namespace {

constexpr long port_milliseconds = 10'000;
constexpr const char* port_directory = "/sys/class/virtio-ports/";

/// The option of the guest's kernel for lack of which it has no ports; empty: it has all.
std::string missing_option() {
  constexpr std::array<std::pair<const char*, const char*>, 4> needed{{
      {"/sys/bus/pci", "CONFIG_PCI"},
      {"/sys/bus/virtio", "CONFIG_VIRTIO"},
      {"/sys/bus/pci/drivers/virtio-pci", "CONFIG_VIRTIO_PCI"},
      {"/sys/bus/virtio/drivers/virtio_console", "CONFIG_VIRTIO_CONSOLE"},
  }};
  for (const auto& [path, option] : needed)
    if (::access(path, F_OK) != 0) return option;
  return {};
}

int left(long deadline) { return static_cast<int>(std::max(deadline - now(), 0L)); }

/// The name of the port's device, below /dev.
std::optional<std::string> find_port(const std::string& name) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory{::opendir(port_directory), ::closedir};
  if (!directory) return std::nullopt;
  while (const dirent* const entry = ::readdir(directory.get())) {
    const auto found = read_file(port_directory + std::string{entry->d_name} + "/name");  // appears after the device
    if (found && *found == name + "\n") return entry->d_name;
  }
  return std::nullopt;
}

/// Waits until the host has opened its side. Before that, a port looks as if the host had closed it.
Result<void> wait_for_host(const Fd& port, long deadline) {
  // Edge-triggered: poll() would return at once, again and again, because the port counts as closed.
  const Fd events{::epoll_create1(EPOLL_CLOEXEC)};
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLET};
  if (!events.valid() || ::epoll_ctl(events.get(), EPOLL_CTL_ADD, port.get(), &event) != 0)
    return host_error("watching a port", errno);
  do {
    pollfd state{.fd = port.get(), .events = 0};
    ::poll(&state, 1, 0);
    if ((state.revents & POLLHUP) == 0) return {};
  } while (::epoll_wait(events.get(), &event, 1, left(deadline)) > 0);
  return host_error("the host has not opened it");
}

}  // namespace

Result<Announcements> Announcements::create() {
  constexpr unsigned from_the_kernel = 1;
  Fd socket{::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT)};
  sockaddr_nl address{.nl_family = AF_NETLINK, .nl_groups = from_the_kernel};
  if (!socket.valid() || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return host_error("listening for devices", errno, "the guest's kernel needs CONFIG_NET");
  return Announcements{std::move(socket)};
}

bool Announcements::wait(long deadline) {
  pollfd state{.fd = socket_.get(), .events = POLLIN};
  if (::poll(&state, 1, left(deadline)) <= 0) return false;
  std::array<char, 4096> dropped{};
  // A failed read (an overrun of the socket) also means that something was announced.
  while (::recv(socket_.get(), dropped.data(), dropped.size(), MSG_DONTWAIT) > 0) continue;
  return true;
}

Result<Fd> open_port(const std::string& name, Announcements& announcements) {
  const long deadline = now() + port_milliseconds;
  std::optional<std::string> device = find_port(name);
  while (!device) {
    // Modules have been loaded before: what is missing now does not come.
    if (const std::string option = missing_option(); !option.empty())
      return host_error("the guest's kernel has no " + option, 0, lacking_advice);
    if (!announcements.wait(deadline)) return host_error("the machine has no port " + name);
    device = find_port(name);
  }
  VMM_ASSIGN(Fd port, open_file("/dev/" + *device, O_RDWR | O_NONBLOCK));
  if (const auto opened = wait_for_host(port, deadline); !opened) {
    Error error = opened.error();
    error.what = "port " + name + ": " + error.what;
    return Failure{std::move(error)};
  }
  return port;
}

Result<std::string> read_port(const Fd& port) {
  std::string text;
  for (std::array<char, 4096> part{};;) {
    pollfd state{.fd = port.get(), .events = POLLIN};
    ::poll(&state, 1, -1);
    const ssize_t bytes = ::read(port.get(), part.data(), part.size());
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (bytes <= 0) return host_error("reading the request", bytes < 0 ? errno : 0, "the host has closed its port");
    text.append(part.data(), static_cast<std::size_t>(bytes));
    if (!text.ends_with(std::string_view{"\0\0", 2})) continue;
    text.pop_back();
    return text;
  }
}

}  // namespace vmm::tool::guest
