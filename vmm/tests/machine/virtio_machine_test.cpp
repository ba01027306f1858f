// A machine with virtio devices: its bus, and its snapshots.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
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

/// Enables memory decoding of PCI device 1, and sends a full stop on COM1 as often as it finds four queues there;
/// powers off if it does not.
const std::vector<std::uint8_t> keep_counting_queues =
    X86("mov $0x80000804, %eax; mov $0xcf8, %dx; out %eax, (%dx); "
        "mov $2, %eax; mov $0xcfc, %dx; out %eax, (%dx); mov $0xe0000000, %ebx; "
        "2: movzwl 0x12(%rbx), %eax; cmp $4, %ax; jne 1f; "
        "mov $0x3f8, %dx; mov $'.', %al; out %al, (%dx); jmp 2b; "
        "1: mov $0x3400, %eax; mov $0x604, %dx; out %eax, (%dx); 3: jmp 3b");

class VirtioMachine : public testing::Test {
 protected:
  void TearDown() override { ::unlink(path.c_str()); }
  /// `restore`: from `path`, instead of the code.
  Result<std::unique_ptr<Machine>> make(unsigned consoles, const std::vector<std::uint8_t>& code = count_queues,
                                        bool restore = false) {
    const CodeFile file{code};
    Machine::Hooks hooks{.console = [this](std::uint8_t) { ++letters; }, .stop_requested = {}};
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
    MachineConfig config{.kernel = file.path(), .memory_bytes = memory_bytes, .accel = Accel::soft};
    if (restore) config = {.restore = path, .accel = Accel::soft};
    return Machine::create(config, std::move(hooks), log);
  }
  [[nodiscard]] bool hears_more() const {
    const unsigned goal = letters + 10;
    for (unsigned tries = 0; tries < 5000 && letters < goal; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    return letters >= goal;
  }

  /// The first dword of a device's configuration space.
  static std::uint32_t identity(Machine& machine, std::uint32_t device) {
    const std::uint32_t address = 0x8000'0000 | device << 11U;
    std::uint32_t value = 0;
    machine.ports().write({.port = PciBus::address_port, .width = 4, .data = std::as_bytes(std::span{&address, 1})});
    machine.ports().read({.port = PciBus::data_port, .width = 4, .data = std::as_writable_bytes(std::span{&value, 1})});
    return value;
  }

  std::string path{testing::TempDir() + "virtio_machine_" + std::to_string(::getpid())};
  std::atomic<unsigned> letters{};
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

TEST_F(VirtioMachine, IsSavedAndGoesOnWithTheSameDevices) {
  auto machine = *make(2, keep_counting_queues);
  machine->start();
  ASSERT_TRUE(hears_more());
  const auto saved = machine->snapshot(*new_snapshot_file(path));
  ASSERT_TRUE(saved) << describe(saved.error());
  EXPECT_TRUE(hears_more()) << "the snapshot has not stopped it";
  machine.reset();
  auto restored = make(2, {}, true);
  ASSERT_TRUE(restored) << describe(restored.error());
  EXPECT_EQ(identity(**restored, 2), 0x1043'1AF4U);
  (*restored)->start();
  EXPECT_TRUE(hears_more()) << "its bus decodes memory as before";
  EXPECT_EQ((*restored)->stop_reason(), std::nullopt);
  for (const unsigned consoles : {0U, 1U, 3U}) {
    const auto refused = make(consoles, {}, true);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().what, "the snapshot has 2 virtio devices, and this machine " + std::to_string(consoles));
  }
}

}  // namespace
}  // namespace vmm
