#include "passthrough/pass_through.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>

#include "boot/image_file.hpp"
#include "fakes/fake_kvm.hpp"
#include "machine/machine.hpp"

// Pass-through of KVM's own PMU to the guest: what we ask of KVM, and what we refuse. No host with a PMU was at hand;
// the KVM here is a fake.

namespace vmm::test {
namespace {

constexpr std::uint32_t perf_capabilities = 0x345, misc_enable = 0x1A0, pebs_enable = 0x3F1, ds_area = 0x600;
constexpr std::uint64_t pebs_unavailable = 1U << 12;
constexpr std::uint64_t pebs_format_4 = 0x400, full_width = 1U << 13;
constexpr std::uint32_t dtes64 = 1U << 2, pdcm = 1U << 15, ds = 1U << 21;
constexpr CpuidRegisters leaf_a{.eax = 0x08300802, .ebx = 0, .ecx = 0, .edx = 0x8603};
constexpr CpuidRegisters intel{.ebx = 0x756E6547, .ecx = 0x6C65746E, .edx = 0x49656E69};  // "GenuineIntel"
constexpr std::uint32_t skylake = 0x506E3, ice_lake_x = 0x606A6;

/// A guest of one instruction on a fake KVM that has PEBS if `pebs`, and lists PEBS' MSRs for migration if `carries`.
class PassedGuest {
 public:
  explicit PassedGuest(std::uint32_t signature, bool pebs, bool carries) {
    kvm.supported.add(0, intel);
    kvm.supported.add(1, {.eax = signature, .ecx = pdcm | (pebs ? dtes64 : 0), .edx = pebs ? ds : 0});
    kvm.supported.add(0xA, leaf_a);
    kvm.supported.add_subleaf(4, 0, {.eax = 0x121, .ebx = 11U << 22 | 63, .ecx = 63});
    kvm.supported.add(0x80000002, {.eax = 0x12345678});
    kvm.feature_msrs[perf_capabilities] = full_width | (pebs ? pebs_format_4 : 0);
    if (carries) kvm.msr_list.insert(kvm.msr_list.end(), {pebs_enable, ds_area});
    kvm.other_capabilities = 1;
    kvm.vcpu_msrs = {
        {0x10, 0}, {0x8B, 0}, {0x2FF, 0}, {0x6E0, 0}, {perf_capabilities, 0}, {misc_enable, pebs_unavailable}};
    const auto image = small_bzimage();
    std::ofstream{kernel_, std::ios::binary}.write(reinterpret_cast<const char*>(image.bytes().data()),
                                                   static_cast<std::streamsize>(image.bytes().size()));
    config.kernel = kernel_;
    config.memory_bytes = 32U << 20U;
    config.source = pass_through_source;
    config.accel = Accel::kvm;
    config.kvm_device = kvm.path();
  }
  ~PassedGuest() { ::unlink(kernel_.c_str()); }
  PassedGuest(const PassedGuest&) = delete;
  PassedGuest& operator=(const PassedGuest&) = delete;
  PassedGuest(PassedGuest&&) = delete;
  PassedGuest& operator=(PassedGuest&&) = delete;

  /// Runs the machine to its end.
  Result<StopReason> run() {
    Log log{[this](LogLevel, std::string_view line) { warned += line; }, LogLevel::warning};
    VMM_ASSIGN(auto machine, Machine::create(config, {}, log));
    machine->start();
    const StopReason reason = machine->wait();
    if (auto failed = machine->failure()) return Failure{*failed};
    return reason;
  }

  /// The guest's CPUID.
  CpuidTable cpuid() { return CpuidTable{kvm.first_vcpu().cpuid}; }

  FakeKvm kvm;
  MachineConfig config;
  std::string warned;

 private:
  std::string kernel_{testing::TempDir() + "passed_guest_" + std::to_string(::getpid())};
};

TEST(PassThrough, GivesTheGuestKvmsPmuAndTouchesNothingOfIt) {
  PassedGuest guest{skylake, false, false};
  guest.config.model = "skylake";
  const auto end = guest.run();
  ASSERT_TRUE(end) << describe(end.error());
  EXPECT_EQ(*end, StopReason::power_off);
  EXPECT_EQ(guest.kvm.count(KVM_RUN), 1);
  EXPECT_EQ(guest.kvm.count(KVM_X86_SET_MSR_FILTER), 0) << "MSRs are KVM's";
  EXPECT_EQ(guest.kvm.count(KVM_SET_PMU_EVENT_FILTER), 0);
  EXPECT_EQ(guest.kvm.count(KVM_SET_GUEST_DEBUG), 0) << "RDPMC is KVM's";
  EXPECT_EQ(std::ranges::count(guest.kvm.enabled, std::uint32_t{KVM_CAP_PMU_CAPABILITY}), 0) << "KVM's PMU stays on";
  EXPECT_EQ(guest.cpuid().get(0xA), leaf_a);
}

TEST(PassThrough, WithoutPebsOfKvmsTheGuestIsToldSo) {
  PassedGuest guest{skylake, true, false};
  guest.config.model = "skylake";
  ASSERT_TRUE(guest.run());
  const CpuidRegisters leaf = guest.cpuid().get(1);
  EXPECT_EQ(leaf.ecx & pdcm, pdcm);
  EXPECT_EQ(leaf.ecx & dtes64, 0U);
  EXPECT_EQ(leaf.edx & ds, 0U);
  EXPECT_EQ(guest.kvm.first_vcpu().msrs[perf_capabilities], full_width);
  EXPECT_EQ(guest.kvm.first_vcpu().msrs[misc_enable] & pebs_unavailable, pebs_unavailable);
  EXPECT_EQ(guest.kvm.first_vcpu().msrs[misc_enable] & 0x81, 0x81U) << "fast strings, performance monitoring";
  EXPECT_NE(guest.warned.find("guests of model skylake have no PEBS"), std::string::npos) << guest.warned;
}

TEST(PassThrough, PebsOfKvmsComesWithItsMsrs) {
  PassedGuest guest{ice_lake_x, true, true};
  guest.config.model = "host";
  const auto end = guest.run();
  ASSERT_TRUE(end) << describe(end.error());
  const CpuidTable cpuid = guest.cpuid();
  EXPECT_EQ(cpuid.get(1).eax, ice_lake_x) << "KVM compares the models";
  EXPECT_EQ(cpuid.get(1).ecx & dtes64, dtes64);
  EXPECT_EQ(cpuid.get(1).edx & ds, ds);
  EXPECT_EQ(cpuid.get(0x80000002).eax, 0x12345678U);
  EXPECT_EQ(cpuid.get(4, 0).ebx, guest.kvm.supported.get(4, 0).ebx) << "48 KiB, 12 ways";
  EXPECT_EQ(guest.kvm.first_vcpu().msrs[perf_capabilities], full_width | pebs_format_4);
  EXPECT_EQ(guest.kvm.first_vcpu().msrs[misc_enable] & pebs_unavailable, 0U);
  EXPECT_EQ(guest.kvm.first_vcpu().msrs[misc_enable] & 0x81, 0x81U) << "fast strings, performance monitoring";
  EXPECT_EQ(guest.warned, "");
}

TEST(PassThrough, AnotherModelIsRefusedWithWhatTheHostCouldDo) {
  PassedGuest guest{ice_lake_x, true, true};
  guest.config.model = "haswell";
  const auto end = guest.run();
  ASSERT_FALSE(end);
  for (const char* part : {"model haswell", "606a6", "8 counters of 48 bits", "PEBS format 4", "--model host"})
    EXPECT_NE(describe(end.error()).find(part), std::string::npos) << part << " in: " << describe(end.error());
  EXPECT_EQ(guest.kvm.count(KVM_RUN), 0);
}

TEST(PassThrough, KvmWithoutAPmuIsRefused) {
  for (const bool by_capability : {true, false}) {
    PassedGuest guest{skylake, false, false};
    guest.config.model = "skylake";
    if (by_capability) guest.kvm.capabilities[KVM_CAP_PMU_CAPABILITY] = 0;
    if (!by_capability) {
      guest.kvm.supported = {};
      guest.kvm.supported.add(0, intel);
    }
    const auto end = guest.run();
    ASSERT_FALSE(end);
    EXPECT_NE(describe(end.error()).find("KVM gives guests no PMU"), std::string::npos) << describe(end.error());
  }
}

TEST(PassThrough, RefusalsOfKvmAreReported) {
  for (const unsigned long request :
       {static_cast<unsigned long>(KVM_GET_MSR_INDEX_LIST), static_cast<unsigned long>(KVM_SET_MSRS),
        static_cast<unsigned long>(KVM_SET_CPUID2), static_cast<unsigned long>(KVM_GET_SUPPORTED_CPUID)}) {
    PassedGuest guest{skylake, false, false};
    guest.config.model = "skylake";
    guest.kvm.errors[request] = EINVAL;
    const auto end = guest.run();
    ASSERT_FALSE(end) << request;
    EXPECT_EQ(end.error().system_errno, EINVAL);
  }
}

TEST(PassThrough, OtherHostsThanIntelsAreRefused) {
  KvmPmu pmu;
  for (const HostVendor vendor : {HostVendor::amd, HostVendor::other}) {
    pmu.host = {.vendor = vendor, .generation = {}};
    pmu.offered = true;
    pmu.supported.add(0xA, leaf_a);
    const auto made = PassThrough::create(pmu, find_machine_model("haswell"));
    ASSERT_FALSE(made);
    EXPECT_NE(describe(made.error()).find("not Intel's"), std::string::npos) << describe(made.error());
  }
}

TEST(PassThrough, PebsNeedsAllOfItsParts) {
  KvmPmu whole{.host = {.vendor = HostVendor::intel, .generation = {}},
               .perf_capabilities = pebs_format_4,
               .saves_ds = true,
               .offered = true};
  whole.supported.add(1, {.ecx = dtes64, .edx = ds});
  EXPECT_TRUE(whole.pebs());
  KvmPmu without = whole;
  without.saves_ds = false;
  EXPECT_FALSE(without.pebs());
  without = whole;
  without.perf_capabilities = full_width;
  EXPECT_FALSE(without.pebs());
  for (const CpuidRegisters& leaf : {CpuidRegisters{.ecx = dtes64}, CpuidRegisters{.edx = ds}}) {
    without = whole;
    without.supported = {};
    without.supported.add(1, leaf);
    EXPECT_FALSE(without.pebs());
  }
}

TEST(PassThrough, EventPolicyIsKvmsBeforeTheFirstVcpu) {
  PassedGuest guest{skylake, false, false};
  guest.config.model = "skylake";
  auto policy = read_event_policy("architectural");
  ASSERT_TRUE(policy);
  guest.config.events = *policy;
  ASSERT_TRUE(guest.run());
  EXPECT_EQ(guest.kvm.count(KVM_SET_PMU_EVENT_FILTER), 1);
  EXPECT_TRUE(guest.kvm.came_before(KVM_SET_PMU_EVENT_FILTER, KVM_CREATE_VCPU));
}

}  // namespace
}  // namespace vmm::test
