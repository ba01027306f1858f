#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "memory/guest_memory.hpp"
#include "support/result.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// Whether the file starts with the ELF magic.
bool is_elf_image(std::span<const std::byte> file);

/// Copies the PT_LOAD segments of a static 64-bit x86 ELF to their physical addresses, at or above 1 MiB, of fresh
/// memory: what a segment has beyond its bytes in the file is zero there already, and takes no host memory.
/// @return the entry point, to be entered in 64-bit mode with memory mapped one to one.
/// Fails with kind usage on anything corrupt or that does not fit, before anything is written.
Result<vpmu::GuestPhysical> load_elf(const GuestMemory& memory, std::span<const std::byte> file);

}  // namespace vmm
