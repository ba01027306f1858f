#include "devices/chipset.hpp"
#include "devices/test_device.hpp"

#include <gtest/gtest.h>

#include "boot/acpi.hpp"
#include "devices/fake_chips.hpp"
#include "devices/rtc.hpp"

namespace vmm {
namespace {

using Requests = std::vector<StopReason>;

TEST(AcpiPower, SleepTypeFiveWithEnablePowersOff) {
  test::FakeMachine machine;
  AcpiPower power{machine};
  const auto control = acpi_port::pm1a_control;
  EXPECT_EQ(test::in<std::uint16_t>(power, control), 1U) << "ACPI mode is on";
  test::out<std::uint16_t>(power, control, acpi_sleep_type_off << 10U);
  test::out<std::uint16_t>(power, control, 1U << 13U);
  EXPECT_EQ(machine.requests, Requests{});
  test::out<std::uint16_t>(power, control, acpi_sleep_type_off << 10U | 1U << 13U);
  EXPECT_EQ(machine.requests, Requests{StopReason::power_off});
}

TEST(AcpiPower, EventsNeverComeAndEnableBitsAreKept) {
  test::FakeMachine machine;
  AcpiPower power{machine};
  test::out<std::uint16_t>(power, acpi_port::pm1a_event + 2, 0x0120);
  EXPECT_EQ(test::in<std::uint16_t>(power, acpi_port::pm1a_event), 0U);
  EXPECT_EQ(test::in<std::uint16_t>(power, acpi_port::pm1a_event + 2), 0x0120U);
}

TEST(ResetPort, OnlyTheResetBitResets) {
  test::FakeMachine machine;
  ResetPort port{machine};
  test::out<std::uint8_t>(port, ResetPort::port, 0x02);
  EXPECT_EQ(machine.requests, Requests{});
  test::out<std::uint8_t>(port, ResetPort::port, acpi_reset_value);
  EXPECT_EQ(machine.requests, Requests{StopReason::reset});
}

TEST(KeyboardController, CommandFeResetsAndAProbeSeesNoController) {
  test::FakeMachine machine;
  KeyboardController keyboard{machine};
  const auto status = test::in<std::uint8_t>(keyboard, 0x64);
  EXPECT_EQ(status & 0x02, 0) << "a guest that waits for the input buffer goes on at once";
  EXPECT_EQ(status & 0x01, 1) << "output never drains: probes give up";
  test::out<std::uint8_t>(keyboard, 0x60, 0xFE);
  test::out<std::uint8_t>(keyboard, 0x64, 0xD1);
  EXPECT_EQ(machine.requests, Requests{});
  test::out<std::uint8_t>(keyboard, 0x64, 0xFE);
  EXPECT_EQ(machine.requests, Requests{StopReason::reset});
}

// Bits 6 and 7 report an NMI of the board. If they were set, Linux would take each unknown NMI for a PCI error. Bits 3
// to 0 are software's; bit 5 is the output of the timer's channel 2.
TEST(SystemControlPort, NoNmiOfTheBoardWaitsAndSoftwaresGatesStay) {
  SystemControlPort port;
  EXPECT_EQ(test::in<std::uint8_t>(port, 0x61), 0x20);
  test::out<std::uint8_t>(port, 0x61, 0xFD);
  EXPECT_EQ(test::in<std::uint8_t>(port, 0x61), 0x2D);
  SystemControlPort other;
  test::copy_state(port, other);
  EXPECT_EQ(test::in<std::uint8_t>(other, 0x61), 0x2D);
}

TEST(StoppedTimer, StandsAt0) {
  StoppedTimer timer;
  test::out<std::uint8_t>(timer, 0x43, 0xB0);  // channel 2, both bytes, mode 0
  test::out<std::uint8_t>(timer, 0x42, 0xFF);
  for (std::uint16_t port = 0x40; port <= 0x43; ++port) EXPECT_EQ(test::in<std::uint8_t>(timer, port), 0);
  EXPECT_EQ(test::in<std::uint16_t>(timer, 0x40), 0);
}

TEST(TestDevice, KeepsFourBytesAndDrivesLines) {
  std::vector<std::pair<std::uint32_t, LineLevel>> seen;
  TestDevice device{[&](std::uint32_t line, LineLevel level) { seen.emplace_back(line, level); }};
  test::out<std::uint32_t>(device, 0xE0, 0x44332211);
  test::out<std::uint8_t>(device, 0xE3, 0x55);
  test::out<std::uint32_t>(device, 0xE4, 0x1234);
  EXPECT_EQ(test::in<std::uint32_t>(device, 0xE0), 0x55332211U);
  EXPECT_EQ(test::in<std::uint8_t>(device, 0xE1), 0x22);
  EXPECT_EQ(test::in<std::uint32_t>(device, 0xE2), 0xFFFF5533U) << "nothing beyond the four";
  test::out<std::uint32_t>(device, 0xE2, 0x99887766);
  TestDevice other{{}};
  test::copy_state(device, other);
  EXPECT_EQ(test::in<std::uint32_t>(other, 0xE0), 0x77662211U);
  test::out<std::uint8_t>(device, 0x200E, 1);
  test::out<std::uint8_t>(device, 0x2017, 0);
  EXPECT_EQ(seen, (std::vector<std::pair<std::uint32_t, LineLevel>>{{14, LineLevel::high}, {23, LineLevel::low}}));
}

TEST(TestDevice, HasMemoryAndLeavesOtherAddressesAlone) {
  struct Others final : MmioDevices {
    void mmio_read(vpmu::GuestPhysical, std::span<std::byte>) override { ++calls; }
    void mmio_write(vpmu::GuestPhysical, std::span<const std::byte>) override { ++calls; }
    unsigned calls{};
  } others;
  TestMemory memory{others};
  const auto read = [](TestMemory& from, std::uint64_t at) {
    std::uint32_t value = 0xFFFF'FFFF;
    from.mmio_read(vpmu::GuestPhysical{at}, std::as_writable_bytes(std::span{&value, 1}));
    return value;
  };
  const auto write = [&](std::uint64_t at, std::uint32_t value) {
    memory.mmio_write(vpmu::GuestPhysical{at}, std::as_bytes(std::span{&value, 1}));
  };
  EXPECT_TRUE(memory.kept().empty());
  write(0xFF00'1002, 0x4433'2211);
  EXPECT_EQ(read(memory, 0xFF00'1003), 0x0044'3322U);
  write(0xFF00'FFFE, 0x8877'6655);
  EXPECT_EQ(read(memory, 0xFF00'FFFE), 0xFFFF'6655U) << "nothing beyond its end";
  EXPECT_EQ(others.calls, 0U);
  write(0xFF01'0000, 1);
  EXPECT_EQ(read(memory, 0xFEFF'FFFC), 0xFFFF'FFFFU);
  EXPECT_EQ(others.calls, 2U);
  TestMemory other{others};
  EXPECT_TRUE(other.set_kept(memory.kept()));
  EXPECT_EQ(read(other, 0xFF00'1002), 0x4433'2211U);
  EXPECT_FALSE(other.set_kept(std::vector<std::byte>(5)));
  EXPECT_TRUE(other.set_kept({}));
}

TEST(PanicPort, AReportedPanicStopsTheMachine) {
  test::FakeMachine machine;
  PanicPort port{machine};
  EXPECT_EQ(test::in<std::uint8_t>(port, PanicPort::port), 3U);
  test::out<std::uint8_t>(port, PanicPort::port, 2);  // a crash kernel takes over: the guest runs on
  EXPECT_EQ(machine.requests, Requests{});
  test::out<std::uint8_t>(port, PanicPort::port, 1);
  EXPECT_EQ(machine.requests, Requests{StopReason::guest_panic});
}

TEST(ExitPort, AnythingButZeroIsAFailure) {
  test::FakeMachine machine;
  ExitPort port{machine};
  test::out<std::uint32_t>(port, ExitPort::port, 0);
  test::out<std::uint8_t>(port, ExitPort::port, 0x80);
  test::out<std::uint32_t>(port, ExitPort::port, 0x100);
  EXPECT_EQ(machine.requests, (Requests{StopReason::power_off, StopReason::guest_failed, StopReason::guest_failed}));
}

class RtcTest : public testing::Test {
 protected:
  std::uint8_t cell(std::uint8_t index) {
    test::out<std::uint8_t>(rtc, 0x70, index);
    return test::in<std::uint8_t>(rtc, 0x71);
  }
  // 2026-03-01 15:04:59 UTC, a Sunday.
  Rtc rtc{[] { return std::time_t{1772377499}; }};
};

TEST_F(RtcTest, TellsTheTimeInBcd) {
  EXPECT_EQ(cell(0), 0x59);
  EXPECT_EQ(cell(2), 0x04);
  EXPECT_EQ(cell(4), 0x15);
  EXPECT_EQ(cell(6), 1);
  EXPECT_EQ(cell(7), 0x01);
  EXPECT_EQ(cell(8), 0x03);
  EXPECT_EQ(cell(9), 0x26);
  EXPECT_EQ(cell(0x32), 0x20);
}

TEST_F(RtcTest, BinaryAndTwelveHourModesAreHonoured) {
  (void)cell(11);
  test::out<std::uint8_t>(rtc, 0x71, 0x04);  // binary, 12 hours
  EXPECT_EQ(cell(0), 59);
  EXPECT_EQ(cell(4), 0x80 | 3);
}

TEST_F(RtcTest, IsValidAndNeverUpdating) {
  EXPECT_EQ(cell(10) & 0x80, 0);
  EXPECT_EQ(cell(13), 0x80);
  EXPECT_EQ(cell(12), 0);
}

TEST(PortBus, UnclaimedPortsReadAllOnesAndAreCounted) {
  PortBus bus;
  test::FakeMachine machine;
  ResetPort reset{machine};
  bus.add(ResetPort::port, 1, reset);
  std::uint32_t value = 0;
  bus.read({.port = 0xCF8, .width = 4, .data = std::as_writable_bytes(std::span{&value, 1})});
  EXPECT_EQ(value, 0xFFFFFFFFU);
  bus.write({.port = 0xCF8, .width = 4, .data = std::as_bytes(std::span{&value, 1})});
  EXPECT_EQ(bus.unclaimed(), 2U);
}

TEST(PortBus, StringAccessesReachTheDeviceItemByItem) {
  PortBus bus;
  test::FakeMachine machine;
  ResetPort reset{machine};
  bus.add(ResetPort::port, 1, reset);
  const std::array<std::uint8_t, 3> bytes{0x04, 0x00, 0x04};
  bus.write({.port = ResetPort::port, .width = 1, .data = std::as_bytes(std::span{bytes})});
  EXPECT_EQ(machine.requests.size(), 2U);
  EXPECT_EQ(bus.unclaimed(), 0U);
}

}  // namespace
}  // namespace vmm
