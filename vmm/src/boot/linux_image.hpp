#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "memory/guest_memory.hpp"
#include "support/result.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// What the header of a bzImage says, checked. Linux Documentation/arch/x86/boot.rst, protocol 2.12 and later.
struct LinuxHeader {
  std::uint16_t protocol;                   ///< 20CH = 2.12.
  std::uint64_t code_offset;                ///< File offset of the protected-mode part, bytes.
  std::uint64_t code_bytes;                 ///< Its size.
  std::uint64_t memory_bytes;               ///< init_size: RAM it needs at its load address.
  std::uint64_t preferred_address;          ///< Where it likes to be loaded.
  std::uint64_t alignment;                  ///< Of any other load address; 0 when it cannot be moved.
  std::uint64_t command_line_bytes;         ///< Longest command line, without the terminator.
  std::uint64_t initrd_highest;             ///< Last address the initrd may use.
  std::span<const std::byte> setup_header;  ///< 1F1H to the end of the header, for the zero page.
};

/// Whether the file looks like a bzImage (boot flag and "HdrS").
bool is_linux_image(std::span<const std::byte> file);

/// Checks the header and the size of a bzImage. Fails with kind usage, naming what is wrong.
Result<LinuxHeader> parse_linux_header(std::span<const std::byte> file);

/// A kernel in guest RAM, ready to start.
struct LoadedLinux {
  vpmu::GuestPhysical entry;  ///< 64-bit entry point: load address + 200H.
};

/// Places kernel, initrd (may be empty), command line and zero page. cpu_tables.hpp sets the registers that the 64-bit
/// boot protocol asks for. Fails with kind usage when something does not fit.
Result<LoadedLinux> load_linux(const GuestMemory& memory, std::span<const std::byte> kernel,
                               std::span<const std::byte> initrd, const std::string& command_line,
                               vpmu::GuestPhysical rsdp);

/// Writes another command line for a kernel that was loaded. Fails with kind usage if it is too long.
Result<void> write_command_line(const GuestMemory& memory, const std::string& line);

}  // namespace vmm
