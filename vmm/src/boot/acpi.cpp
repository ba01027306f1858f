#include "boot/acpi.hpp"

#include <cstring>
#include <numeric>
#include <string_view>
#include <vector>

#include "boot/layout.hpp"
#include "support/assert.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::GuestPhysical;

/// A table under construction, field by field in the order of the ACPI specification (6.3).
class TableBuilder {
 public:
  /// Starts with the common header. ACPI 5.2.6.
  TableBuilder(std::string_view signature, std::uint8_t revision) {
    text(signature);
    put<std::uint32_t>(0);  // length, filled in by finish()
    put<std::uint8_t>(revision);
    put<std::uint8_t>(0);  // checksum, filled in by finish()
    text("VPMU  ");
    text("VPMUVMM ");
    put<std::uint32_t>(1);
    text("VPMU");
    put<std::uint32_t>(1);
  }

  template <class T>
  TableBuilder& put(T value) {
    const auto at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
    return *this;
  }
  TableBuilder& text(std::string_view characters) {
    bytes_.insert(bytes_.end(), characters.begin(), characters.end());
    return *this;
  }
  TableBuilder& zeros(std::size_t count) {
    bytes_.resize(bytes_.size() + count);
    return *this;
  }
  /// Generic address structure of an I/O port. ACPI 5.2.3.2.
  TableBuilder& io_port(std::uint16_t port, std::uint8_t bits) {
    return put<std::uint8_t>(1).put(bits).put<std::uint8_t>(0).put<std::uint8_t>(0).put<std::uint64_t>(port);
  }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }

  /// The bytes, with length and checksum.
  std::vector<std::uint8_t> finish() {
    const auto length = static_cast<std::uint32_t>(bytes_.size());
    std::memcpy(bytes_.data() + 4, &length, sizeof length);
    bytes_[9] = static_cast<std::uint8_t>(0U - std::accumulate(bytes_.begin(), bytes_.end(), 0U));
    return bytes_;
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

/// Places tables one after the other, each at a multiple of 64 bytes (the FACS needs that).
class TablePlacer {
 public:
  TablePlacer(const GuestMemory& memory, GuestPhysical first) : memory_{&memory}, next_{first} {}

  GuestPhysical place(std::span<const std::uint8_t> table) {
    const auto at = next_;
    VMM_ASSERT(at.value() + table.size() <= layout::acpi_tables.value() + layout::acpi_room);
    VMM_ASSERT(memory_->write(at, std::as_bytes(table)));
    next_ = GuestPhysical{(at.value() + table.size() + 63) & ~std::uint64_t{63}};
    return at;
  }

 private:
  const GuestMemory* memory_;
  GuestPhysical next_;
};

using Aml = std::vector<std::uint8_t>;

Aml operator+(Aml left, const Aml& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

Aml name(std::string_view four_letters) { return Aml{four_letters.begin(), four_letters.end()}; }

/// `opcode`, then the length of what follows (itself included), in one byte or two, then the contents. ACPI 20.2.4.
Aml sized(const Aml& opcode, const Aml& contents) {
  constexpr std::size_t max_of_one = 63, max_of_two = 4095;
  const std::size_t length = contents.size() + 1;
  if (length <= max_of_one) return opcode + Aml{static_cast<std::uint8_t>(length)} + contents;
  VMM_ASSERT(length + 1 <= max_of_two);
  constexpr unsigned one_more_byte = 1U << 6U;
  return opcode +
         Aml{static_cast<std::uint8_t>(one_more_byte | ((length + 1) & 0xF)),
             static_cast<std::uint8_t>((length + 1) >> 4U)} +
         contents;
}

/// Name (four_letters, value). ACPI 20.2.5.1.
Aml named(std::string_view four_letters, const Aml& value) { return Aml{0x08} + name(four_letters) + value; }

Aml byte_value(std::uint8_t value) { return {0x0A, value}; }

/// \_S5: what to write to PM1 control for power-off. ACPI 7.4.2.
Aml sleep_state_off() {
  constexpr std::uint8_t elements = 4;
  const Aml type = byte_value(acpi_sleep_type_off);
  return named("_S5_", sized({0x12}, Aml{elements} + type + type + Aml{0, 0}));
}

/// The port at which the guest reports a panic, under the identity that Linux's driver binds to.
Aml panic_device() {
  constexpr std::uint8_t low = acpi_port::panic & 0xFFU;
  constexpr std::uint8_t high = acpi_port::panic >> 8U;
  // IO (Decode16, port, port, 1, 1) and the end tag. ACPI 6.4.2.5, 6.4.2.9.
  const Aml resources{0x47, 0x01, low, high, low, high, 0x01, 0x01, 0x79, 0x00};
  const auto resource_bytes = static_cast<std::uint8_t>(resources.size());
  const Aml identity = Aml{0x0D} + name("QEMU0001") + Aml{0};
  const Aml device = name("PEVT") + named("_HID", identity) +
                     named("_CRS", sized({0x11}, byte_value(resource_bytes) + resources)) +
                     named("_STA", byte_value(0x0F));
  return sized({0x10}, name("\\_SB_") + sized({0x5B, 0x82}, device));
}

template <class T>
Aml little_endian(T value) {
  Aml bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

/// A host bridge with bus 0, the ports of its configuration mechanism, and the window that it decodes for devices. No
/// _PRT: the devices have only message-signalled interrupts.
Aml pci_bridge() {
  // WordBusNumber 0 to 0. ACPI 6.4.3.5.3: producer, fixed ends; granularity, first, last, translation, length.
  const Aml buses = Aml{0x88, 0x0D, 0x00, 0x02, 0x0C, 0x00} + little_endian<std::uint16_t>(0) +
                    little_endian<std::uint16_t>(0) + little_endian<std::uint16_t>(0) +
                    little_endian<std::uint16_t>(0) + little_endian<std::uint16_t>(1);
  constexpr std::uint8_t ports_low = 0xF8, ports_high = 0x0C;
  const Aml ports{0x47, 0x01, ports_low, ports_high, ports_low, ports_high, 0x01, 0x08};
  // DWordMemory, producer, fixed ends, not cacheable, writable. ACPI 6.4.3.5.2.
  constexpr auto first = static_cast<std::uint32_t>(layout::pci_window.value());
  constexpr auto bytes = static_cast<std::uint32_t>(layout::pci_window_bytes);
  const Aml memory = Aml{0x87, 0x17, 0x00, 0x00, 0x0C, 0x01} + little_endian<std::uint32_t>(0) +
                     little_endian<std::uint32_t>(first) + little_endian<std::uint32_t>(first + bytes - 1) +
                     little_endian<std::uint32_t>(0) + little_endian<std::uint32_t>(bytes);
  const Aml resources = buses + ports + memory + Aml{0x79, 0x00};
  constexpr std::uint8_t dword_prefix = 0x0C;
  const Aml pnp0a03{dword_prefix, 0x41, 0xD0, 0x0A, 0x03};
  const Aml device = name("PCI0") + named("_HID", pnp0a03) +
                     named("_CRS", sized({0x11}, byte_value(static_cast<std::uint8_t>(resources.size())) + resources));
  return sized({0x10}, name("\\_SB_") + sized({0x5B, 0x82}, device));
}

/// Differentiated system description table. ACPI 5.2.11.1.
std::vector<std::uint8_t> dsdt(PciBridge bridge) {
  TableBuilder table{"DSDT", 2};
  for (const auto byte : sleep_state_off() + panic_device() + (bridge == PciBridge::present ? pci_bridge() : Aml{})) {
    table.put(byte);
  }
  return table.finish();
}

/// Firmware ACPI control structure: no header checksum. ACPI 5.2.10.
std::vector<std::uint8_t> facs() {
  std::vector<std::uint8_t> bytes(64);
  std::memcpy(bytes.data(), "FACS", 4);
  bytes[4] = 64;
  bytes[32] = 2;  // version
  return bytes;
}

/// Fixed ACPI description table, revision 5. ACPI 5.2.9.
std::vector<std::uint8_t> fadt(GuestPhysical facs_at, GuestPhysical dsdt_at) {
  constexpr std::uint16_t legacy_devices_no_vga = vpmu::bit(0) | vpmu::bit(2);
  // WBINVD works, no power button, no sleep button, no RTC wake, reset register. ACPI table 5-35.
  constexpr std::uint32_t flags = vpmu::bit(0) | vpmu::bit(4) | vpmu::bit(5) | vpmu::bit(6) | vpmu::bit(10);
  TableBuilder table{"FACP", 5};
  table.put(static_cast<std::uint32_t>(facs_at.value()))
      .put(static_cast<std::uint32_t>(dsdt_at.value()))
      .put<std::uint8_t>(0)
      .put<std::uint8_t>(0)  // unspecified power profile
      .put(acpi_sci_line)
      .put<std::uint32_t>(0)  // SMI_CMD 0: always in ACPI mode
      .zeros(4)               // ACPI_ENABLE .. PSTATE_CNT
      .put<std::uint32_t>(acpi_port::pm1a_event)
      .put<std::uint32_t>(0)
      .put<std::uint32_t>(acpi_port::pm1a_control)
      .zeros(4 * 5)                  // PM1b control, PM2, timer, GPE0, GPE1
      .put<std::uint8_t>(4)          // PM1_EVT_LEN
      .put<std::uint8_t>(2)          // PM1_CNT_LEN
      .zeros(6)                      // the other lengths, GPE1_BASE, CST_CNT
      .put<std::uint16_t>(0xFFFF)    // no C2
      .put<std::uint16_t>(0xFFFF)    // no C3
      .zeros(2 + 2 + 1 + 1 + 1 + 1)  // FLUSH_SIZE .. MON_ALRM
      .put<std::uint8_t>(0x32)       // CMOS byte of the century
      .put(legacy_devices_no_vga)
      .put<std::uint8_t>(0)
      .put(flags)
      .io_port(acpi_port::reset, 8)
      .put(acpi_reset_value)
      .put<std::uint16_t>(0)  // ARM boot flags
      .put<std::uint8_t>(1)   // minor version
      .put<std::uint64_t>(0)  // X_FACS: FACS above is used
      .put(dsdt_at.value())
      .io_port(acpi_port::pm1a_event, 32)
      .zeros(12)
      .io_port(acpi_port::pm1a_control, 16)
      .zeros(12 * 7);  // PM1b control, PM2, timer, GPE0, GPE1, sleep control, sleep status
  return table.finish();
}

/// Multiple APIC description table: LAPICs, one IOAPIC, the ISA overrides. ACPI 5.2.12.
std::vector<std::uint8_t> madt(unsigned cpus) {
  TableBuilder table{"APIC", 4};
  table.put(static_cast<std::uint32_t>(layout::local_apic.value())).put<std::uint32_t>(1);  // 8259s are there
  for (unsigned id = 0; id < cpus; ++id) {
    table.put<std::uint8_t>(0).put<std::uint8_t>(8).put(static_cast<std::uint8_t>(id));
    table.put(static_cast<std::uint8_t>(id)).put<std::uint32_t>(1);
  }
  table.put<std::uint8_t>(1).put<std::uint8_t>(12).put<std::uint8_t>(0).put<std::uint8_t>(0);
  table.put(static_cast<std::uint32_t>(layout::io_apic.value())).put<std::uint32_t>(0);
  const auto override_line = [&table](std::uint8_t line, std::uint32_t gsi, std::uint16_t flags) {
    table.put<std::uint8_t>(2).put<std::uint8_t>(10).put<std::uint8_t>(0).put(line).put(gsi).put(flags);
  };
  constexpr std::uint16_t conforms = 0;
  constexpr std::uint16_t active_high_level = 0xD;
  override_line(0, 2, conforms);
  override_line(acpi_sci_line, acpi_sci_line, active_high_level);
  constexpr std::uint8_t all_processors = 0xFF;
  table.put<std::uint8_t>(4).put<std::uint8_t>(6).put(all_processors).put<std::uint16_t>(0).put<std::uint8_t>(1);
  return table.finish();
}

/// Root pointer, revision 2: two checksums of its own. ACPI 5.2.5.3.
std::vector<std::uint8_t> rsdp(GuestPhysical xsdt_at) {
  constexpr std::size_t revision_1_bytes = 20;
  std::vector<std::uint8_t> bytes(36);
  std::memcpy(bytes.data(), "RSD PTR ", 8);
  std::memcpy(bytes.data() + 9, "VPMU  ", 6);
  bytes[15] = 2;
  bytes[20] = 36;
  const std::uint64_t xsdt = xsdt_at.value();
  std::memcpy(bytes.data() + 24, &xsdt, sizeof xsdt);
  const auto checksum = [&bytes](std::size_t count) {
    return static_cast<std::uint8_t>(
        0U - std::accumulate(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count), 0U));
  };
  bytes[8] = checksum(revision_1_bytes);
  bytes[32] = checksum(bytes.size());
  return bytes;
}

}  // namespace

GuestPhysical write_acpi_tables(const GuestMemory& memory, unsigned cpus, PciBridge bridge) {
  VMM_ASSERT(cpus >= 1 && cpus <= 254);
  TablePlacer placer{memory, layout::acpi_tables + 64};  // the RSDP goes first
  const auto facs_at = placer.place(facs());
  const auto dsdt_at = placer.place(dsdt(bridge));
  const auto fadt_at = placer.place(fadt(facs_at, dsdt_at));
  const auto madt_at = placer.place(madt(cpus));
  TableBuilder xsdt{"XSDT", 1};
  xsdt.put(fadt_at.value()).put(madt_at.value());
  const auto xsdt_at = placer.place(xsdt.finish());
  TablePlacer{memory, layout::acpi_tables}.place(rsdp(xsdt_at));
  return layout::acpi_tables;
}

}  // namespace vmm
