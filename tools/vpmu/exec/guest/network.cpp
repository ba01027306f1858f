#include "exec/guest/network.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/route.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "exec/guest/system.hpp"

namespace vmm::tool::guest {
namespace {

constexpr const char* interface = "eth0";  // the kernel's name of the first interface

/// `address` is in network byte order.
sockaddr_in address_of(in_addr_t address) { return {.sin_family = AF_INET, .sin_addr = {.s_addr = address}}; }
in_addr_t read_address(const std::string& text) {
  in_addr address{};
  ::inet_pton(AF_INET, text.c_str(), &address);  // the request has been checked
  return address.s_addr;
}

ifreq request_for(const char* name) {
  ifreq request{};
  std::strncpy(request.ifr_name, name, sizeof request.ifr_name - 1);
  return request;
}

Result<void> bring_up(int socket, const char* name) {
  ifreq request = request_for(name);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (::ioctl(socket, SIOCSIFFLAGS, &request) != 0)
    return host_error("starting the interface " + std::string{name}, errno);
  return {};
}

Result<void> set_address(int socket, unsigned long what, in_addr_t address) {
  ifreq request = request_for(interface);
  const sockaddr_in place = address_of(address);
  std::memcpy(&request.ifr_addr, &place, sizeof place);
  if (::ioctl(socket, what, &request) != 0)
    return host_error("setting the address of " + std::string{interface}, errno,
                      errno == ENODEV ? "the guest's kernel does not know the device: it needs virtio_net" : "");
  return {};
}

Result<void> set_gateway(int socket, in_addr_t gateway) {
  rtentry route{};
  const sockaddr_in everywhere = address_of(INADDR_ANY), there = address_of(gateway);
  std::memcpy(&route.rt_dst, &everywhere, sizeof everywhere);
  std::memcpy(&route.rt_genmask, &everywhere, sizeof everywhere);
  std::memcpy(&route.rt_gateway, &there, sizeof there);
  route.rt_flags = RTF_UP | RTF_GATEWAY;
  if (::ioctl(socket, SIOCADDRT, &route) != 0) return host_error("setting the gateway", errno);
  return {};
}

/// Replaces the file: the host's may be a link to a place that does not exist in the guest.
Result<void> set_name_server(const std::string& address) {
  constexpr const char* path = "/etc/resolv.conf";
  constexpr mode_t directory = 0755, file = 0644;
  ::mkdir("/etc", directory);
  ::unlink(path);
  const Fd made{::open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, file)};
  const std::string text = "nameserver " + address + "\n";
  if (!made.valid() || ::write(made.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return host_error("writing " + std::string{path}, errno);
  return {};
}

}  // namespace

Result<void> start_loopback() {
  const Fd socket{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  if (!socket.valid()) return {};
  return bring_up(socket.get(), "lo");
}

Result<void> start_network(const ExecNetwork& network) {
  const Fd socket{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  if (!socket.valid()) return host_error("a socket", errno, "the guest's kernel has no IPv4");
  // Nobody answers IPv6 there. The file is missing in a kernel without IPv6.
  const std::string no_ipv6 = "/proc/sys/net/ipv6/conf/" + std::string{interface} + "/disable_ipv6";
  if (::access(no_ipv6.c_str(), F_OK) == 0) VMM_TRY(write_file(no_ipv6, "1"));
  constexpr unsigned bits = 32;
  VMM_TRY(set_address(socket.get(), SIOCSIFADDR, read_address(network.address)));
  VMM_TRY(set_address(socket.get(), SIOCSIFNETMASK, htonl(~0U << (bits - network.prefix))));
  VMM_TRY(bring_up(socket.get(), interface));
  VMM_TRY(set_gateway(socket.get(), read_address(network.gateway)));
  return set_name_server(network.name_server);
}

}  // namespace vmm::tool::guest
