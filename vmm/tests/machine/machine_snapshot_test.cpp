// Whole machines that are saved and restored.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "kvm/system.hpp"
#include "machine/machine_fixture.hpp"
#include "model/own_part.hpp"

namespace vmm::test {
namespace {

/// Sends the alphabet over and over on COM1, a letter per iteration.
const std::vector<std::uint8_t> alphabet =
    X86("mov $0x3F8, %edx; mov $'a', %eax; "
        "1: out %al, (%dx); mov $1000, %ecx; "
        "2: pause; loop 2b; inc %eax; cmp $'z' + 1, %eax; jne 1b; mov $'a', %eax; jmp 1b");

/// Index of the first letter by which `text` differs from the repeated alphabet.
std::optional<std::size_t> first_wrong_letter(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] != static_cast<char>('a' + i % 26)) return i;
  return std::nullopt;
}

class Snapshots : public MachineTest {
 protected:
  explicit Snapshots(Accel accel) : MachineTest{accel} {}
  void TearDown() override { ::unlink(path_.c_str()); }
  void wait_for_letters(std::size_t more) {
    const auto goal = letters() + more;
    for (int tries = 0; tries < 5000 && letters() < goal; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
    EXPECT_GE(letters(), goal);
  }
  Result<std::unique_ptr<Machine>> restored(MachineConfig config = {}) {
    config.restore = path_;
    config.accel = accel();
    return Machine::create(
        config, {.console = [this](std::uint8_t byte) { add_letter(byte); }, .stop_requested = [this] { ++stops; }},
        log);
  }
  void expect_to_go_on() {
    auto machine = machine_with(alphabet);
    machine->start();
    wait_for_letters(100);
    const auto copied = machine->snapshot(*new_snapshot_file(path_));
    ASSERT_TRUE(copied) << describe(copied.error());
    wait_for_letters(100);  // the snapshot has not stopped it
    ASSERT_TRUE(machine->snapshot(*new_snapshot_file(path_), Machine::AfterSnapshot::stop));
    EXPECT_EQ(machine->wait(), StopReason::user);
    EXPECT_FALSE(machine->snapshot(*new_snapshot_file(path_))) << "it has stopped";
    const std::size_t before = letters();
    machine.reset();
    auto goes_on = restored();
    ASSERT_TRUE(goes_on) << describe(goes_on.error());
    (*goes_on)->start();
    wait_for_letters(100);
    (*goes_on)->request_stop(StopReason::user);
    EXPECT_EQ((*goes_on)->wait(), StopReason::user);
    EXPECT_GT(letters(), before);
    EXPECT_EQ(first_wrong_letter(console), std::nullopt) << console << "\nsnapshot after " << before;
  }

  std::string path_{testing::TempDir() + "machine_snapshot_" + std::to_string(::getpid())};
};

class KvmSnapshots : public Snapshots {
 protected:
  KvmSnapshots() : Snapshots{Accel::kvm} {}
  void SetUp() override {
    if (const auto system = System::open(); !system) GTEST_SKIP() << describe(system.error());
  }
};
/// The same while a counter counts cycles, and the loop loads from a line that it flushes.
std::vector<std::uint8_t> counting_alphabet() {
  std::vector<std::uint8_t> code =
      X86("mov $0x186, %ecx; mov $0x43003C, %eax; xor %edx, %edx; wrmsr; "  // PERFEVTSEL0
          "mov $0x38F, %ecx; mov $1, %eax; wrmsr");                         // GLOBAL_CTRL
  const std::vector<std::uint8_t> loop =
      X86("mov $0x3F8, %edx; mov $'a', %eax; "
          "1: out %al, (%dx); mov $100, %ecx; "
          "2: clflush 0x200000; mov 0x200000, %ebx; loop 2b; inc %eax; cmp $'z' + 1, %eax; jne 1b; mov $'a', %eax; "
          "jmp 1b");
  code.insert(code.end(), loop.begin(), loop.end());
  return code;
}

class SoftSnapshots : public Snapshots {
 protected:
  SoftSnapshots() : Snapshots{Accel::soft} {}
  /// Runs the machine that writes the alphabet for `ticks` instructions, and saves it.
  void save_after(std::uint64_t ticks, unsigned cpus = 1, std::string_view set = {}, TimeModel time = {}) {
    const bool counts = time == TimeModel::pipeline;
    const CodeFile file{counts ? counting_alphabet() : alphabet};
    std::unique_ptr<Machine> machine;
    std::atomic<bool> is_up{};
    vpmu::uarch::ProfileChanges changes;
    ASSERT_TRUE(set.empty() || add_changes(set, changes));
    auto made = Machine::create({.kernel = file.path(),
                                 .memory_bytes = 16 * mib,
                                 .cpus = cpus,
                                 .source_options = {.time = time, .changes = changes},
                                 .accel = Accel::soft,
                                 .epoch = 1'000'000'000,
                                 .max_ticks = ticks,
                                 .schedule = Schedule{.turn = 777, .seed = 5}},
                                {.console = [this](std::uint8_t byte) { add_letter(byte); },
                                 .stop_requested = [this] { ++stops; },
                                 .time_up = [&is_up] { is_up = true; }},
                                log);
    ASSERT_TRUE(made) << describe(made.error());
    machine = std::move(*made);
    machine->start();
    for (int tries = 0; tries < 5000 && !is_up; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds{2});
    ASSERT_TRUE(is_up);
    EXPECT_FALSE(machine->statistics().vcpus.at(0).counters.empty()) << "it answers meanwhile";
    const auto saved = machine->snapshot(*new_snapshot_file(path_), Machine::AfterSnapshot::stop);
    ASSERT_TRUE(saved) << describe(saved.error());
    EXPECT_EQ(machine->wait(), StopReason::user);
  }
  std::string refusal(const MachineConfig& config) {
    const auto machine = Machine::create(config, {}, log);
    return machine ? std::string{} : describe(machine.error());
  }
};

TEST_F(KvmSnapshots, GoOnAtTheVeryInstruction) { expect_to_go_on(); }
TEST_F(SoftSnapshots, GoOnAtTheVeryInstruction) { expect_to_go_on(); }

// A machine writes the same letters up to the end of its time, whenever it was saved and restored on the way.
TEST_F(SoftSnapshots, AreTakenAtAnyInstruction) {
  constexpr std::uint64_t all = 50'000;
  save_after(all);
  const std::string expected = console;
  ASSERT_GT(expected.size(), 20U);
  for (const std::uint64_t ticks : {1U, 2003U, 2004U, 2005U, 30'000U}) {
    console.clear();
    save_after(ticks, 2);
    EXPECT_LT(console.size(), expected.size());
    auto machine = restored({.max_ticks = all});
    ASSERT_TRUE(machine) << describe(machine.error());
    EXPECT_EQ((*machine)->cpus(), 2U);
    (*machine)->start();
    EXPECT_EQ((*machine)->wait(), StopReason::user);
    EXPECT_EQ(console, expected) << "saved after " << ticks;
  }
}

TEST_F(SoftSnapshots, HaveTheScheduleAndTheTimeOfDay) {
  save_after(1000, 2);
  const auto image = SnapshotReader::open(path_);
  ASSERT_TRUE(image);
  EXPECT_TRUE(image->image().without_kvm);
  EXPECT_EQ(image->image().epoch, 1'000'000'000);
  EXPECT_EQ(image->image().turn, 777U);
  EXPECT_EQ(image->image().turn_seed, 5U);
  EXPECT_TRUE(restored({.schedule = Schedule{.turn = 10}})) << "another schedule is as good";
}

TEST_F(SoftSnapshots, GoOnWithTheProcessorThatTheyHad) {
  save_after(1000, 1, "l3=16M");
  const auto snapshot = SnapshotReader::open(path_);
  ASSERT_TRUE(snapshot);
  MachineImage image = snapshot->image();
  EXPECT_EQ(image.changes, "l3=16M");
  const auto asked = [this](std::string_view set, std::string source = "auto") {
    MachineConfig config{.restore = path_, .source = std::move(source), .accel = Accel::soft};
    EXPECT_TRUE(set.empty() || add_changes(set, config.source_options.changes));
    return refusal(config);
  };
  EXPECT_EQ(asked(""), "");
  EXPECT_EQ(asked("l3=16384K"), "") << "the same";
  EXPECT_EQ(asked("l3=8M"), fmt::format("the machine saved in {} has l3=16M, not l3=8M; leave --set away: it goes on "
                                        "as it was saved",
                                        path_));
  EXPECT_NE(asked("", "clock").find("and the source clock has no processor model; give --source exact"),
            std::string::npos);
  auto machine = restored();
  ASSERT_TRUE(machine) << describe(machine.error());
  (*machine)->start();
  wait_for_letters(100);
  ASSERT_TRUE((*machine)->snapshot(*new_snapshot_file(path_), Machine::AfterSnapshot::stop));
  EXPECT_EQ((*machine)->wait(), StopReason::user);
  const auto again = SnapshotReader::open(path_);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->image().changes, "l3=16M") << "it still has it";
  for (const char* set : {"l3=1000000M", "l9=1", "l3=64K", "dram=50\n"}) {
    image.changes = set;
    ASSERT_TRUE(write_snapshot(*new_snapshot_file(path_), image, *GuestMemory::create(16 * mib)));
    const std::string why = asked("");
    EXPECT_NE(why, "") << set;
    EXPECT_EQ(why.find('\n'), std::string::npos) << why;
  }
  save_after(1000);
  EXPECT_NE(asked("l3=16M").find("has its model's own parameters, not l3=16M; leave --set away"), std::string::npos);
}

// The model's state, which depends on its sizes and times, is in the vCPU's.
TEST_F(SoftSnapshots, GoOnWithTheModelThatCounts) {
  constexpr std::uint64_t all = 500'000;
  constexpr auto pipeline = TimeModel::pipeline;
  save_after(all, 1, "l3=1M,dram=300", pipeline);
  const std::string slow = console;
  const auto small = SnapshotReader::open(path_);
  ASSERT_TRUE(small);
  console.clear();
  save_after(all, 1, "l3=4M,dram=100", pipeline);
  EXPECT_GT(console.size(), slow.size() * 3 / 2) << "its memory is quicker";
  const auto large = SnapshotReader::open(path_);
  ASSERT_TRUE(large);
  EXPECT_GT(large->image().vcpus[0].size(), small->image().vcpus[0].size() + (100U << 10)) << "so is its L3 larger";
  console.clear();
  save_after(200'001, 1, "l3=1M,dram=300", pipeline);
  auto machine = restored({.max_ticks = all});
  ASSERT_TRUE(machine) << describe(machine.error());
  (*machine)->start();
  EXPECT_EQ((*machine)->wait(), StopReason::user);
  EXPECT_EQ((*machine)->failure(), std::nullopt) << describe(*(*machine)->failure());
  EXPECT_EQ(console, slow) << "as one that was not saved";
  MachineImage image = small->image();
  image.changes = "l3=2M,dram=300";
  ASSERT_TRUE(write_snapshot(*new_snapshot_file(path_), image, *GuestMemory::create(16 * mib)));
  auto other = restored();
  ASSERT_TRUE(other);
  (*other)->start();
  EXPECT_EQ((*other)->wait(), StopReason::host_failure) << "that is no state of such a model";
}

TEST_F(SoftSnapshots, GoOnOnlyOnWhatTheyRanOn) {
  save_after(1000);
  EXPECT_NE(refusal({.restore = path_, .accel = Accel::kvm}).find("ran without KVM; give --accel soft"),
            std::string::npos);
  auto snapshot = SnapshotReader::open(path_);
  ASSERT_TRUE(snapshot);
  MachineImage image = snapshot->image();
  const auto write = [&] {
    ASSERT_TRUE(write_snapshot(*new_snapshot_file(path_), image, *GuestMemory::create(16 * mib)));
  };
  image.turn = 0;
  write();
  EXPECT_NE(refusal({.restore = path_, .accel = Accel::soft}).find("vCPU turns: 0 ticks"), std::string::npos);
  image.turn = 1;
  image.chips.pop_back();
  write();
  EXPECT_NE(refusal({.restore = path_, .accel = Accel::soft}).find("the snapshot's state of the chips"),
            std::string::npos);
  image.without_kvm = false;
  write();
  EXPECT_NE(refusal({.restore = path_, .accel = Accel::soft}).find("ran on KVM; give --accel kvm"), std::string::npos);
}

// A vCPU's bad state is only found on the vCPU's thread, after the machine was made.
TEST_F(SoftSnapshots, WithABadVcpuEndTheMachine) {
  save_after(1000);
  auto snapshot = SnapshotReader::open(path_);
  ASSERT_TRUE(snapshot);
  MachineImage image = snapshot->image();
  image.vcpus[0].resize(image.vcpus[0].size() / 2);
  ASSERT_TRUE(write_snapshot(*new_snapshot_file(path_), image, *GuestMemory::create(16 * mib)));
  const auto machine = restored();
  ASSERT_TRUE(machine);
  (*machine)->start();
  EXPECT_EQ((*machine)->wait(), StopReason::host_failure);
  EXPECT_NE(describe((*machine)->failure().value()).find("vCPU 0 is cut short"), std::string::npos);
}

}  // namespace
}  // namespace vmm::test
