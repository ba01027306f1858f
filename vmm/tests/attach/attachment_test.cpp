#include "attach/attachment.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "attach/carried_state.hpp"
#include "fakes/fake_kvm.hpp"

namespace vmm::test {
namespace {

constexpr std::uint32_t pmc0 = 0xC1, perfevtsel0 = 0x186;
constexpr std::uint64_t kernel_instructions = 0x4200C0;

/// A VMM that knows nothing of the library, and the library.
class AttachmentTest : public testing::Test {
 protected:
  int call(int fd, unsigned long request, std::uintptr_t argument = 0) { return attachment.call(fd, request, argument); }
  template <class T>
  int call_with(int fd, unsigned long request, T& argument) {
    return attachment.call(fd, request, reinterpret_cast<std::uintptr_t>(&argument));
  }
  void close_both(int fd) {
    attachment.closing(fd);
    ::close(fd);
  }
  int make_vm() { return call(kvm.system(), KVM_CREATE_VM); }
  int make_vcpu(int vm, unsigned id = 0) { return call(vm, KVM_CREATE_VCPU, id); }
  /// Runs until the VMM has an exit of its own, a halt.
  void run_to_halt(int vcpu) {
    ASSERT_EQ(call(vcpu, KVM_RUN), 0);
    EXPECT_EQ(FakeKvm::run_page(vcpu).exit_reason, std::uint32_t{KVM_EXIT_HLT});
  }
  /// As a VMM does that has something else to do with the vCPU: only then are its counters told.
  std::map<std::string, std::uint64_t> counters_of(int vm_line, int vcpu) {
    FakeKvm::ask_to_come_out(vcpu);
    EXPECT_EQ(call(vcpu, KVM_RUN), -1);
    EXPECT_EQ(errno, EINTR);
    return counters_in(vm_line);
  }
  std::map<std::string, std::uint64_t> counters_in(int line_number) {
    attachment.write_statistics();
    std::ifstream file{statistics};
    std::string line;
    for (int n = 0; n <= line_number; ++n) std::getline(file, line);
    std::map<std::string, std::uint64_t> found;
    const std::size_t last_vcpu = line.rfind("\"id\"");
    for (std::size_t at = last_vcpu; at != std::string::npos && at < line.size();) {
      const std::size_t begin = line.find('"', at), end = line.find('"', begin + 1);
      if (begin == std::string::npos) break;
      found[line.substr(begin + 1, end - begin - 1)] = std::strtoull(line.c_str() + end + 2, nullptr, 10);
      at = end + 1;
    }
    return found;
  }
  [[nodiscard]] int lines_of_statistics() {
    attachment.write_statistics();
    std::ifstream file{statistics};
    int lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }
  void TearDown() override { std::filesystem::remove(statistics); }

  FakeKvm kvm;
  std::vector<std::string> warnings;
  Log log{[this](LogLevel, std::string_view line) { warnings.emplace_back(line); }, LogLevel::warning};
  std::string statistics{std::filesystem::temp_directory_path() / ("vpmu-attach-stats-" + std::to_string(::getpid()))};
  Attachment attachment{{.model = find_machine_model("haswell"), .source = "clock"}, statistics, log};
};

TEST_F(AttachmentTest, AnExitOfThePmuIsAnsweredAndDoesNotComeOut) {
  const int vm = make_vm(), vcpu = make_vcpu(vm);
  kvm_run answer{};
  kvm.vcpu(vcpu).script = {FakeKvm::writes(pmc0, 0x1234), FakeKvm::reads(pmc0), [&](kvm_run& run) {
                             answer = run;
                             run.exit_reason = KVM_EXIT_HLT;
                           }};
  run_to_halt(vcpu);
  EXPECT_EQ(answer.msr.data, 0x1234U);
  EXPECT_EQ(answer.msr.error, 0U);
}

void at_a_device(kvm_run& run) { run.exit_reason = KVM_EXIT_IO; }

TEST_F(AttachmentTest, AnExitToADeviceCostsNoMoreThanKvmsRun) {
  const int vcpu = make_vcpu(make_vm());
  kvm.vcpu(vcpu).script = {at_a_device, at_a_device, at_a_device};
  ASSERT_EQ(call(vcpu, KVM_RUN), 0);
  const auto requests = kvm.requests.size();
  for (int n = 0; n < 2; ++n) {
    ASSERT_EQ(call(vcpu, KVM_RUN), 0);
    EXPECT_EQ(FakeKvm::run_page(vcpu).exit_reason, std::uint32_t{KVM_EXIT_IO});
  }
  EXPECT_EQ(kvm.requests.size(), requests + 2);
}

TEST_F(AttachmentTest, APmuThatIsTakenIntoUseBetweenExitsToDevicesCounts) {
  const int vcpu = make_vcpu(make_vm());
  kvm_run answer{};
  kvm.vcpu(vcpu).script = {at_a_device, FakeKvm::writes(perfevtsel0, kernel_instructions), FakeKvm::writes(0x38F, 1), at_a_device,
                           FakeKvm::reads(perfevtsel0), [&](kvm_run& run) {
                             answer = run;
                             at_a_device(run);
                           }};
  for (int n = 0; n < 3; ++n) ASSERT_EQ(call(vcpu, KVM_RUN), 0);
  EXPECT_EQ(answer.msr.data, kernel_instructions);
  EXPECT_EQ(counters_of(0, vcpu)["pmu.exits.wrmsr"], 2U);
}

// A thread keeps what it has run last. Whoever closes is another one here.
TEST_F(AttachmentTest, AThreadKeepsAVmNoLongerThanItself) {
  const int vm = make_vm(), vcpu = make_vcpu(vm);
  std::thread runner{[&] {
    run_to_halt(vcpu);
    std::thread{[&] {
      close_both(vcpu);
      close_both(vm);
    }}.join();
    EXPECT_FALSE(FakeKvm::alive().empty());
  }};
  runner.join();
  EXPECT_EQ(FakeKvm::alive(), std::vector<std::string>{});
}

TEST_F(AttachmentTest, AVcpuThatIsClosedIsRunNoMore) {
  const int vm = make_vm(), vcpu = make_vcpu(vm);
  run_to_halt(vcpu);
  attachment.closing(vcpu);
  kvm.vcpu(vcpu).script = {FakeKvm::reads(pmc0)};
  EXPECT_EQ(call(vcpu, KVM_RUN), 0);
  EXPECT_EQ(FakeKvm::run_page(vcpu).exit_reason, std::uint32_t{KVM_EXIT_X86_RDMSR}) << "nobody answers that any more";
  ::close(vcpu);
}

TEST_F(AttachmentTest, AVmThatIsClosedGoes) {
  const int vm = make_vm();
  const std::array vcpus{make_vcpu(vm, 0), make_vcpu(vm, 1)};
  for (const int vcpu : vcpus) run_to_halt(vcpu);
  EXPECT_FALSE(FakeKvm::alive().empty());
  close_both(vm);
  run_to_halt(vcpus[0]);  // KVM keeps a VM for as long as one of its vCPUs is open
  for (const int vcpu : vcpus) close_both(vcpu);
  EXPECT_EQ(FakeKvm::alive(), std::vector<std::string>{});
  EXPECT_EQ(lines_of_statistics(), 1) << "what it counted stays";
}

TEST_F(AttachmentTest, AVcpuThatIsClosedWhileItsVmGoesOn) {
  const int vm = make_vm(), vcpu = make_vcpu(vm, 0), other = make_vcpu(vm, 1);
  run_to_halt(vcpu);
  close_both(vcpu);
  run_to_halt(other);
  EXPECT_EQ(lines_of_statistics(), 1);
}

// A VMM may close by other means than close(), and a number may come back as something else.
TEST_F(AttachmentTest, ANumberThatIsUsedAgainStandsForTheNewOne) {
  const int old_vm = make_vm(), old_vcpu = make_vcpu(old_vm);
  ::close(old_vm);
  ::close(old_vcpu);
  const int taken = ::dup(kvm.system());
  ASSERT_EQ(taken, old_vm);
  const int vm = make_vm();
  ASSERT_EQ(vm, old_vcpu) << "a VM where a vCPU was";
  const auto filters = kvm.count(KVM_X86_SET_MSR_FILTER);
  const int vcpu = make_vcpu(vm);
  EXPECT_EQ(kvm.count(KVM_X86_SET_MSR_FILTER), filters + 1) << "it has been prepared for its PMU";
  run_to_halt(vcpu);
  ::close(taken);
  ::close(vm);
  const int again = make_vm();
  ASSERT_EQ(again, old_vm);
  run_to_halt(make_vcpu(again));
  EXPECT_EQ(kvm.count(KVM_X86_SET_MSR_FILTER), filters + 2);
}

TEST_F(AttachmentTest, AVcpuThatCannotBeAttachedLeavesNothingOpen) {
  const int vm = make_vm();
  const auto open_files = [] { return std::distance(std::filesystem::directory_iterator{"/proc/self/fd"}, std::filesystem::directory_iterator{}); };
  const auto before = open_files();
  kvm.vcpus_can_be_mapped = false;
  EXPECT_EQ(make_vcpu(vm), -1);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(open_files(), before);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("vCPU 0: mmap of kvm_run"), std::string::npos) << warnings[0];
}

TEST_F(AttachmentTest, AVmThatCannotBePreparedGetsNoVcpu) {
  kvm.errors[KVM_X86_SET_MSR_FILTER] = EINVAL;
  EXPECT_EQ(make_vcpu(make_vm()), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(kvm.count(KVM_CREATE_VCPU), 0);
}

// A debugger that only sets its breakpoints and takes them back: KVM has them until it is told.
TEST_F(AttachmentTest, BreakpointsThatWereOnlySetAreTakenFromKvm) {
  const int vcpu = make_vcpu(make_vm());
  for (const bool has_run : {false, true}) {
    SCOPED_TRACE(has_run);
    kvm_guest_debug how{.control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_SW_BP, .pad = 0, .arch = {}};
    EXPECT_EQ(call_with(vcpu, KVM_SET_GUEST_DEBUG, how), 0);
    EXPECT_EQ(kvm.vcpu(vcpu).debug.control, how.control);
    how.control = 0;
    EXPECT_EQ(call_with(vcpu, KVM_SET_GUEST_DEBUG, how), 0);
    run_to_halt(vcpu);
    EXPECT_EQ(kvm.vcpu(vcpu).debug.control, 0U);
  }
}

// A timer of a source, or somebody who changes the memory slots: nothing to the VMM.
TEST_F(AttachmentTest, KicksOfOursDoNotComeOutAndTheVmmsDo) {
  const int vcpu = make_vcpu(make_vm());
  unsigned runs = 0;
  const auto interrupted = [&](bool by_vmm) {
    return [&runs, vcpu, by_vmm](kvm_run& run) {
      ++runs;
      if (by_vmm) FakeKvm::ask_to_come_out(vcpu);
      ::raise(kick_signal());
      run.exit_reason = KVM_EXIT_INTR;
    };
  };
  kvm.vcpu(vcpu).script = {interrupted(false), interrupted(false)};
  run_to_halt(vcpu);
  EXPECT_EQ(runs, 2U);
  kvm.vcpu(vcpu).script = {interrupted(true)};
  EXPECT_EQ(call(vcpu, KVM_RUN), -1);
  EXPECT_EQ(errno, EINTR);
  EXPECT_EQ(FakeKvm::run_page(vcpu).immediate_exit, 1) << "it is the VMM's to take away";
}

TEST_F(AttachmentTest, AKickThatComesWhileTheVmmHasTheVcpuIsNotLost) {
  const int vcpu = make_vcpu(make_vm());
  run_to_halt(vcpu);
  const auto runs = kvm.count(KVM_RUN);
  ::raise(kick_signal());
  run_to_halt(vcpu);
  EXPECT_EQ(kvm.count(KVM_RUN), runs + 2) << "one that the kick ends, and the guest's";
}

/// The guest makes counter 0 count, and the PMU is in use.
void put_in_use(FakeKvm::Vcpu& vcpu) { vcpu.script.push_back(FakeKvm::writes(perfevtsel0, kernel_instructions)); }

TEST_F(AttachmentTest, AStateThatFitsNowhereIsToldOfOnceWhenThePmuIsInUse) {
  const int vcpu = make_vcpu(make_vm());
  std::array<std::uint64_t, 1024> room{};
  auto& state = *reinterpret_cast<kvm_nested_state*>(room.data());
  const auto ask = [&](std::uint32_t size) {
    state.size = size;
    return call_with(vcpu, KVM_GET_NESTED_STATE, state);
  };
  run_to_halt(vcpu);
  EXPECT_EQ(ask(sizeof(kvm_nested_state)), 0);
  EXPECT_TRUE(warnings.empty()) << "not in use: nothing is lost";
  put_in_use(kvm.vcpu(vcpu));
  run_to_halt(vcpu);
  EXPECT_EQ(ask(sizeof room), 0);
  EXPECT_TRUE(carried(state));
  EXPECT_TRUE(warnings.empty()) << warnings[0];
  for (int n = 0; n < 3; ++n) EXPECT_EQ(ask(sizeof(kvm_nested_state)), 0);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("vCPU 0: its PMU is in use and does not fit"), std::string::npos) << warnings[0];
}

/// A list of one MSR.
struct OneMsr {
  std::uint32_t count{1}, pad{};
  kvm_msr_entry entry{};
};

class MsrsOfThePmu : public AttachmentTest {
 protected:
  std::uint64_t get(int vcpu, std::uint32_t index) {
    OneMsr list{.entry = {.index = index, .reserved = 0, .data = ~0ULL}};
    EXPECT_EQ(call_with(vcpu, KVM_GET_MSRS, list), 1) << std::hex << index;
    return list.entry.data;
  }
  int set(int vcpu, std::uint32_t index, std::uint64_t value) {
    OneMsr list{.entry = {.index = index, .reserved = 0, .data = value}};
    return call_with(vcpu, KVM_SET_MSRS, list);
  }
  /// What the guest reads.
  std::uint64_t guests(int vcpu, std::uint32_t index) {
    std::uint64_t value = 0;
    kvm.vcpu(vcpu).script = {FakeKvm::reads(index), [&](kvm_run& run) {
                               value = run.msr.data;
                               run.exit_reason = KVM_EXIT_HLT;
                             }};
    run_to_halt(vcpu);
    return value;
  }
};

TEST_F(MsrsOfThePmu, AreReadAndWrittenBeforeAndAfterTheGuestHasRun) {
  const int vcpu = make_vcpu(make_vm());
  EXPECT_EQ(get(vcpu, pmc0), 0U);
  EXPECT_EQ(set(vcpu, pmc0, 0x1234'5678'9ABC), 1);
  EXPECT_EQ(get(vcpu, pmc0), 0x1234'5678'9ABCU);
  EXPECT_EQ(guests(vcpu, pmc0), 0x1234'5678'9ABCU);
  kvm.vcpu(vcpu).script = {FakeKvm::writes(pmc0, 7)};
  run_to_halt(vcpu);
  EXPECT_EQ(get(vcpu, pmc0), 7U);
  EXPECT_EQ(set(vcpu, pmc0, 8), 1);
  EXPECT_EQ(guests(vcpu, pmc0), 8U);
  EXPECT_EQ(set(vcpu, perfevtsel0, ~0ULL), 0) << "no such value";
  EXPECT_EQ(get(vcpu, 0x8B), kvm.vcpu(vcpu).msrs[0x8B]) << "KVM's";
  EXPECT_EQ(counters_of(0, vcpu)["attach.restores"], 0U);
}

// The state that comes with the VMM's is whole: it replaces what was set before it, and what is set behind it changes it.
TEST_F(MsrsOfThePmu, SetBetweenExitsToDevicesTheyHold) {
  const int vcpu = make_vcpu(make_vm());
  kvm.vcpu(vcpu).script = {at_a_device, at_a_device};
  for (int n = 0; n < 2; ++n) ASSERT_EQ(call(vcpu, KVM_RUN), 0);
  ASSERT_EQ(set(vcpu, perfevtsel0, kernel_instructions), 1);
  EXPECT_EQ(guests(vcpu, perfevtsel0), kernel_instructions);
}

TEST_F(MsrsOfThePmu, TheLastOneSaysWhatHolds) {
  const int vm = make_vm(), from = make_vcpu(vm, 0), to = make_vcpu(vm, 1);
  kvm.vcpu(from).script = {FakeKvm::writes(pmc0, 5), FakeKvm::writes(pmc0 + 1, 6)};
  run_to_halt(from);
  std::array<std::uint64_t, 1024> room{};
  auto& state = *reinterpret_cast<kvm_nested_state*>(room.data());
  state.size = sizeof room;
  ASSERT_EQ(call_with(from, KVM_GET_NESTED_STATE, state), 0);
  EXPECT_EQ(set(to, pmc0, 1), 1);
  EXPECT_EQ(set(to, pmc0 + 2, 2), 1);
  ASSERT_EQ(call_with(to, KVM_SET_NESTED_STATE, state), 0);
  EXPECT_EQ(get(to, pmc0), 5U);
  EXPECT_EQ(get(to, pmc0 + 2), 0U);
  EXPECT_EQ(set(to, pmc0 + 1, 9), 1);
  EXPECT_EQ(guests(to, pmc0), 5U);
  EXPECT_EQ(guests(to, pmc0 + 1), 9U);
  EXPECT_EQ(counters_of(0, to)["attach.restores"], 1U);
}

// As a VMM does at RESET: MSRs after the state of nested virtualization, and the registers.
TEST_F(MsrsOfThePmu, ResetComesBeforeWhatWasSet) {
  constexpr std::uint32_t misc_enable = 0x1A0;
  const int vcpu = make_vcpu(make_vm());
  const std::uint64_t at_power_up = guests(vcpu, misc_enable);
  EXPECT_EQ(set(vcpu, misc_enable, 1), 1);
  EXPECT_EQ(set(vcpu, pmc0, 1), 1);
  kvm_sregs sregs{};
  sregs.cs.base = 0xFFFF'0000;
  kvm_regs regs{};
  regs.rip = 0xFFF0;
  EXPECT_EQ(call_with(vcpu, KVM_SET_SREGS, sregs), 0);
  EXPECT_EQ(call_with(vcpu, KVM_SET_REGS, regs), 0);
  EXPECT_EQ(guests(vcpu, pmc0), 0U);
  EXPECT_EQ(guests(vcpu, misc_enable), at_power_up);
}

TEST_F(MsrsOfThePmu, AreInTheListOfKvms) {
  std::array<std::uint32_t, 512> room{511};
  auto& list = *reinterpret_cast<kvm_msr_list*>(room.data());
  ASSERT_EQ(call_with(kvm.system(), KVM_GET_MSR_INDEX_LIST, list), 0);
  const std::span all{list.indices, list.nmsrs};
  for (const std::uint32_t index : {0x10U, 0x8BU, pmc0, perfevtsel0, 0x38FU, 0x600U})
    EXPECT_EQ(std::ranges::count(all, index), 1) << std::hex << index;
}

// Ids are APIC ids, and a VMM may leave some out.
TEST_F(AttachmentTest, ClocksOfAllVcpusKeepTogetherWhateverTheirIds) {
  using namespace std::chrono_literals;
  const int vm = make_vm(), vcpu = make_vcpu(vm, 2), other = make_vcpu(vm, 9);
  put_in_use(kvm.vcpu(vcpu));
  kvm.meanwhile[KVM_GET_SREGS] = [] { std::this_thread::sleep_for(5ms); };  // which the exit of the PMU takes, unseen by the guest
  run_to_halt(vcpu);
  EXPECT_GT(counters_of(0, other)["pmu.clock.waits"], 0U);
}

}  // namespace
}  // namespace vmm::test
