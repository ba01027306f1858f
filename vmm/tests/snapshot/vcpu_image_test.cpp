#include "snapshot/vcpu_image.hpp"

#include <gtest/gtest.h>

#include "fakes/fake_kvm.hpp"
#include "kvm/system.hpp"

namespace vmm::test {
namespace {

constexpr std::uint32_t tsc = 0x10, star = 0xC0000081, deadline = 0x6E0, hidden = 0xDEAD;

class VcpuImage : public testing::Test {
 protected:
  void SetUp() override {
    kvm_.other_capabilities = 1;
    kvm_.vcpu_msrs = {{tsc, 1000}, {star, 0}, {deadline, 0}};
  }
  Vcpu make_vcpu() {
    if (!vm_) vm_.emplace(*System::open(kvm_.path())->create_vm());
    return *vm_->create_vcpu(made_++);
  }

  FakeKvm kvm_;
  std::optional<Vm> vm_;
  std::uint32_t made_{};
  const std::vector<std::uint32_t> saved_{tsc, star, deadline,
                                          hidden};  ///< `hidden` is one that this vCPU does not have.
};

TEST_F(VcpuImage, ComesBackAsItWas) {
  auto from = make_vcpu();
  auto& first = kvm_.first_vcpu();
  first.regs.rip = 0x1234;
  first.regs.rsp = 0x5678;
  first.sregs.cr3 = 0x9000;
  first.msrs[star] = 0xAB;
  first.msrs[deadline] = 5000;
  const auto image = save_vcpu(from, saved_);
  ASSERT_TRUE(image) << describe(image.error());
  kvm_.vcpu_msrs[star] = 1;
  kvm_.vcpu_msrs[tsc] = 7;
  auto to = make_vcpu();
  kvm_.requests.clear();
  const auto restored = restore_vcpu(to, *image, 0);
  ASSERT_TRUE(restored) << describe(restored.error());
  const auto regs = to.regs();
  const auto sregs = to.sregs();
  ASSERT_TRUE(regs && sregs);
  EXPECT_EQ(regs->rip, 0x1234U);
  EXPECT_EQ(regs->rsp, 0x5678U);
  EXPECT_EQ(sregs->cr3, 0x9000U);
  EXPECT_EQ(to.msr(star).value_or(0), 0xABU);
  EXPECT_EQ(to.msr(deadline).value_or(0), 5000U);
  EXPECT_TRUE(kvm_.came_before(KVM_SET_SREGS, KVM_SET_LAPIC)) << "the APIC's mode is in them";
  EXPECT_EQ(kvm_.count(KVM_SET_DEVICE_ATTR), 1) << "the TSC goes by its offset";
  EXPECT_EQ(to.msr(tsc).value_or(0), 7U) << "and not by its value";
}

TEST_F(VcpuImage, WithoutOffsetsTheTscGoesByItsValue) {
  kvm_.errors[KVM_GET_DEVICE_ATTR] = ENXIO;
  auto from = make_vcpu();
  const auto image = save_vcpu(from, saved_);
  ASSERT_TRUE(image);
  kvm_.vcpu_msrs[tsc] = 7;
  auto to = make_vcpu();
  ASSERT_TRUE(restore_vcpu(to, *image, 0));
  EXPECT_EQ(to.msr(tsc).value_or(0), 1000U);
}

TEST_F(VcpuImage, CutAnywhereItIsRefusedAndNothingIsSet) {
  auto from = make_vcpu();
  const auto image = save_vcpu(from, saved_);
  ASSERT_TRUE(image);
  auto to = make_vcpu();
  kvm_.requests.clear();
  for (std::size_t size = 0; size + 16 < image->size(); size += 61) {
    const auto refused = restore_vcpu(to, std::span{*image}.first(size), 0);
    ASSERT_FALSE(refused) << size;
    EXPECT_EQ(refused.error().kind, ErrorKind::usage);
  }
  EXPECT_EQ(kvm_.requests.size(), 0U);
}

// The MSRs are at the end of an image: their size in bytes, and then the MSRs.
TEST_F(VcpuImage, MoreMsrsThanThereAreOrHalfAnMsrAreRefusedAndNothingIsSet) {
  auto from = make_vcpu();
  const auto image = save_vcpu(from, {});
  ASSERT_TRUE(image);
  auto to = make_vcpu();
  const auto restored_with = [&](std::uint64_t bytes) {
    Bytes other{image->begin(), image->end() - sizeof bytes};
    const auto count = std::as_bytes(std::span{&bytes, 1});
    other.insert(other.end(), count.begin(), count.end());
    other.resize(other.size() + bytes);
    kvm_.requests.clear();
    const auto restored = restore_vcpu(to, other, 0);
    EXPECT_EQ(restored.has_value(), kvm_.count(KVM_SET_SREGS) != 0);
    return restored.has_value();
  };
  EXPECT_TRUE(restored_with(0));
  EXPECT_FALSE(restored_with(8)) << "half of one";
  EXPECT_FALSE(restored_with(4097 * sizeof(kvm_msr_entry)));
}

TEST_F(VcpuImage, WhatKvmRefusesIsReported) {
  auto from = make_vcpu();
  kvm_.first_vcpu().msrs[star] = 0xAB;
  const auto image = save_vcpu(from, saved_);
  ASSERT_TRUE(image);
  auto to = make_vcpu();
  for (const unsigned long request : {KVM_SET_SREGS, KVM_SET_REGS, KVM_SET_XSAVE, KVM_SET_DEBUGREGS, KVM_SET_MSRS,
                                      KVM_SET_LAPIC, KVM_SET_VCPU_EVENTS, KVM_SET_MP_STATE}) {
    kvm_.errors = {{request, EINVAL}};
    EXPECT_FALSE(restore_vcpu(to, *image, 0)) << request;
  }
  for (const unsigned long request :
       {static_cast<unsigned long>(KVM_GET_XSAVE), static_cast<unsigned long>(KVM_GET_LAPIC),
        static_cast<unsigned long>(KVM_GET_MP_STATE)}) {
    kvm_.errors = {{request, EINVAL}};
    EXPECT_FALSE(save_vcpu(from, saved_)) << request;
  }
}

TEST_F(VcpuImage, ChipsComeBackOrAreRefused) {
  (void)make_vcpu();
  const auto image = save_chips(*vm_);
  ASSERT_TRUE(image);
  EXPECT_TRUE(restore_chips(*vm_, *image));
  EXPECT_EQ(kvm_.count(KVM_SET_IRQCHIP), 3);
  EXPECT_EQ(kvm_.count(KVM_SET_PIT2), 1);
  EXPECT_FALSE(restore_chips(*vm_, std::span{*image}.first(image->size() - 1)));
  kvm_.errors = {{KVM_SET_PIT2, EINVAL}};
  EXPECT_FALSE(restore_chips(*vm_, *image));
}

}  // namespace
}  // namespace vmm::test
