#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "devices/fake_chips.hpp"
#include "devices/msix_table.hpp"
#include "devices/pci_bus.hpp"
#include "devices/pci_header.hpp"

namespace vmm {
namespace {

using vpmu::GuestPhysical;

constexpr std::uint32_t enable = 0x8000'0000, second_device = enable | 1U << 11U;

std::uint32_t config(PciBus& bus, std::uint32_t address) {
  test::out<std::uint32_t>(bus, PciBus::address_port, address);
  return test::in<std::uint32_t>(bus, PciBus::data_port);
}

/// A PCI function whose header a test can read.
class Function final : public PciFunction {
 public:
  std::uint32_t config_read(std::uint8_t offset) override { return header.read(offset); }
  void config_write(std::uint8_t offset, std::uint32_t value, std::uint32_t mask) override {
    header.write(offset, value, mask);
  }
  PciHeader header{{.vendor = 0x1AF4, .device = 0x1043, .class_code = 0x07'80'00, .revision = 1}};
};

TEST(PciBus, ShowsItsBridgeAndNothingElse) {
  PciBus bus;
  EXPECT_EQ(config(bus, enable), 0x1237'8086U);
  EXPECT_EQ(config(bus, enable | 0x08) >> 8U, 0x06'00'00U) << "a host bridge";
  EXPECT_EQ(config(bus, second_device), 0xFFFF'FFFFU);
  EXPECT_EQ(config(bus, enable | 1U << 16U), 0xFFFF'FFFFU) << "bus 1";
  EXPECT_EQ(config(bus, enable | 1U << 8U), 0xFFFF'FFFFU) << "function 1";
  EXPECT_EQ(config(bus, 0), 0xFFFF'FFFFU) << "without the enable bit";
}

TEST(PciBus, PassesBytesAndWordsToWhereTheyBelong) {
  PciBus bus;
  auto owned = std::make_unique<Function>();
  const Function& function = *owned;
  EXPECT_EQ(bus.add(std::move(owned)), 1U);
  EXPECT_EQ(config(bus, second_device), 0x1043'1AF4U);
  EXPECT_EQ(test::in<std::uint16_t>(bus, PciBus::data_port + 2), 0x1043U);
  EXPECT_EQ(test::in<std::uint8_t>(bus, PciBus::data_port + 1), 0x1AU);
  EXPECT_EQ(test::in<std::uint16_t>(bus, PciBus::data_port + 3), 0xFFFFU) << "it does not fit";
  config(bus, second_device | 0x3C);
  test::out<std::uint8_t>(bus, PciBus::data_port, 0x5A);
  EXPECT_EQ(function.header.read(0x3C), 0x5AU);
  config(bus, second_device | 0x04);
  test::out<std::uint16_t>(bus, PciBus::data_port + 2, 0xFFFF);
  EXPECT_EQ(function.header.read(0x04) & 0xFFFFU, 0U) << "the status is not the command";
}

// PCI 3.0 6.2.5.1: software writes ones and reads back the size.
TEST(PciHeader, TellsTheSizeOfABarAndFollowsIt) {
  PciHeader header{{.vendor = 1, .device = 2, .class_code = 0}};
  header.add_bar(0, 16384, 0xE000'0000);
  EXPECT_EQ(header.bar_address(0), std::nullopt) << "memory is not decoded yet";
  header.write(0x04, 2, 0xFFFF'FFFF);
  EXPECT_EQ(header.bar_address(0), GuestPhysical{0xE000'0000});
  EXPECT_EQ(header.find(GuestPhysical{0xE000'4000}), std::nullopt);
  ASSERT_TRUE(header.find(GuestPhysical{0xE000'3FFC}));
  EXPECT_EQ(header.find(GuestPhysical{0xE000'3FFC})->offset, 0x3FFCU);
  header.write(0x10, 0xFFFF'FFFF, 0xFFFF'FFFF);
  EXPECT_EQ(header.read(0x10), 0xFFFF'C000U);
  header.write(0x10, 0xE100'1234, 0xFFFF'FFFF);
  EXPECT_EQ(header.bar_address(0), GuestPhysical{0xE100'0000});
  header.write(0x14, 0xFFFF'FFFF, 0xFFFF'FFFF);
  EXPECT_EQ(header.read(0x14), 0U) << "no BAR 1";
}

TEST(PciHeader, ListsCapabilities) {
  PciHeader header{{.vendor = 1, .device = 2, .class_code = 0}};
  const std::array<std::uint8_t, 3> body{0xA1, 0xA2, 0xA3};
  EXPECT_EQ(header.add_capability(0x09, body), 0x40);
  EXPECT_EQ(header.add_capability(0x11, body), 0x48) << "at the next dword";
  EXPECT_NE(header.read(0x04) & 1U << 20U, 0U) << "the status says that there is a list";
  EXPECT_EQ(header.read(0x34) & 0xFFU, 0x40U);
  EXPECT_EQ(header.read(0x40), 0xA2A1'4809U);
  EXPECT_EQ(header.read(0x48) & 0xFFFFU, 0x0011U) << "the last one";
}

std::uint32_t dword(const MsixTable& table, std::uint32_t offset) {
  std::uint32_t value = ~0U;
  table.read(offset, std::as_writable_bytes(std::span{&value, 1}));
  return value;
}

template <class Word>
void put(MsixTable& table, std::uint32_t offset, Word value) {
  table.write(offset, std::as_bytes(std::span{&value, 1}));
}

/// A table with MSI-X enabled, and vector 1 unmasked and with a message.
MsixTable table_with_a_message() {
  MsixTable table{3};
  put<std::uint64_t>(table, 16, 0x1'FEE0'1000);
  put<std::uint32_t>(table, 24, 0x4041);
  put<std::uint32_t>(table, 28, 0);
  table.set_control(0x8000);
  return table;
}

TEST(MsixTable, SendsWhatIsUnmasked) {
  MsixTable table = table_with_a_message();
  EXPECT_EQ(table.message(1), (InterruptMessage{.address = 0x1'FEE0'1000, .data = 0x4041}));
  EXPECT_EQ(table.message(0), std::nullopt) << "masked, as from reset";
  EXPECT_EQ(table.message(3), std::nullopt) << "there is none";
  table.set_control(0xC000);
  EXPECT_EQ(table.message(1), std::nullopt) << "the function is masked";
  table.set_control(0);
  EXPECT_EQ(table.message(1), std::nullopt) << "MSI-X is off";
}

// PCI 3.0 6.8.2.4: a message whose vector is masked stays pending, and is sent when the vector is unmasked.
TEST(MsixTable, KeepsWhatWasMasked) {
  MsixTable table = table_with_a_message();
  table.set_pending(1);
  table.set_pending(2);
  table.set_pending(7);
  EXPECT_EQ(dword(table, MsixTable::pending_offset), 6U);
  EXPECT_EQ(table.take_pending(), 1U);
  EXPECT_EQ(table.take_pending(), std::nullopt) << "vector 2 is masked";
  EXPECT_EQ(dword(table, MsixTable::pending_offset), 4U);
}

TEST(MsixTable, TakesWholeDwordsOnly) {
  MsixTable table = table_with_a_message();
  put<std::uint16_t>(table, 24, 0xFFFF);
  put<std::uint32_t>(table, 26, 0xFFFF'FFFF);
  put<std::uint32_t>(table, MsixTable::pending_offset, 0xFFFF'FFFF);
  put<std::uint64_t>(table, MsixTable::bytes - 4, ~0ULL);
  put<std::uint32_t>(table, 3 * 16, 0xFFFF'FFFF);
  EXPECT_EQ(dword(table, 24), 0x4041U);
  EXPECT_EQ(dword(table, MsixTable::pending_offset), 0U);
  EXPECT_EQ(dword(table, 3 * 16), 0U) << "beyond the last vector";
  EXPECT_EQ(dword(table, 12), 1U) << "of vector 0: masked";
}

}  // namespace
}  // namespace vmm
