#include "boot/acpi.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "boot/layout.hpp"

namespace vmm {
namespace {

using vpmu::GuestPhysical;

std::vector<std::uint8_t> bytes_at(const GuestMemory& memory, GuestPhysical at, std::size_t size) {
  std::vector<std::uint8_t> bytes(size);
  EXPECT_TRUE(memory.read(at, std::as_writable_bytes(std::span{bytes})));
  return bytes;
}

template <class T>
T field(const std::vector<std::uint8_t>& table, std::size_t at) {
  T value{};
  if (at + sizeof value <= table.size()) {
    std::memcpy(&value, table.data() + at, sizeof value);
  } else {
    ADD_FAILURE() << "no field at " << at;
  }
  return value;
}

std::uint8_t sum(const std::vector<std::uint8_t>& bytes) {
  return static_cast<std::uint8_t>(std::accumulate(bytes.begin(), bytes.end(), 0U));
}

std::vector<std::uint8_t> table_at(const GuestMemory& memory, std::uint64_t at) {
  const auto length = *memory.load<std::uint32_t>(GuestPhysical{at + 4});
  auto table = bytes_at(memory, GuestPhysical{at}, length);
  EXPECT_EQ(sum(table), 0U) << "checksum of the table at " << std::hex << at;
  return table;
}

/// All tables by signature, found from the RSDP as a guest finds them.
std::map<std::string, std::vector<std::uint8_t>> find_tables(unsigned cpus, PciBridge bridge = PciBridge::absent) {
  const auto memory = *GuestMemory::create(GuestMemory::min_bytes);
  const auto rsdp = bytes_at(memory, write_acpi_tables(memory, cpus, bridge), 36);
  EXPECT_EQ(sum(rsdp), 0U);
  EXPECT_EQ(std::accumulate(rsdp.begin(), rsdp.begin() + 20, 0U) % 256, 0U);
  std::map<std::string, std::vector<std::uint8_t>> tables;
  const auto xsdt = table_at(memory, field<std::uint64_t>(rsdp, 24));
  for (std::size_t at = 36; at < xsdt.size(); at += 8) {
    const auto table = table_at(memory, field<std::uint64_t>(xsdt, at));
    tables[std::string(table.begin(), table.begin() + 4)] = table;
  }
  tables["DSDT"] = table_at(memory, field<std::uint64_t>(tables["FACP"], 140));
  return tables;
}

TEST(AcpiTables, AreReachedFromTheRootPointerWithGoodChecksums) {
  const auto tables = find_tables(1);
  EXPECT_EQ(tables.count("FACP"), 1U);
  EXPECT_EQ(tables.count("APIC"), 1U);
  EXPECT_EQ(std::string(tables.at("DSDT").begin(), tables.at("DSDT").begin() + 4), "DSDT");
}

TEST(AcpiTables, FadtPointsAtThePortsThatTheDevicesAnswer) {
  const auto fadt = find_tables(1).at("FACP");
  ASSERT_EQ(fadt.size(), 268U);  // revision 5, ACPI table 5-34
  EXPECT_EQ(field<std::uint32_t>(fadt, 56), acpi_port::pm1a_event);
  EXPECT_EQ(field<std::uint32_t>(fadt, 64), acpi_port::pm1a_control);
  EXPECT_EQ(field<std::uint16_t>(fadt, 116 + 4), acpi_port::reset);
  EXPECT_EQ(field<std::uint8_t>(fadt, 128), acpi_reset_value);
  EXPECT_NE(field<std::uint32_t>(fadt, 112) & 1U << 10U, 0U) << "reset register supported";
  EXPECT_EQ(field<std::uint16_t>(fadt, 109) & 2U, 0U) << "no i8042: a guest must not look for one";
}

TEST(AcpiTables, MadtListsEveryProcessorOnce) {
  for (const unsigned cpus : {1U, 2U, 64U}) {
    const auto madt = find_tables(cpus).at("APIC");
    std::vector<unsigned> ids;
    for (std::size_t at = 44; at < madt.size(); at += madt.at(at + 1)) {
      if (madt[at] == 0) {
        ids.push_back(madt.at(at + 3));
        EXPECT_EQ(field<std::uint32_t>(madt, at + 4), 1U) << "enabled";
      }
    }
    std::vector<unsigned> expected(cpus);
    std::iota(expected.begin(), expected.end(), 0U);
    EXPECT_EQ(ids, expected);
  }
}

// ACPI 6.4.3.5.2: the fourth dword after the six bytes of the head is the window's length.
TEST(AcpiTables, DsdtHasAPciBridgeWhereThereIsOne) {
  const auto dsdt = find_tables(1, PciBridge::present).at("DSDT");
  const std::string text{dsdt.begin(), dsdt.end()};
  ASSERT_NE(text.find("PCI0"), std::string::npos);
  const auto window = text.find(std::string("\x87\x17\x00", 3));
  ASSERT_NE(window, std::string::npos);
  EXPECT_EQ(field<std::uint32_t>(dsdt, window + 10), layout::pci_window.value());
  EXPECT_EQ(field<std::uint32_t>(dsdt, window + 14), layout::pci_window.value() + layout::pci_window_bytes - 1);
  EXPECT_EQ(field<std::uint32_t>(dsdt, window + 22), layout::pci_window_bytes);
  const auto without = find_tables(1).at("DSDT");
  EXPECT_EQ(std::string(without.begin(), without.end()).find("PCI0"), std::string::npos);
}

TEST(AcpiTables, DsdtNamesTheSleepTypeOfPowerOffAndThePanicPort) {
  const auto dsdt = find_tables(1).at("DSDT");
  const std::string text{dsdt.begin(), dsdt.end()};
  const auto s5 = text.find("_S5_");
  ASSERT_NE(s5, std::string::npos);
  EXPECT_EQ(dsdt.at(s5 + 7), 0x0AU);
  EXPECT_EQ(dsdt.at(s5 + 8), acpi_sleep_type_off);
  EXPECT_NE(text.find("QEMU0001"), std::string::npos);
}

}  // namespace
}  // namespace vmm
