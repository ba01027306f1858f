#include <algorithm>
#include <array>
#include <span>

#include "attach/attached_vmm.hpp"

namespace vmm::test {
namespace {

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
  /// The value that the guest's RDMSR returns.
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

// The VMM sets an MSR between two exits to devices, on which the library does little. The MSR must not be lost.
TEST_F(MsrsOfThePmu, SetBetweenExitsToDevicesTheyHold) {
  const int vcpu = make_vcpu(make_vm());
  kvm.vcpu(vcpu).script = {at_a_device, at_a_device};
  for (int n = 0; n < 2; ++n) ASSERT_EQ(call(vcpu, KVM_RUN), 0);
  ASSERT_EQ(set(vcpu, perfevtsel0, kernel_instructions), 1);
  EXPECT_EQ(guests(vcpu, perfevtsel0), kernel_instructions);
}

// A PMU state in the VMM's nested state is complete: it replaces MSRs set before it, and MSRs set after it change it.
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

// At RESET a VMM sets MSRs (after the nested state), and then the registers. The PMU's reset discards the MSRs.
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

/// `room` as one of KVM's list structures, which end in an array of variable length.
template <class List>
List& list_in(std::vector<std::uint64_t>& room) {
  return *reinterpret_cast<List*>(room.data());
}

TEST_F(MsrsOfThePmu, AListThatIsSetIsOnlyRead) {
  constexpr std::uint32_t microcode = 0x8B;
  const int vcpu = make_vcpu(make_vm());
  std::vector<std::uint64_t> room(1 + 3 * 2);
  auto& list = list_in<kvm_msrs>(room);
  list.nmsrs = 3;
  list.entries[0] = {.index = microcode, .reserved = 0, .data = 0xDEAD};
  list.entries[1] = {.index = pmc0, .reserved = 0, .data = 5};
  list.entries[2] = {.index = 0x10, .reserved = 0, .data = 7};
  const auto before = room;
  EXPECT_EQ(call_with(vcpu, KVM_SET_MSRS, list), 3);
  EXPECT_EQ(room, before);
  EXPECT_EQ(kvm.vcpu(vcpu).msrs[microcode], bios_sign_id(*find_machine_model("haswell")));
  EXPECT_EQ(kvm.vcpu(vcpu).msrs[0x10], 7U);
}

// The lists have no entry: like KVM, the library must refuse them by their count alone (KVM's MAX_IO_MSRS and
// KVM_MAX_CPUID_ENTRIES).
TEST_F(MsrsOfThePmu, ListsThatKvmFindsTooLongAreNotLookedAt) {
  const int vcpu = make_vcpu(make_vm());
  std::vector<std::uint64_t> room(1);
  list_in<kvm_msrs>(room).nmsrs = 256;
  for (const unsigned long request : {KVM_GET_MSRS, KVM_SET_MSRS}) {
    EXPECT_EQ(call_with(vcpu, request, list_in<kvm_msrs>(room)), -1);
    EXPECT_EQ(errno, E2BIG);
  }
  list_in<kvm_cpuid2>(room).nent = 257;
  EXPECT_EQ(call_with(vcpu, KVM_SET_CPUID2, list_in<kvm_cpuid2>(room)), -1);
  EXPECT_EQ(errno, E2BIG);
  EXPECT_TRUE(kvm.vcpu(vcpu).cpuid.empty());
  EXPECT_EQ(get(vcpu, pmc0), 0U);
}

TEST_F(MsrsOfThePmu, AreInTheListOfKvms) {
  std::array<std::uint32_t, 512> room{511};
  auto& list = *reinterpret_cast<kvm_msr_list*>(room.data());
  ASSERT_EQ(call_with(kvm.system(), KVM_GET_MSR_INDEX_LIST, list), 0);
  const std::span all{list.indices, list.nmsrs};
  for (const std::uint32_t index : {0x10U, 0x8BU, pmc0, perfevtsel0, 0x38FU, 0x600U})
    EXPECT_EQ(std::ranges::count(all, index), 1) << std::hex << index;
}

}  // namespace
}  // namespace vmm::test
