#pragma once
#include <cstdint>

#include "memory/guest_memory.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// The I/O ports that the ACPI tables name; the devices answer there.
namespace acpi_port {
inline constexpr std::uint16_t pm1a_event = 0x600;    ///< PM1 status and enable, 4 bytes. ACPI 4.8.3.1.
inline constexpr std::uint16_t pm1a_control = 0x604;  ///< PM1 control, 2 bytes. ACPI 4.8.3.2.
inline constexpr std::uint16_t reset = 0xCF9;         ///< Reset control of a PC chipset.
inline constexpr std::uint16_t panic = 0x505;         ///< pvpanic.
}  // namespace acpi_port

inline constexpr std::uint8_t acpi_reset_value = 0x06;
/// SLP_TYP of S5 in the DSDT's \_S5. ACPI 7.4.2.
inline constexpr std::uint8_t acpi_sleep_type_off = 5;
/// The interrupt line that ACPI events would use; nothing raises it.
inline constexpr std::uint16_t acpi_sci_line = 9;

/// Whether the DSDT declares a PCI host bridge with its devices at layout::pci_window.
enum class PciBridge : std::uint8_t { absent, present };

/// Writes RSDP, XSDT, FADT, FACS, MADT and DSDT at layout::acpi_tables for `cpus` processors (1 to 254, with APIC ids
/// from 0 on). The tables declare no i8042, no VGA and no power-management timer, so that a guest loses no time looking
/// for them.
/// @return the RSDP's address. There must be RAM, as GuestMemory::least ensures.
vpmu::GuestPhysical write_acpi_tables(const GuestMemory& memory, unsigned cpus, PciBridge bridge = PciBridge::absent);

}  // namespace vmm
