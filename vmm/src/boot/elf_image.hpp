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

/// A static x86 ELF file in memory.
struct LoadedElf {
  vpmu::GuestPhysical entry;
  vpmu::GuestPhysical end;  ///< The first address after its last segment.
};
enum class ElfClass : std::uint8_t { bits32, bits64 };

/// Copies the PT_LOAD segments of a static x86 ELF of that class to their physical addresses, at or above 1 MiB. The
/// memory must be fresh: the part of a segment that is not in the file is zero already, and takes no host memory. Fails
/// with kind usage if the file is corrupt or does not fit, before anything is written.
Result<LoadedElf> load_elf(const GuestMemory& memory, std::span<const std::byte> file,
                           ElfClass which = ElfClass::bits64);

}  // namespace vmm
