#pragma once
#include <cstdint>
#include <optional>

#include "boot/acpi.hpp"
#include "boot/cpu_tables.hpp"
#include "machine/config.hpp"
#include "memory/guest_memory.hpp"
#include "support/result.hpp"

namespace vmm {

struct LoadedGuest {
  StartRegisters start;  ///< Of the first vCPU.
  bool is_linux{};       ///< By the Linux boot protocol, so it reads the command line at layout::command_line.
};

/// Loads the kernel into fresh memory. Fails with kind usage.
Result<LoadedGuest> load_guest(const GuestMemory& memory, const MachineConfig& config, PciBridge bridge);

/// Before Skylake CPUID does not tell the TSC's rate. Linux would measure it with a PIT, which a machine without KVM
/// does not have, and with KVM the result depends on the host's load: so it is told by its command line, unless that
/// says it already. `tsc_khz`: empty if CPUID tells.
Result<void> tell_tsc_rate(const GuestMemory& memory, const MachineConfig& config, const LoadedGuest& loaded,
                           std::optional<std::uint64_t> tsc_khz);

}  // namespace vmm
