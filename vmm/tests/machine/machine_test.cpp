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

#include "fakes/code_file.hpp"
#include "kvm/system.hpp"

namespace vmm {
namespace {

constexpr std::uint64_t mib = 1ULL << 20U;
using test::CodeFile;

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

/// int3 with no IDT: a fault that cannot be delivered, twice.
const std::vector<std::uint8_t> triple_fault{0xCC};
/// pause; jmp .-2
const std::vector<std::uint8_t> spin{0xF3, 0x90, 0xEB, 0xFC};

/// Keeps the thread, and those it starts, on one CPU.
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

/// Kicks its vCPU until a PMI waits there, and then some more.
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
  const std::uint64_t longest = counter("vcpu.longest_kick_us");
  testing::Test::RecordProperty("longest_kick_us", std::to_string(longest));
  EXPECT_LT(longest, 500'000U) << "fifty times as long as it should take on an idle host";
}

class MachineTest : public testing::Test {
 protected:
  explicit MachineTest(Accel accel) : accel_{accel} {}

  std::unique_ptr<Machine> machine_with(const std::vector<std::uint8_t>& code, unsigned cpus = 1,
                                        const std::string& source = "auto") {
    const CodeFile file{code};
    auto machine = Machine::create(
        {.kernel = file.path(), .memory_bytes = 16 * mib, .cpus = cpus, .source = source, .accel = accel_},
        {.console = [this](std::uint8_t byte) { add_letter(byte); }, .stop_requested = [this] { ++stops; }}, log);
    EXPECT_TRUE(machine) << describe(machine.error());
    return machine ? std::move(*machine) : nullptr;
  }

  StopReason run(const std::vector<std::uint8_t>& code, unsigned cpus = 1) {
    const auto machine = machine_with(code, cpus);
    machine->start();
    const auto reason = machine->wait();
    EXPECT_FALSE(machine->failure()) << describe(*machine->failure());
    return reason;
  }

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

  void add_letter(std::uint8_t byte) {
    const std::scoped_lock lock{mutex_};
    console += static_cast<char>(byte);
  }
  std::size_t letters() {
    const std::scoped_lock lock{mutex_};
    return console.size();
  }

  Log log;
  std::string console;
  int stops{0};

 private:
  std::mutex mutex_;
  Accel accel_;
};

class KvmMachine : public MachineTest {
 protected:
  KvmMachine() : MachineTest{Accel::kvm} {}
  void SetUp() override {
    if (const auto system = System::open(); !system) {
      GTEST_SKIP() << describe(system.error());
    }
  }
};

/// Without KVM.
class SoftMachine : public MachineTest {
 protected:
  SoftMachine() : MachineTest{Accel::soft} {}
};

TEST_F(SoftMachine, PowersOffThroughAcpi) {
  EXPECT_EQ(run(out_word(0x604, 5U << 10U | 1U << 13U)), StopReason::power_off);
  EXPECT_EQ(stops, 1);
}

TEST_F(SoftMachine, StopsWhenTheGuestReportsAPanic) { EXPECT_EQ(run(out_word(0x505, 1)), StopReason::guest_panic); }

TEST_F(SoftMachine, DoesNotGoOnFromASnapshot) {
  const std::string path = testing::TempDir() + "soft_machine_" + std::to_string(::getpid());
  const MachineImage image{
      .model = "skylake", .memory_bytes = 16 * mib, .cpus = 1, .threads_per_core = 2, .vcpus = {Bytes{}}};
  ASSERT_TRUE(write_snapshot(*new_snapshot_file(path), image, *GuestMemory::create(16 * mib)));
  const auto machine = Machine::create({.kernel = {}, .restore = path, .accel = Accel::soft}, {}, log);
  ::unlink(path.c_str());
  ASSERT_FALSE(machine);
  EXPECT_NE(describe(machine.error()).find("goes on on KVM only"), std::string::npos) << describe(machine.error());
}

TEST_F(SoftMachine, StopsAtATripleFault) { EXPECT_EQ(run(triple_fault), StopReason::triple_fault); }

TEST_F(SoftMachine, AGuestThatNeverExitsCanBeStoppedAndCounted) {
  const auto machine = machine_with(spin);
  machine->start();
  EXPECT_FALSE(machine->statistics().vcpus.at(0).counters.empty());
  machine->request_stop(StopReason::user);
  EXPECT_EQ(machine->wait(), StopReason::user);
}

// LVTPC is masked as after reset, so that the PMI waits for good.
TEST_F(SoftMachine, AGuestWhosePmiWaitsCanBeStoppedAndCounted) { expect_to_stop_while_a_pmi_waits(); }

// sti; hlt: only a device could wake it.
TEST_F(SoftMachine, AGuestThatWaitsForADeviceCanBeStopped) {
  const auto machine = machine_with({0xFB, 0xF4, 0xEB, 0xFD});
  machine->start();
  EXPECT_FALSE(machine->statistics().vcpus.at(0).counters.empty());
  machine->request_stop(StopReason::user);
  EXPECT_EQ(machine->wait(), StopReason::user);
}

// insb: the user learns what it was.
TEST_F(SoftMachine, AnInstructionThatNobodyKnowsEndsTheRunByName) {
  const auto machine = machine_with({0x6C});
  machine->start();
  EXPECT_EQ(machine->wait(), StopReason::host_failure);
  ASSERT_TRUE(machine->failure());
  EXPECT_NE(machine->failure()->what.find("insb"), std::string::npos) << machine->failure()->what;
}

// cli; hlt
TEST_F(SoftMachine, AGuestThatNothingCanWakeHasEnded) { EXPECT_EQ(run({0xFA, 0xF4}), StopReason::power_off); }

TEST_F(KvmMachine, PowersOffThroughAcpi) {
  EXPECT_EQ(run(out_word(0x604, 5U << 10U | 1U << 13U)), StopReason::power_off);
  EXPECT_EQ(stops, 1);
}

TEST_F(KvmMachine, ResetsThroughTheChipset) { EXPECT_EQ(run(out_word(0xCF9, 6)), StopReason::reset); }

TEST_F(KvmMachine, ResetsThroughTheKeyboardController) { EXPECT_EQ(run(out_word(0x64, 0xFE)), StopReason::reset); }

TEST_F(KvmMachine, StopsWhenTheGuestReportsAPanic) { EXPECT_EQ(run(out_word(0x505, 1)), StopReason::guest_panic); }

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

// On one CPU the vCPU's thread has not run yet when it is asked: the kick finds no vCPU to stop.
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
  // mov $0x3F8, %dx; mov $'K', %al; out %al, %dx; then power-off
  std::vector<std::uint8_t> code{0x66, 0xBA, 0xF8, 0x03, 0xB0, 'K', 0xEE};
  const auto off = out_word(0x604, 5U << 10U | 1U << 13U);
  code.insert(code.end(), off.begin(), off.end());
  EXPECT_EQ(run(code), StopReason::power_off);
  EXPECT_EQ(console, "K");
}

/// Sends the alphabet over and over on COM1, a letter a turn of a loop: mov $0x3F8, %edx; mov $'a', %eax; 1: out %al,
/// %dx; mov $1000, %ecx; 2: pause; loop 2b; inc %eax; cmp $'z'+1, %eax; jne 1b; mov $'a', %eax; jmp 1b
const std::vector<std::uint8_t> alphabet{0xBA,    0xF8, 0x03, 0,    0,    0xB8, 'a',  0,    0,    0,    0xEE, 0xB9,
                                         0xE8,    0x03, 0,    0,    0xF3, 0x90, 0xE2, 0xFC, 0xFF, 0xC0, 0x83, 0xF8,
                                         'z' + 1, 0x75, 0xEF, 0xB8, 'a',  0,    0,    0,    0xEB, 0xE8};

/// Where `text` is not the alphabet over and over.
std::optional<std::size_t> first_wrong_letter(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] != static_cast<char>('a' + i % 26)) return i;
  return std::nullopt;
}

TEST_F(KvmMachine, GoesOnFromASnapshotAtTheVeryInstruction) {
  const std::string path = testing::TempDir() + "machine_snapshot_" + std::to_string(::getpid());
  auto machine = machine_with(alphabet);
  machine->start();
  const auto wait_for_letters = [&](std::size_t more) {
    const auto goal = letters() + more;
    for (int tries = 0; tries < 5000 && letters() < goal; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
    EXPECT_GE(letters(), goal);
  };
  wait_for_letters(100);
  const auto copied = machine->snapshot(*new_snapshot_file(path));
  ASSERT_TRUE(copied) << describe(copied.error());
  wait_for_letters(100);  // it runs on
  ASSERT_TRUE(machine->snapshot(*new_snapshot_file(path), Machine::AfterSnapshot::stop));
  EXPECT_EQ(machine->wait(), StopReason::user);
  const std::size_t before = letters();
  machine.reset();
  auto restored = Machine::create(
      {.kernel = "", .restore = path},
      {.console = [this](std::uint8_t byte) { add_letter(byte); }, .stop_requested = [this] { ++stops; }}, log);
  ASSERT_TRUE(restored) << describe(restored.error());
  (*restored)->start();
  wait_for_letters(100);
  (*restored)->request_stop(StopReason::user);
  EXPECT_EQ((*restored)->wait(), StopReason::user);
  ::unlink(path.c_str());
  EXPECT_GT(letters(), before);
  EXPECT_EQ(first_wrong_letter(console), std::nullopt) << console << "\nsnapshot after " << before;
}

TEST_F(SoftMachine, CannotBeSavedAndSaysWhy) {
  const auto machine = machine_with(spin);
  machine->start();
  const std::string path = testing::TempDir() + "no_snapshot_" + std::to_string(::getpid());
  const auto refused = machine->snapshot(*new_snapshot_file(path));
  ASSERT_FALSE(refused);
  EXPECT_NE(describe(refused.error()).find("only machines on KVM"), std::string::npos) << describe(refused.error());
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
  EXPECT_FALSE(machine->stop_reason()) << "it runs on";
  machine->request_stop(StopReason::user);
  EXPECT_EQ(machine->wait(), StopReason::user);
  EXPECT_FALSE(machine->snapshot(*new_snapshot_file(path))) << "it has stopped";
}

TEST_F(KvmMachine, AMachineThatNeverStartedGoesAwayQuietly) { EXPECT_NE(machine_with(spin), nullptr); }

TEST(Machine, WithoutAKvmDeviceSaysSo) {
  const CodeFile file{spin};
  Log log;
  const auto machine =
      Machine::create({.kernel = file.path(), .memory_bytes = 16 * mib, .kvm_device = "/dev/null"}, {}, log);
  ASSERT_FALSE(machine);
  EXPECT_EQ(machine.error().kind, ErrorKind::host);
  EXPECT_NE(machine.error().what.find("/dev/null is not the KVM device"), std::string::npos) << machine.error().what;
}

}  // namespace
}  // namespace vmm
