#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "memory/guest_memory.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// Where the initrd lies; zero bytes = none.
struct InitrdPlace {
  vpmu::GuestPhysical at;
  std::uint64_t bytes{};
};

/// What goes into the zero page ("struct boot_params"). Linux Documentation/arch/x86/zero-page.rst.
struct ZeroPageContents {
  std::span<const std::byte> setup_header;  ///< From 1F1H of the kernel file.
  std::uint64_t command_line_bytes{};       ///< Of the line at layout::command_line.
  InitrdPlace initrd{};
  vpmu::GuestPhysical rsdp;
};

/// Writes the zero page at layout::zero_page, with the memory map of `memory`. False when that page is no RAM.
[[nodiscard]] bool write_zero_page(const GuestMemory& memory, const ZeroPageContents& contents);

}  // namespace vmm
