#pragma once
// The registers of an IoApic, by its two windows.

#include "processor/io_apic.hpp"

namespace vmm::test {

constexpr std::uint32_t io_apic_index_at = 0, io_apic_data_at = 0x10;

/// The low half of a redirection table entry.
inline void redirect(IoApic& apic, unsigned line, std::uint32_t entry) {
  apic.write(io_apic_index_at, 0x10 + 2 * line);
  apic.write(io_apic_data_at, entry);
}
inline std::uint32_t redirection(IoApic& apic, unsigned line) {
  apic.write(io_apic_index_at, 0x10 + 2 * line);
  return apic.read(io_apic_data_at);
}

}  // namespace vmm::test
