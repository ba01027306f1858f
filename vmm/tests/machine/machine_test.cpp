#include "machine/machine.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/code_file.hpp"
#include "kvm/system.hpp"
#include "machine/machine_fixture.hpp"

namespace vmm {
namespace {

using test::CodeFile;
using test::MachineTest;
using test::mib;

/// mov $port, %dx; mov $value, %eax; out %ax, %dx; hlt; jmp .-1
std::vector<std::uint8_t> out_word(std::uint16_t port, std::uint16_t value) {
  return {0x66,
          0xBA,
          static_cast<std::uint8_t>(port),
          static_cast<std::uint8_t>(port >> 8U),
          0xB8,
          static_cast<std::uint8_t>(value),
          static_cast<std::uint8_t>(value >> 8U),
          0,
          0,
          0x66,
          0xEF,
          0xF4,
          0xEB,
          0xFD};
}

/// int3 without an IDT: neither it nor the double fault can be delivered.
const std::vector<std::uint8_t> triple_fault = X86("int3");
const std::vector<std::uint8_t> spin = X86("1: pause; jmp 1b");

/// Keeps this thread, and the threads that it starts, on one CPU.
class OnOneCpu {
 public:
  OnOneCpu() {
    EXPECT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(::sched_getcpu()), &one);
    EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~OnOneCpu() { ::sched_setaffinity(0, sizeof before_, &before_); }
  OnOneCpu(const OnOneCpu&) = delete;
  OnOneCpu& operator=(const OnOneCpu&) = delete;

 private:
  cpu_set_t before_{};
};

/// Kicks the machine's vCPU, by asking for its counters, until a PMI waits there, and 20 times more.
void expect_kicks_to_be_seen(Machine& machine) {
  using namespace std::chrono_literals;
  const auto counter = [&](std::string_view name) {
    const auto all = machine.statistics().vcpus.at(0).counters;
    const auto found = std::ranges::find(all, name, &Statistic::name);
    EXPECT_NE(found, all.end()) << name;
    return found == all.end() ? 0 : found->value;
  };
  for (int tries = 0; tries < 500 && counter("pmu.pmi.requested") == 0; ++tries) std::this_thread::sleep_for(10ms);
  EXPECT_GT(counter("pmu.pmi.requested"), 0U);
  EXPECT_EQ(counter("pmu.pmi.fixed") + counter("pmu.pmi.nmi"), 0U);
  for (int n = 0; n < 20; ++n) counter("vcpu.late_kicks");
  const std::uint64_t max = counter("vcpu.longest_kick_us");
  testing::Test::RecordProperty("longest_kick_us", std::to_string(max));
  EXPECT_LT(max, 500'000U) << "fifty times as long as it should take on an idle host";
}

/// A multiboot kernel. If EAX has the magic value, it writes its command line and the first byte of its module to COM1.
/// It writes 0 to the exit port if it also runs in protected mode without paging, else another value.
const std::vector<std::uint8_t> multiboot_kernel = X86_32(
    "cmp $0x2BADB002, %eax; "
    "jne 5f; "
    "mov 16(%ebx), %esi; "
    "mov $0x3F8, %edx; "
    "1: lodsb; test %al, %al; "
    "je 2f; "
    "out %al, (%dx); jmp 1b; "
    "2: mov 24(%ebx), %eax; "
    "mov (%eax), %esi; lodsb; out %al, (%dx); "
    "mov %cr0, %eax; "
    "and $0x80000001, %eax; "
    "dec %eax; "
    "3: mov $0xF4, %edx; "
    "out %eax, (%dx); 4: hlt; jmp 4b; "
    "5: mov $1, %eax; "
    "jmp 3b");

class MachineOfBoth : public MachineTest {
 protected:
  using MachineTest::MachineTest;
  void expect_to_stop_while_a_pmi_waits() {
    for (const std::string source : {"exact", "step", "clock"}) {
      SCOPED_TRACE(source);
      const auto machine = machine_with(test::pmi_that_waits, 1, source);
      machine->start();
      expect_kicks_to_be_seen(*machine);
      machine->request_stop(StopReason::user);
      EXPECT_EQ(machine->wait(), StopReason::user);
    }
  }
  void expect_multiboot() {
    const CodeFile file{multiboot_kernel, CodeFile::Kind::multiboot};
    MachineConfig config{.kernel = file.path(), .command_line = "hello ", .memory_bytes = 16 * mib, .accel = accel()};
    config.initrd_content = std::make_shared<const std::vector<std::byte>>(5, std::byte{'!'});
    auto machine = Machine::create(config, {.console = [this](std::uint8_t byte) { add_letter(byte); }}, log);
    ASSERT_TRUE(machine) << describe(machine.error());
    (*machine)->start();
    EXPECT_EQ((*machine)->wait(), StopReason::power_off);
    EXPECT_EQ(console, "hello !");
  }
};

class KvmMachine : public MachineOfBoth {
 protected:
  KvmMachine() : MachineOfBoth{Accel::kvm} {}
  void SetUp() override {
    if (const auto system = System::open(); !system) {
      GTEST_SKIP() << describe(system.error());
    }
  }
};

/// Without KVM.
class SoftMachine : public MachineOfBoth {
 protected:
  SoftMachine() : MachineOfBoth{Accel::soft} {}
};

TEST_F(SoftMachine, PowersOffThroughAcpi) {
  EXPECT_EQ(run(out_word(0x604, 5U << 10U | 1U << 13U)), StopReason::power_off);
  EXPECT_EQ(stops, 1);
}

TEST_F(SoftMachine, StopsWhenTheGuestReportsAPanic) { EXPECT_EQ(run(out_word(0x505, 1)), StopReason::guest_panic); }

TEST_F(SoftMachine, StopsWhenTheGuestSaysThatItFailed) { EXPECT_EQ(run(out_word(0xF4, 1)), StopReason::guest_failed); }

TEST_F(SoftMachine, StartsAMultibootKernel) { expect_multiboot(); }

TEST_F(SoftMachine, StopsAtATripleFault) { EXPECT_EQ(run(triple_fault), StopReason::triple_fault); }

TEST_F(SoftMachine, AGuestThatNeverExitsCanBeStoppedAndCounted) {
  const auto machine = machine_with(spin);
  machine->start();
  EXPECT_FALSE(machine->statistics().vcpus.at(0).counters.empty());
  machine->request_stop(StopReason::user);
  EXPECT_EQ(machine->wait(), StopReason::user);
}

// LVTPC is masked, as after reset, so that the PMI waits for ever.
TEST_F(SoftMachine, AGuestWhosePmiWaitsCanBeStoppedAndCounted) { expect_to_stop_while_a_pmi_waits(); }

// Only a device could wake it.
TEST_F(SoftMachine, AGuestThatWaitsForADeviceCanBeStopped) {
  const auto machine = machine_with(X86("sti; 1: hlt; jmp 1b"));
  machine->start();
  EXPECT_FALSE(machine->statistics().vcpus.at(0).counters.empty());
  machine->request_stop(StopReason::user);
  EXPECT_EQ(machine->wait(), StopReason::user);
}

// No model has ENCLS: #UD, for which this guest has no handler.
TEST_F(SoftMachine, AnInstructionThatNoModelHasIsUndefined) { EXPECT_EQ(run(X86("encls")), StopReason::triple_fault); }

TEST_F(SoftMachine, AGuestThatNothingCanWakeHasEnded) { EXPECT_EQ(run(X86("cli; hlt")), StopReason::power_off); }

TEST_F(KvmMachine, PowersOffThroughAcpi) {
  EXPECT_EQ(run(out_word(0x604, 5U << 10U | 1U << 13U)), StopReason::power_off);
  EXPECT_EQ(stops, 1);
}

TEST_F(KvmMachine, ResetsThroughTheChipset) { EXPECT_EQ(run(out_word(0xCF9, 6)), StopReason::reset); }

TEST_F(KvmMachine, ResetsThroughTheKeyboardController) { EXPECT_EQ(run(out_word(0x64, 0xFE)), StopReason::reset); }

TEST_F(KvmMachine, StopsWhenTheGuestReportsAPanic) { EXPECT_EQ(run(out_word(0x505, 1)), StopReason::guest_panic); }

TEST_F(KvmMachine, StartsAMultibootKernel) { expect_multiboot(); }

TEST_F(KvmMachine, StopsAtATripleFault) { EXPECT_EQ(run(triple_fault), StopReason::triple_fault); }

TEST_F(KvmMachine, StopsOtherVcpusThatNeverStarted) { EXPECT_EQ(run(out_word(0xCF9, 6), 4), StopReason::reset); }

TEST_F(KvmMachine, AGuestThatNeverExitsCanBeStoppedAndCounted) {
  const auto machine = machine_with(spin, 2);
  machine->start();
  const auto statistics = machine->statistics();
  ASSERT_EQ(statistics.vcpus.size(), 2U);
  EXPECT_EQ(statistics.vcpus[1].id, 1U);
  EXPECT_FALSE(statistics.vcpus[0].counters.empty());
  EXPECT_FALSE(machine->stop_reason());
  machine->request_stop(StopReason::user);
  machine->request_stop(StopReason::reset);
  EXPECT_EQ(machine->wait(), StopReason::user) << "the first reason counts";
  EXPECT_FALSE(machine->statistics().vcpus[0].counters.empty()) << "counters survive the end";
}

TEST_F(KvmMachine, AGuestWhosePmiWaitsCanBeStoppedAndCounted) { expect_to_stop_while_a_pmi_waits(); }

// On one CPU the vCPU's thread has not run yet when its counters are asked for: the kick finds no vCPU to stop.
TEST_F(KvmMachine, AVcpuIsCountedBeforeItsThreadHasBegun) {
  const OnOneCpu here;
  for (int round = 0; round < 5; ++round) {
    const auto machine = machine_with(spin);
    machine->start();
    EXPECT_FALSE(machine->statistics().vcpus.at(0).counters.empty());
    machine->request_stop(StopReason::user);
    EXPECT_EQ(machine->wait(), StopReason::user);
  }
}

TEST_F(KvmMachine, ConsoleOutputArrives) {
  // And then power-off.
  std::vector<std::uint8_t> code = X86("mov $0x3F8, %dx; mov $'K', %al; out %al, (%dx)");
  const auto off = out_word(0x604, 5U << 10U | 1U << 13U);
  code.insert(code.end(), off.begin(), off.end());
  EXPECT_EQ(run(code), StopReason::power_off);
  EXPECT_EQ(console, "K");
}

TEST_F(KvmMachine, AMachineThatNeverStartedGoesAwayQuietly) { EXPECT_NE(machine_with(spin), nullptr); }

TEST(Machine, WithoutAKvmDeviceSaysSo) {
  const CodeFile file{spin};
  Log log;
  const auto machine = Machine::create(
      {.kernel = file.path(), .memory_bytes = 16 * mib, .accel = Accel::kvm, .kvm_device = "/dev/null"}, {}, log);
  ASSERT_FALSE(machine);
  EXPECT_EQ(machine.error().kind, ErrorKind::host);
  EXPECT_NE(machine.error().what.find("/dev/null is not the KVM device"), std::string::npos) << machine.error().what;
}

}  // namespace
}  // namespace vmm
