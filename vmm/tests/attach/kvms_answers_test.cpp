#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "attach/attached_vmm.hpp"
#include "vpmu/cpuid.hpp"

// Results of a VMM's calls that the library changes, or has to make look like KVM's own.

namespace vmm::test {
namespace {

// KVM answers RDPMC itself on AMD before Linux 6.9, and on Intel from 5.10 to 5.17.
TEST_F(AttachmentTest, AKvmThatAnswersRdpmcByItselfGetsNoVm) {
  rdpmc = RdpmcBehaviour::silent;
  for (int n = 0; n < 2; ++n) {
    EXPECT_EQ(make_vm(), -1);
    EXPECT_EQ(errno, EOPNOTSUPP);
  }
  EXPECT_EQ(probed, 1);
  EXPECT_EQ(kvm.count(KVM_CREATE_VM), 0);
  ASSERT_EQ(warnings.size(), 2U);
  for (const std::string_view part : {"answers RDPMC by itself", "6.9", "5.18"})
    EXPECT_NE(warnings[0].find(part), std::string::npos) << warnings[0];
}

TEST_F(AttachmentTest, AKvmWhoseBreakpointsAreDeadGetsNoVm) {
  rdpmc = RdpmcBehaviour::breakpoint_dead;
  EXPECT_EQ(make_vm(), -1);
  EXPECT_EQ(kvm.count(KVM_CREATE_VM), 0);
}

TEST_F(AttachmentTest, AKvmThatCannotBeTriedIsUsedWithAWarning) {
  rdpmc = host_error("no memory for a probe");
  EXPECT_GE(make_vm(), 0);
  EXPECT_GE(make_vm(), 0);
  EXPECT_EQ(probed, 1);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("no memory for a probe"), std::string::npos) << warnings[0];
}

// QEMU sets the TSC rate again with each state that it loads.
TEST_F(AttachmentTest, ARateOfTheTscThatIsSetLaterIsFollowed) {
  const int vcpu = make_vcpu(make_vm());
  run_to_halt(vcpu);
  EXPECT_EQ(counters_of(0, vcpu)["pmu.clock.unknown_scale"], 0U);
  kvm.vcpu(vcpu).jumps = true;
  FakeKvm::let_go_on(vcpu);
  EXPECT_EQ(call(vcpu, KVM_SET_TSC_KHZ, 2'000'000), 0);
  run_to_halt(vcpu);
  EXPECT_EQ(counters_of(0, vcpu)["pmu.clock.unknown_scale"], 1U);
}

// As in the kernel: KVM_RUN with immediate_exit only completes the last exit, and leaves exit_reason alone.
TEST_F(AttachmentTest, ComingOutAtOnceLeavesTheExitReason) {
  const int vcpu = make_vcpu(make_vm());
  for (const bool in_use : {false, true}) {
    SCOPED_TRACE(in_use);
    if (in_use) kvm.vcpu(vcpu).script = {FakeKvm::writes(perfevtsel0, kernel_instructions), FakeKvm::writes(0x38F, 1)};
    kvm.vcpu(vcpu).script.emplace_back(at_a_device);
    ASSERT_EQ(call(vcpu, KVM_RUN), 0);
    FakeKvm::ask_to_come_out(vcpu);
    for (int n = 0; n < 2; ++n) {
      EXPECT_EQ(call(vcpu, KVM_RUN), -1);
      EXPECT_EQ(errno, EINTR);
      EXPECT_EQ(FakeKvm::run_page(vcpu).exit_reason, std::uint32_t{KVM_EXIT_IO});
    }
    FakeKvm::let_go_on(vcpu);
    run_to_halt(vcpu);
  }
  EXPECT_EQ(counters_of(0, vcpu)["pmu.exits.wrmsr"], 2U);
}

TEST_F(AttachmentTest, ASignalIsAnExitReason) {
  const int vcpu = make_vcpu(make_vm());
  kvm.vcpu(vcpu).script = {at_a_device, [](kvm_run& run) { run.exit_reason = KVM_EXIT_INTR; }};
  ASSERT_EQ(call(vcpu, KVM_RUN), 0);
  EXPECT_EQ(call(vcpu, KVM_RUN), -1);
  EXPECT_EQ(errno, EINTR);
  EXPECT_EQ(FakeKvm::run_page(vcpu).exit_reason, std::uint32_t{KVM_EXIT_INTR});
}

/// The list that a VMM passes to KVM_GET_SUPPORTED_CPUID. kvm_cpuid2 ends in a flexible array; it is smaller than one
/// entry, whose room it takes.
class CpuidList {
 public:
  explicit CpuidList(std::uint32_t room) : storage_(room + 1) { list().nent = room; }
  kvm_cpuid2& list() { return *reinterpret_cast<kvm_cpuid2*>(storage_.data()); }
  CpuidTable table() { return CpuidTable{{list().entries, list().entries + list().nent}}; }

 private:
  std::vector<kvm_cpuid_entry2> storage_;
};

// KVM's leaf 0AH is all zeros if the host has no PMU.
TEST_F(AttachmentTest, TheListOfCpuidShowsTheModelsPmu) {
  const vpmu::CpuidRegisters leaf_a = vpmu::cpuid_0ah(vpmu::describe(vpmu::Generation::haswell), 4);
  for (const bool kvm_has_it : {false, true}) {
    SCOPED_TRACE(kvm_has_it);
    kvm.supported = {};
    kvm.supported.add(1, {.eax = 0x00A20F10, .ecx = 1 | 1U << 5U});
    if (kvm_has_it) kvm.supported.add(0xA, {});
    kvm.supported.add(0x80000001, {});
    CpuidList list{8};
    ASSERT_EQ(call_with(kvm.system(), KVM_GET_SUPPORTED_CPUID, list.list()), 0);
    EXPECT_EQ(list.list().nent, 3U);
    const CpuidTable shown = list.table();
    EXPECT_EQ(shown.get(0xA), (CpuidRegisters{leaf_a.eax, leaf_a.ebx, leaf_a.ecx, leaf_a.edx}));
    EXPECT_EQ(shown.get(0xA).eax >> 8U & 0xFF, 4U) << "as many as set_cpuid() gives to a vCPU of that list";
    EXPECT_EQ(shown.get(1).eax, 0x00A20F10U);
    EXPECT_EQ(shown.get(1).ecx, 1U | 1U << 2U | 1U << 4U | 1U << 15U) << "DTES64, DS-CPL, PDCM; no VMX";
    EXPECT_EQ(shown.get(1).edx, 1U << 21U) << "DS";
    EXPECT_NE(shown.get(0x80000001).ecx & 1U << 2U, 0U);
  }
}

TEST_F(AttachmentTest, AListOfCpuidWithoutRoomIsTooSmall) {
  kvm.supported.add(1, {});
  CpuidList list{1};
  EXPECT_EQ(call_with(kvm.system(), KVM_GET_SUPPORTED_CPUID, list.list()), -1);
  EXPECT_EQ(errno, E2BIG);
  kvm.errors[KVM_GET_SUPPORTED_CPUID] = E2BIG;
  EXPECT_EQ(call_with(kvm.system(), KVM_GET_SUPPORTED_CPUID, list.list()), -1);
  EXPECT_EQ(errno, E2BIG);
}

}  // namespace
}  // namespace vmm::test
