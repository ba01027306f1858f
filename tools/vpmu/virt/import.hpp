#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "machine/config.hpp"
#include "support/result.hpp"
#include "virt/domains.hpp"

namespace vmm::tool {

/// What a domain's definition says of a machine that this project's own VMM can be.
struct ImportedMachine {
  std::string kernel, initrd, command_line;
  std::uint64_t memory_bytes{};
  unsigned cpus{1};
  unsigned threads_per_core{1};
};

/// Reads a domain's inactive XML. Fails with kind usage on what is no definition, and on the first thing in it that the
/// guest would miss: a way of booting other than a kernel, disks, network interfaces, passed-through devices. Consoles,
/// graphics and the like are left out.
Result<ImportedMachine> import_domain(std::string_view xml);

/// Looks a domain up and makes `machine` what its definition says; the command line that `machine` has is added after
/// the domain's. Fails as Domains::read() and import_domain() do, and with kind usage on a domain of another host,
/// whose files are there.
Result<void> take_domain(Domains& domains, const std::string& name, MachineConfig& machine);

}  // namespace vmm::tool
