// A machine with virtio devices: its bus, and what it cannot do.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "devices/pci_bus.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/code_file.hpp"
#include "machine/machine.hpp"
#include "virtio/console.hpp"

namespace vmm {
namespace {

using test::CodeFile;

constexpr std::uint64_t memory_bytes = 16ULL << 20U;

/// Enables memory decoding of PCI device 1, reads the number of its queues, and powers off if there are four.
const std::vector<std::uint8_t> count_queues =
    X86("mov $0x80000804, %eax; mov $0xcf8, %dx; out %eax, (%dx); "
        "mov $2, %eax; mov $0xcfc, %dx; out %eax, (%dx); "
        "mov $0xe0000000, %ebx; movzwl 0x12(%rbx), %eax; "
        "cmp $4, %ax; jne 1f; "
        "mov $0x3400, %eax; mov $0x604, %dx; out %eax, (%dx); "
        "1: jmp 1b");

class VirtioMachine : public testing::Test {
 protected:
  Result<std::unique_ptr<Machine>> make(unsigned consoles, const std::vector<std::uint8_t>& code = count_queues) {
    const CodeFile file{code};
    Machine::Hooks hooks{.console = [](std::uint8_t) {}, .stop_requested = {}};
    if (consoles != 0)
      hooks.make_devices =
          [consoles](const GuestMemory& memory) -> Result<std::vector<std::unique_ptr<virtio::Device>>> {
        std::vector<std::unique_ptr<virtio::Device>> all;
        for (unsigned i = 0; i < consoles; ++i) {
          std::vector<virtio::Console::Port> ports;
          ports.push_back({.name = "only"});
          VMM_ASSIGN(all.emplace_back(),
                     virtio::Console::create(memory, std::move(ports), virtio::Console::Work::by_vcpu));
        }
        return all;
      };
    return Machine::create({.kernel = file.path(), .memory_bytes = memory_bytes, .accel = Accel::soft},
                           std::move(hooks), log);
  }

  /// The first dword of a device's configuration space.
  static std::uint32_t identity(Machine& machine, std::uint32_t device) {
    const std::uint32_t address = 0x8000'0000 | device << 11U;
    std::uint32_t value = 0;
    machine.ports().write({.port = PciBus::address_port, .width = 4, .data = std::as_bytes(std::span{&address, 1})});
    machine.ports().read({.port = PciBus::data_port, .width = 4, .data = std::as_writable_bytes(std::span{&value, 1})});
    return value;
  }

  Log log;
};

TEST_F(VirtioMachine, HasThemOnABus) {
  const auto machine = *make(2);
  EXPECT_EQ(identity(*machine, 0), 0x1237'8086U);
  EXPECT_EQ(identity(*machine, 1), 0x1043'1AF4U);
  EXPECT_EQ(identity(*machine, 2), 0x1043'1AF4U);
  EXPECT_EQ(identity(*machine, 3), 0xFFFF'FFFFU);
}

TEST_F(VirtioMachine, WithoutDevicesHasNoBus) { EXPECT_EQ(identity(**make(0), 0), 0xFFFF'FFFFU); }

TEST_F(VirtioMachine, ReachesTheirMemory) {
  const auto machine = *make(1);
  machine->start();
  EXPECT_EQ(machine->wait(), StopReason::power_off);
}

TEST_F(VirtioMachine, RefusesMoreThanTheBusHolds) {
  EXPECT_TRUE(make(31));
  const auto refused = make(32);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().what, "32 devices, but a PCI bus has room for 31");
}

TEST_F(VirtioMachine, IsNotSaved) {
  const auto machine = *make(1);
  const std::string path = testing::TempDir() + "virtio_machine_" + std::to_string(::getpid());
  const auto saved = machine->snapshot(*new_snapshot_file(path));
  ::unlink(path.c_str());
  ASSERT_FALSE(saved);
  EXPECT_NE(saved.error().what.find("virtio devices"), std::string::npos) << saved.error().what;
}

}  // namespace
}  // namespace vmm
