#pragma once
#include <cstdint>

#include "vpmu/address.hpp"

/// Where things are put in guest physical memory before the guest starts. Everything but the kernel and initrd is below
/// 1 MiB; a kernel may have segments there, too.
namespace vmm::layout {

inline constexpr vpmu::GuestPhysical gdt{0x1000};
inline constexpr vpmu::GuestPhysical multiboot_info{0x2000};
inline constexpr vpmu::GuestPhysical zero_page{0x7000};
/// PML4, PDPT and four page directories: 4 GiB mapped one to one.
inline constexpr vpmu::GuestPhysical page_tables{0x9000};
inline constexpr vpmu::GuestPhysical stack_top{0x1F000};
inline constexpr vpmu::GuestPhysical command_line{0x20000};
inline constexpr std::uint64_t command_line_room = 0x10000;
/// RAM below this is free for the guest; between it and 1 MiB are the BIOS data of a PC.
inline constexpr vpmu::GuestPhysical low_ram_end{0x9F000};
/// The RSDP must lie in E0000H to FFFFFH for guests that search for it. ACPI 5.2.5.1.
inline constexpr vpmu::GuestPhysical acpi_tables{0xE0000};
inline constexpr std::uint64_t acpi_room = 0x20000;
inline constexpr vpmu::GuestPhysical high_ram{0x100000};

/// The memory of devices on the PCI bus: in the hole between RAM and 4 GiB, below the APICs.
inline constexpr vpmu::GuestPhysical pci_window{0xE0000000};
inline constexpr std::uint64_t pci_window_bytes = 0x1000'0000;
/// Three pages that KVM keeps for itself on Intel hosts; in the hole, so never RAM.
inline constexpr vpmu::GuestPhysical kvm_reserved{0xFFFBC000};
inline constexpr vpmu::GuestPhysical io_apic{0xFEC00000};
inline constexpr vpmu::GuestPhysical local_apic{0xFEE00000};

}  // namespace vmm::layout
