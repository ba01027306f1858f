#include <array>
#include <optional>
#include <vector>

#include "attach/attached_vmm.hpp"
#include "vpmu/cpuid.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/registers.hpp"

// A vCPU whose VMM chooses a PMU other than the model's, by KVM_SET_CPUID2 and KVM_SET_MSRS.

namespace vmm::test {
namespace {

constexpr std::uint32_t full_width_pmc0 = 0x4C1, capabilities = 0x345, pebs_enable = 0x3F1, pdcm = 1U << 15U;
constexpr std::uint64_t full_width = vpmu::reg::perf_capabilities::FW_WRITE::mask;

class OwnPmu : public AttachmentTest {
 protected:
  /// A vCPU for which the VMM has set this leaf 0AH by KVM_SET_CPUID2.
  int make_vcpu_with(const std::optional<CpuidRegisters>& leaf) {
    const int vcpu = make_vcpu(make_vm());
    std::vector<kvm_cpuid_entry2> room(4);
    auto& list = *reinterpret_cast<kvm_cpuid2*>(room.data());
    list.entries[list.nent++] = {.function = 1, .eax = 0x00A20F10, .ecx = pdcm};
    if (leaf)
      list.entries[list.nent++] = {
          .function = 0xA, .eax = leaf->eax, .ebx = leaf->ebx, .ecx = leaf->ecx, .edx = leaf->edx};
    EXPECT_EQ(call_with(vcpu, KVM_SET_CPUID2, list), 0);
    return vcpu;
  }
  CpuidRegisters shown(int vcpu) { return CpuidTable{kvm.vcpu(vcpu).cpuid}.get(0xA); }
  /// The value that the guest reads; nothing if it gets #GP.
  std::optional<std::uint64_t> read(int vcpu, std::uint32_t index) {
    std::optional<std::uint64_t> value;
    kvm.vcpu(vcpu).script = {FakeKvm::reads(index), [&](kvm_run& run) {
                               if (run.msr.error == 0) value = run.msr.data;
                               run.exit_reason = KVM_EXIT_HLT;
                             }};
    run_to_halt(vcpu);
    return value;
  }
  /// Whether the guest's write succeeds; false if it gets #GP.
  bool write(int vcpu, std::uint32_t index, std::uint64_t value) {
    bool taken = false;
    kvm.vcpu(vcpu).script = {FakeKvm::writes(index, value), [&](kvm_run& run) {
                               taken = run.msr.error == 0;
                               run.exit_reason = KVM_EXIT_HLT;
                             }};
    run_to_halt(vcpu);
    return taken;
  }
  /// A list of one MSR for KVM_GET_MSRS and KVM_SET_MSRS.
  struct OneMsr {
    std::uint32_t count{1}, pad{};
    kvm_msr_entry entry{};
  };
  std::uint64_t get(int fd, std::uint32_t index) {
    OneMsr list{.entry = {.index = index, .reserved = 0, .data = ~0ULL}};
    EXPECT_EQ(call_with(fd, KVM_GET_MSRS, list), 1) << std::hex << index;
    return list.entry.data;
  }
  bool set(int vcpu, std::uint32_t index, std::uint64_t value) {
    OneMsr list{.entry = {.index = index, .reserved = 0, .data = value}};
    return call_with(vcpu, KVM_SET_MSRS, list) == 1;
  }
};

CpuidRegisters haswells(unsigned counters = 4) {
  const auto leaf = vpmu::cpuid_0ah(vpmu::describe(vpmu::Generation::haswell), counters);
  return {leaf.eax, leaf.ebx, leaf.ecx, leaf.edx};
}

CpuidRegisters with_version(std::uint32_t version) {
  CpuidRegisters leaf = haswells();
  leaf.eax = (leaf.eax & ~0xFFU) | version;
  return leaf;
}

TEST_F(OwnPmu, TheModelsWhereTheVmmTellsNone) {
  for (const std::optional<CpuidRegisters>& leaf :
       {std::optional<CpuidRegisters>{}, std::optional{CpuidRegisters{}}, std::optional{haswells()}}) {
    const int vcpu = make_vcpu_with(leaf);
    EXPECT_EQ(shown(vcpu), haswells());
    EXPECT_EQ(read(vcpu, vpmu::msr::IA32_PERF_GLOBAL_CTRL.value()), 0xFU);
    EXPECT_TRUE(read(vcpu, pmc0 + 3));
    EXPECT_TRUE(read(vcpu, vpmu::msr::IA32_FIXED_CTR0.value() + 2));
  }
}

TEST_F(OwnPmu, HasTheCountersOfTheVcpusCpuid) {
  CpuidRegisters leaf = haswells(3);
  leaf.edx = (leaf.edx & ~0x1FU) | 1;
  const int vcpu = make_vcpu_with(leaf);
  EXPECT_EQ(shown(vcpu), leaf);
  EXPECT_EQ(read(vcpu, vpmu::msr::IA32_PERF_GLOBAL_CTRL.value()), 7U);
  EXPECT_TRUE(read(vcpu, pmc0 + 2));
  EXPECT_FALSE(read(vcpu, pmc0 + 3));
  EXPECT_FALSE(write(vcpu, perfevtsel0 + 3, 0));
  EXPECT_TRUE(read(vcpu, vpmu::msr::IA32_FIXED_CTR0.value()));
  EXPECT_FALSE(read(vcpu, vpmu::msr::IA32_FIXED_CTR0.value() + 1));
  EXPECT_FALSE(write(vcpu, vpmu::msr::IA32_PERF_GLOBAL_CTRL.value(), 1ULL << 33U));
}

// As with KVM, the guest sees the CPUID that the VMM has set, but only the counters that the model has.
TEST_F(OwnPmu, MoreThanTheModelHasIsToldAndNotThere) {
  CpuidRegisters leaf = with_version(5);
  leaf.ecx = 0xF;
  const int vcpu = make_vcpu_with(leaf);
  EXPECT_EQ(shown(vcpu), leaf);
  EXPECT_EQ(read(vcpu, vpmu::msr::IA32_PERF_GLOBAL_CTRL.value()), 0xFU);
  EXPECT_FALSE(read(vcpu, pmc0 + 4));
}

TEST_F(OwnPmu, TheFirstVersionHasNoGlobalRegisters) {
  const int vcpu = make_vcpu_with(with_version(1));
  EXPECT_TRUE(read(vcpu, pmc0));
  EXPECT_FALSE(read(vcpu, vpmu::msr::IA32_PERF_GLOBAL_CTRL.value()));
  EXPECT_FALSE(read(vcpu, vpmu::msr::IA32_FIXED_CTR0.value()));
  EXPECT_EQ(get(vcpu, vpmu::msr::IA32_PERF_GLOBAL_CTRL.value()), 0U)
      << "as KVM tells a VMM of an MSR that a vCPU lacks";
}

// KVM drops writes to the two counters of a P6, for guests that take any Intel processor for one.
TEST_F(OwnPmu, WithoutCountersTwoAreThereAndHoldNothing) {
  const int vcpu = make_vcpu_with(with_version(0));
  for (const std::uint32_t first : {pmc0, perfevtsel0}) {
    for (std::uint32_t n = 0; n < 2; ++n) {
      EXPECT_TRUE(write(vcpu, first + n, 0xFFFF)) << std::hex << first + n;
      EXPECT_EQ(read(vcpu, first + n), 0U) << std::hex << first + n;
    }
    EXPECT_FALSE(write(vcpu, first + 2, 0)) << std::hex << first;
    EXPECT_FALSE(read(vcpu, first + 2)) << std::hex << first;
  }
  EXPECT_FALSE(read(vcpu, full_width_pmc0));
}

TEST_F(OwnPmu, HasTheCapabilitiesThatTheVmmSets) {
  for (const std::uint64_t told : {std::uint64_t{0}, full_width}) {
    const int vcpu = make_vcpu_with(haswells());
    EXPECT_TRUE(set(vcpu, capabilities, told));
    EXPECT_EQ(get(vcpu, capabilities), told);
    EXPECT_EQ(read(vcpu, capabilities), told);
    EXPECT_EQ(read(vcpu, full_width_pmc0).has_value(), told == full_width);
    EXPECT_FALSE(write(vcpu, pebs_enable, 1)) << "no format of records";
  }
}

// Before the guest runs, a VMM may set the capabilities several times: the last value counts.
TEST_F(OwnPmu, IsThatOfTheLastWord) {
  const int vcpu = make_vcpu(make_vm());
  EXPECT_TRUE(set(vcpu, pmc0, 5));
  EXPECT_TRUE(set(vcpu, capabilities, 0));
  EXPECT_TRUE(set(vcpu, capabilities, full_width));
  EXPECT_EQ(read(vcpu, capabilities), full_width);
  EXPECT_EQ(read(vcpu, full_width_pmc0), 5U);
}

// As with KVM since Linux 6.8: a vCPU's capabilities cannot change once it has run.
TEST_F(OwnPmu, KeepsItsCapabilitiesOnceTheGuestRuns) {
  const int vcpu = make_vcpu_with(haswells());
  EXPECT_TRUE(set(vcpu, capabilities, full_width));
  run_to_halt(vcpu);
  EXPECT_FALSE(set(vcpu, capabilities, 0));
  EXPECT_TRUE(set(vcpu, capabilities, full_width));
  EXPECT_EQ(read(vcpu, capabilities), full_width);
}

TEST_F(OwnPmu, TakesNoCapabilitiesOfAnotherModel) {
  const int vcpu = make_vcpu_with(haswells());
  const std::uint64_t models = get(vcpu, capabilities);
  EXPECT_FALSE(set(vcpu, capabilities, models ^ 1));
  EXPECT_FALSE(set(vcpu, capabilities, models | 1ULL << 14U));
  EXPECT_EQ(get(vcpu, capabilities), models);
}

// A VMM asks /dev/kvm (KVM_GET_MSRS) for the value that a vCPU's IA32_PERF_CAPABILITIES may have.
TEST_F(OwnPmu, WhatItMayHaveStandsAmongTheFeatures) {
  kvm.feature_msrs = {{0x10A, 0x2B}, {capabilities, 0}};
  EXPECT_EQ(get(kvm.system(), capabilities), vpmu::perf_capabilities(vpmu::describe(vpmu::Generation::haswell)));
  EXPECT_EQ(get(kvm.system(), 0x10A), 0x2BU) << "KVM's";
}

}  // namespace
}  // namespace vmm::test
