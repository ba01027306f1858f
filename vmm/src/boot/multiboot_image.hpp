#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "memory/guest_memory.hpp"
#include "support/result.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// What a multiboot kernel finds in EAX. Multiboot Specification 0.6.96, 3.2.
inline constexpr std::uint32_t multiboot_boot_magic = 0x2BADB002;

/// Whether the file has a multiboot header (version 1) in its first 8 KiB: kvm-unit-tests' .flat files do.
bool is_multiboot_image(std::span<const std::byte> file);

/// A multiboot kernel in guest RAM. It starts in 32-bit protected mode without paging.
struct LoadedMultiboot {
  vpmu::GuestPhysical entry;
  vpmu::GuestPhysical info;  ///< What it finds in EBX.
};

/// Places the kernel, a static 32-bit ELF file, the module (may be empty) after it, the command line, the memory map
/// and the information structure. Fails with kind usage if something does not fit, or if the header asks for what is
/// not supported: a video mode, or loading other than as ELF.
Result<LoadedMultiboot> load_multiboot(const GuestMemory& memory, std::span<const std::byte> kernel,
                                       std::span<const std::byte> module, const std::string& command_line);

}  // namespace vmm
