#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vpmu::exec::bench {

/// Another program that runs x86-64 programs and observes what they do.
struct Peer {
  std::string name;
  std::vector<std::string> command;  ///< To which the program and its arguments are added.
};

/// Those that are installed. `self`: this program's path; the QEMU plugin lies beside it.
std::vector<Peer> installed_peers(const std::string& self);

/// Seconds of CPU time that the peer needs for the kernel, its own start taken off. Empty when it fails.
std::optional<double> time_under(const Peer& peer, const std::string& self, const std::string& kernel,
                                 std::uint64_t work);

}  // namespace vpmu::exec::bench
