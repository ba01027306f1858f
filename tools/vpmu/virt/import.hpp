#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "machine/config.hpp"
#include "support/result.hpp"
#include "virt/domains.hpp"

namespace vmm::tool {

/// The parts of a domain's definition that this project's own VMM can use.
struct ImportedMachine {
  std::string kernel, initrd, command_line;
  std::uint64_t memory_bytes{};
  unsigned cpus{1};
  unsigned threads_per_core{1};
};

/// Reads a domain's inactive XML. Fails with kind usage if it is no definition, and at the first thing in it that the
/// guest would miss: a way of booting other than a kernel, disks, network interfaces, passed-through devices. Consoles,
/// graphics and the like are ignored.
Result<ImportedMachine> import_domain(std::string_view xml);

/// Looks a domain up and sets `machine` as its definition says; the command line already in `machine` is added after
/// the domain's. Fails as Domains::read() and import_domain() do, and with kind usage for a domain on another host,
/// because its files are on that host.
Result<void> take_domain(Domains& domains, const std::string& name, MachineConfig& machine);

}  // namespace vmm::tool
