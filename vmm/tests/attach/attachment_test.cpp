#include "attach/attachment.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "attach/attached_vmm.hpp"
#include "attach/carried_state.hpp"

namespace vmm::test {
namespace {

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
  kvm.vcpu(vcpu).script = {at_a_device,
                           FakeKvm::writes(perfevtsel0, kernel_instructions),
                           FakeKvm::writes(0x38F, 1),
                           at_a_device,
                           FakeKvm::reads(perfevtsel0),
                           [&](kvm_run& run) {
                             answer = run;
                             at_a_device(run);
                           }};
  for (int n = 0; n < 3; ++n) ASSERT_EQ(call(vcpu, KVM_RUN), 0);
  EXPECT_EQ(answer.msr.data, kernel_instructions);
  EXPECT_EQ(counters_of(0, vcpu)["pmu.exits.wrmsr"], 2U);
}

// A thread keeps a reference to the vCPU that it ran last, and so to the VM. Here another thread closes both.
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

// A process that the VMM starts inherits the environment variables, and so the path of the statistics.
TEST_F(AttachmentTest, AProcessWithoutVmsLeavesTheStatisticsOfOthersAlone) {
  std::ofstream{statistics} << "of another\n";
  EXPECT_EQ(lines_of_statistics(), 1);
  run_to_halt(make_vcpu(make_vm(), 0));
  EXPECT_EQ(lines_of_statistics(), 1);
  EXPECT_NE(std::filesystem::file_size(statistics), std::string{"of another\n"}.size());
}

TEST_F(AttachmentTest, AVcpuThatIsClosedWhileItsVmGoesOn) {
  const int vm = make_vm(), vcpu = make_vcpu(vm, 0), other = make_vcpu(vm, 1);
  run_to_halt(vcpu);
  close_both(vcpu);
  run_to_halt(other);
  EXPECT_EQ(lines_of_statistics(), 1);
}

// The library does not see every close. A number that it knows may then belong to another file.
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
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator{"/proc/self/fd"}, std::filesystem::directory_iterator{});
  };
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

// A debugger that sets breakpoints and removes them before the guest runs: KVM must not keep them.
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

TEST_F(AttachmentTest, ADebuggerThatKvmRefusesDebugsNothing) {
  const int vcpu = make_vcpu(make_vm());
  kvm.errors[KVM_SET_GUEST_DEBUG] = EBUSY;
  kvm_guest_debug how{.control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_INJECT_DB, .pad = 0, .arch = {}};
  EXPECT_EQ(call_with(vcpu, KVM_SET_GUEST_DEBUG, how), -1);
  EXPECT_EQ(errno, EBUSY);
  kvm.errors.clear();
  run_to_halt(vcpu);
  EXPECT_EQ(counters_of(0, vcpu)["pmu.debugged_runs"], 0U);
  EXPECT_TRUE(warnings.empty());
}

// KVM_CAP_SYNC_REGS puts a VMM's registers where ours are, and a dirty ring would lack the pages that we write.
TEST_F(AttachmentTest, WhatCannotBeSharedIsNotThere) {
  const int vm = make_vm();
  kvm.other_capabilities = 1;
  EXPECT_EQ(call(vm, KVM_CHECK_EXTENSION, KVM_CAP_IRQCHIP), 1);
  for (const auto withheld :
       std::array<std::uint32_t, 3>{KVM_CAP_SYNC_REGS, KVM_CAP_DIRTY_LOG_RING, KVM_CAP_DIRTY_LOG_RING_ACQ_REL}) {
    EXPECT_EQ(call(vm, KVM_CHECK_EXTENSION, withheld), 0);
    kvm_enable_cap cap{};
    cap.cap = withheld;
    EXPECT_EQ(call_with(vm, KVM_ENABLE_CAP, cap), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_TRUE(kvm.enabled.empty());
}

// Otherwise KVM's slots and ours would differ during the call, and the VMM's bitmap could be too short for our slot.
TEST_F(AttachmentTest, SlotsStandStillWhileTheirLogIsRead) {
  auto vm = AttachedVm::create(Fd{make_vm()}, 0x3000, {.model = find_machine_model("haswell"), .source = "clock"}, log);
  ASSERT_TRUE(vm);
  std::atomic<bool> changed = false;
  std::thread other;
  const int answer = (*vm)->dirty_log({}, [&] {
    other = std::thread{[&] {
      const kvm_userspace_memory_region region{};
      (void)(*vm)->set_memory(region, [&] {
        changed = true;
        return 0;
      });
    }};
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
    EXPECT_FALSE(changed);
    return 0;
  });
  other.join();
  EXPECT_EQ(answer, 0);
  EXPECT_TRUE(changed);
}

// Our own kicks (a source's timer, a change of memory slots) must not reach the VMM; its own must.
TEST_F(AttachmentTest, KicksOfOursDoNotComeOutAndTheVmmsDo) {
  const int vcpu = make_vcpu(make_vm());
  unsigned runs = 0;
  const auto interrupted = [&](bool by_vmm) {
    return [&runs, vcpu, by_vmm](kvm_run& run) {
      ++runs;
      if (by_vmm) FakeKvm::ask_to_come_out(vcpu);
      kick_thread(this_thread());
      std::this_thread::sleep_for(std::chrono::nanoseconds{1});  // TSan runs handlers of signals in calls like this one
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
  kick_thread(this_thread());
  run_to_halt(vcpu);
  EXPECT_EQ(kvm.count(KVM_RUN), runs + 2) << "one that the kick ends, and the guest's";
}

// vCPU 0 is in KVM_RUN and slow to leave it; vCPU 1 does not run.
TEST_F(AttachmentTest, MemoryChangesWhileNoVcpuIsInside) {
  const int vm = make_vm(), vcpu = make_vcpu(vm);
  make_vcpu(vm, 1);
  std::atomic<bool> inside = false;
  bool came_out = false, changed_behind_it = false;
  kvm.vcpu(vcpu).script = {[&](kvm_run&) {
    inside = true;
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    came_out = true;
  }};
  kvm.meanwhile[KVM_SET_USER_MEMORY_REGION] = [&] { changed_behind_it = came_out; };
  std::thread runs{[&] { run_to_halt(vcpu); }};
  while (!inside) std::this_thread::yield();
  kvm_userspace_memory_region region{};
  EXPECT_EQ(call_with(vm, KVM_SET_USER_MEMORY_REGION, region), 0);
  runs.join();
  EXPECT_TRUE(changed_behind_it);
}

TEST_F(AttachmentTest, AKickThatIsLookedAtLateIsCounted) {
  const int vm = make_vm(), vcpu = make_vcpu(vm);
  std::atomic<bool> inside = false;
  kvm.vcpu(vcpu).script = {[&](kvm_run&) {
    inside = true;
    while (FakeKvm::run_page(vcpu).immediate_exit == 0) std::this_thread::yield();
    std::this_thread::sleep_for(KickWatch::in_time() + std::chrono::milliseconds{5});
  }};
  std::thread runs{[&] { run_to_halt(vcpu); }};
  while (!inside) std::this_thread::yield();
  kvm_userspace_memory_region region{};
  EXPECT_EQ(call_with(vm, KVM_SET_USER_MEMORY_REGION, region), 0);
  runs.join();
  auto counters = counters_of(0, vcpu);
  EXPECT_EQ(counters.at("vcpu.late_kicks"), 1U);
  EXPECT_GE(counters.at("vcpu.longest_kick_us"), 15'000U);
}

/// Scripts a guest's write that selects an event for counter 0: the PMU is then in use.
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

// KVM_SET_NESTED_STATE without a PMU state of ours resets the PMU, but not when KVM refuses the call.
TEST_F(AttachmentTest, ANestedStateThatIsRefusedChangesNothing) {
  const int vcpu = make_vcpu(make_vm());
  put_in_use(kvm.vcpu(vcpu));
  run_to_halt(vcpu);
  kvm_nested_state state{};
  const auto set = [&](std::uint16_t flags, std::uint32_t size) {
    state.flags = flags;
    state.size = size;
    return call_with(vcpu, KVM_SET_NESTED_STATE, state);
  };
  const auto resets = [&] { return counters_of(0, vcpu)["attach.resets"]; };
  EXPECT_EQ(set(0, sizeof state - 1), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(set(0x4000, sizeof state), -1);
  EXPECT_EQ(errno, EINVAL);
  kvm.errors[KVM_SET_NESTED_STATE] = EFAULT;
  EXPECT_EQ(set(0, sizeof state), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(resets(), 0U);
  kvm.errors[KVM_SET_NESTED_STATE] = EINVAL;  // no nested virtualization
  EXPECT_EQ(set(0, sizeof state), 0);
  EXPECT_EQ(resets(), 1U);
}

TEST_F(AttachmentTest, ANestedStateThatIsNowhereIsLeftAsItIs) {
  const int vcpu = make_vcpu(make_vm());
  kvm_nested_state state{};
  state.size = sizeof state;
  kvm.errors[KVM_GET_NESTED_STATE] = EINVAL;
  EXPECT_EQ(call_with(vcpu, KVM_GET_NESTED_STATE, state), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(state.flags, 0U);
  EXPECT_EQ(state.size, sizeof state);
}

/// Makes the PMU's next exits slow.
void slow_down(FakeKvm& kvm) {
  kvm.meanwhile[KVM_GET_SREGS] = [] { std::this_thread::sleep_for(std::chrono::milliseconds{5}); };
}

TEST_F(AttachmentTest, TimeIsHiddenFromTheOnlyVcpuUntilThereIsAnother) {
  const int vm = make_vm(), vcpu = make_vcpu(vm, 2);
  slow_down(kvm);
  put_in_use(kvm.vcpu(vcpu));
  run_to_halt(vcpu);
  const auto before = counters_of(0, vcpu, 2);
  EXPECT_GT(before.at("pmu.clock.hidden_ticks"), 0U);
  make_vcpu(vm, 9);
  FakeKvm::let_go_on(vcpu);
  put_in_use(kvm.vcpu(vcpu));
  run_to_halt(vcpu);
  const auto after = counters_of(0, vcpu, 2);
  EXPECT_GT(after.at("pmu.exits.wrmsr"), before.at("pmu.exits.wrmsr"));
  EXPECT_EQ(after.at("pmu.clock.hidden_ticks"), before.at("pmu.clock.hidden_ticks"));
}

TEST_F(AttachmentTest, TimeIsHiddenFromNoneOfTwoVcpus) {
  const int vm = make_vm(), vcpu = make_vcpu(vm, 2);
  make_vcpu(vm, 9);
  slow_down(kvm);
  put_in_use(kvm.vcpu(vcpu));
  run_to_halt(vcpu);
  const auto counters = counters_of(0, vcpu, 2);
  EXPECT_GT(counters.at("pmu.exits.wrmsr"), 0U);
  EXPECT_EQ(counters.at("pmu.clock.hidden_ticks"), 0U);
}

}  // namespace
}  // namespace vmm::test
