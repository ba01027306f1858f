#include "pmu/msr_router.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fakes/fake_backend.hpp"
#include "vpmu/registers.hpp"

namespace vmm::test {
namespace {

constexpr std::uint32_t debugctl = 0x1D9;
constexpr std::uint64_t btf = vpmu::reg::debugctl::BTF::mask;
constexpr std::uint32_t nobodys = 0x150;

/// The result of a guest's access.
struct RoutedAnswer {
  std::uint64_t data{};
  bool gp{};
  friend bool operator==(const RoutedAnswer&, const RoutedAnswer&) = default;
};

class MsrRouterOf : public testing::Test {
 protected:
  RoutedAnswer read(MsrRouter& router, std::uint32_t index) {
    unsigned long long data = 0x5555;
    std::uint8_t gp = 0;
    router.read({index, MsrReason::filter, {data, gp}});
    return {data, gp != 0};
  }
  bool write_faults(MsrRouter& router, std::uint32_t index, std::uint64_t value) {
    unsigned long long data = 0;
    std::uint8_t gp = 0;
    router.write({index, value, MsrReason::filter, {data, gp}}, router.find(index));
    return gp != 0;
  }

  FakeBackend backend_;
  vpmu::Pmu pmu_{{}};
  std::vector<std::string> lines_;
  Log log_{[this](LogLevel, std::string_view line) { lines_.emplace_back(line); }, LogLevel::debug};
  GuestTsc tsc_{backend_, log_};
  MsrRouter router_{pmu_, {}, backend_, tsc_, UnknownMsr::gp, log_};
};

TEST_F(MsrRouterOf, ThePmuAnswersItsOwnRegisters) {
  EXPECT_FALSE(write_faults(router_, 0x186, 0x4300C0));
  EXPECT_EQ(read(router_, 0x186), (RoutedAnswer{0x4300C0, false}));
  EXPECT_EQ(router_.statistics().pmu_writes, 1U);
  EXPECT_EQ(router_.statistics().pmu_reads, 1U);
  EXPECT_EQ(router_.statistics().faults, 0U);
}

// RAPL and residencies: of a machine of ours, which has a package.
TEST_F(MsrRouterOf, ThePackageTellsItsEnergy) {
  PackageUncore package{*pmu_.generation().uncore, 2, 1, [](unsigned) {}};
  MsrRouter router{pmu_, {.package = &package}, backend_, tsc_, UnknownMsr::gp, log_};
  EXPECT_EQ(read(router, 0x606), (RoutedAnswer{0xA'0E03, false}));
  EXPECT_FALSE(read(router, 0x611).gp);
  EXPECT_TRUE(write_faults(router, 0x611, 0));
  unsigned long long data = 0;
  std::uint8_t gp = 0;
  EXPECT_TRUE(router.faults({0x611, 0, MsrReason::filter, {data, gp}}, router.find(0x611)));
  EXPECT_TRUE(read(router_, 0x611).gp) << "in another VMM's machine";
  EXPECT_EQ(router.statistics().unknown, 0U);
}

TEST_F(MsrRouterOf, TheUncoreAnswersWhatIsNotThePmus) {
  PackageUncore package{*pmu_.generation().uncore, 2, 1, [](unsigned) {}};
  MsrRouter router{pmu_, {.package = &package}, backend_, tsc_, UnknownMsr::gp, log_};
  EXPECT_FALSE(write_faults(router, 0x700, 0x1234));
  EXPECT_EQ(read(router, 0x700), (RoutedAnswer{0x1234, false}));
  EXPECT_TRUE(write_faults(router, 0x700, ~0ULL));
  unsigned long long data = 0;
  std::uint8_t gp = 0;
  EXPECT_TRUE(router.faults({0x700, ~0ULL, MsrReason::filter, {data, gp}}, router.find(0x700)));
  EXPECT_FALSE(router.faults({0x700, 0, MsrReason::filter, {data, gp}}, router.find(0x700)));
  EXPECT_FALSE(write_faults(router, 0x391, 1)) << "of the core on Skylake";
  EXPECT_EQ(read(router, 0x38E), (RoutedAnswer{1, false}));
  EXPECT_TRUE(write_faults(router_, 0x700, 0)) << "without an uncore";
}

TEST_F(MsrRouterOf, IllegalValuesFaultAndChangeNothing) {
  EXPECT_TRUE(write_faults(router_, 0x38E, 0)) << "IA32_PERF_GLOBAL_STATUS is read-only";
  EXPECT_TRUE(write_faults(router_, 0x186, ~0ULL));
  EXPECT_EQ(read(router_, 0x186), (RoutedAnswer{0, false}));
  EXPECT_EQ(router_.statistics().faults, 2U);
}

TEST_F(MsrRouterOf, CounterThatThisModelLacksFaultsOnRead) {
  EXPECT_TRUE(read(router_, 0x18D).gp) << "PERFEVTSEL7 exists without SMT only";
  EXPECT_EQ(router_.statistics().faults, 1U);
}

// As in KVM: guests write to the two counters of a P6 without checking whether they exist.
TEST_F(MsrRouterOf, CountersOfP6AreInAPmuWithoutAnyAndHoldNothing) {
  for (const std::uint8_t counters : {std::uint8_t{0}, std::uint8_t{1}}) {
    vpmu::Pmu pmu{{.limits = {.gp_counters = counters}}};
    MsrRouter router{pmu, {}, backend_, tsc_, UnknownMsr::gp, log_};
    unsigned long long data = 0;
    std::uint8_t gp = 0;
    for (const std::uint32_t last : {0xC2U, 0x187U}) {
      EXPECT_FALSE(router.faults({last, 5, MsrReason::filter, {data, gp}}, router.find(last)));
      EXPECT_FALSE(write_faults(router, last, 5));
      EXPECT_EQ(read(router, last), (RoutedAnswer{0, false}));
      EXPECT_FALSE(write_faults(router, last - 1, 5));
      EXPECT_EQ(read(router, last - 1), (RoutedAnswer{counters * 5U, false}));
      EXPECT_TRUE(write_faults(router, last + 1, 5));
      EXPECT_TRUE(read(router, last + 1).gp);
    }
  }
}

TEST_F(MsrRouterOf, UnknownMsrFaultsAsOnHardware) {
  EXPECT_EQ(read(router_, nobodys), (RoutedAnswer{0, true}));
  EXPECT_TRUE(write_faults(router_, nobodys, 1));
  EXPECT_EQ(router_.statistics().unknown, 2U);
}

TEST_F(MsrRouterOf, UnknownMsrReadsZeroWhenIgnored) {
  MsrRouter ignoring{pmu_, {}, backend_, tsc_, UnknownMsr::ignore, log_};
  EXPECT_EQ(read(ignoring, nobodys), (RoutedAnswer{0, false}));
  EXPECT_FALSE(write_faults(ignoring, nobodys, 1));
  EXPECT_EQ(ignoring.statistics().unknown, 2U);
}

TEST_F(MsrRouterOf, EachUnknownMsrIsLoggedOnceForEachDirection) {
  for (int i = 0; i < 3; ++i) {
    read(router_, nobodys);
    write_faults(router_, nobodys, 1);
  }
  read(router_, nobodys + 1);
  ASSERT_EQ(lines_.size(), 3U);
  EXPECT_NE(lines_[0].find("0x150"), std::string::npos) << lines_[0];
}

// BTF works in KVM; nothing else of DEBUGCTL may reach it.
TEST_F(MsrRouterOf, BranchSteppingIsForwardedAlone) {
  EXPECT_FALSE(write_faults(router_, debugctl, btf | vpmu::reg::debugctl::LBR::mask));
  EXPECT_EQ(backend_.calls, (std::vector<std::string>{"set_msr 0x1d9 0x2", "msr 0x1d9"}));
  EXPECT_FALSE(write_faults(router_, debugctl, 0));
  EXPECT_EQ(backend_.calls.back(), "set_msr 0x1d9 0x0");
}

TEST_F(MsrRouterOf, DebugctlWithoutBranchSteppingCostsNothing) {
  write_faults(router_, debugctl, vpmu::reg::debugctl::LBR::mask);
  write_faults(router_, debugctl, 0);
  EXPECT_TRUE(backend_.calls.empty());
}

// Rule Z11: the CPU clears BTF when it delivers #DB, without an exit. A guest that sets BTF again must get it.
TEST_F(MsrRouterOf, BranchSteppingIsForwardedAgainAfterTheCpuClearedIt) {
  write_faults(router_, debugctl, btf);
  backend_.msrs[debugctl] = 0;
  write_faults(router_, debugctl, btf);
  EXPECT_EQ(backend_.msrs[debugctl], btf);
}

// Rule Z11. The #DB has cleared LBR, too.
TEST_F(MsrRouterOf, BranchSteppingThatTheCpuClearedReadsAsCleared) {
  write_faults(router_, debugctl, btf | vpmu::reg::debugctl::LBR::mask);
  EXPECT_EQ(read(router_, debugctl), (RoutedAnswer{.data = btf | vpmu::reg::debugctl::LBR::mask}));
  backend_.msrs[debugctl] = 0;
  EXPECT_EQ(read(router_, debugctl), RoutedAnswer{});
}

// A #DB that we inject clears BTF, too, but KVM does not do it: we must.
TEST_F(MsrRouterOf, BranchSteppingEndsWithADebugExceptionThatIsInjected) {
  write_faults(router_, debugctl, btf);
  router_.on_debug_exception();
  EXPECT_EQ(backend_.msrs[debugctl], 0U);
  EXPECT_EQ(read(router_, debugctl), RoutedAnswer{});
  backend_.calls.clear();
  router_.on_debug_exception();
  EXPECT_TRUE(backend_.calls.empty());
}

// If KVM drops BTF, we must not conclude that a #DB has cleared it.
TEST_F(MsrRouterOf, BranchSteppingThatKvmDropsReadsAsWritten) {
  backend_.dropped[debugctl] = btf;
  write_faults(router_, debugctl, btf);
  EXPECT_EQ(read(router_, debugctl), (RoutedAnswer{.data = btf}));
}

// kvm_intel accepts a write of BTF without setting it.
TEST_F(MsrRouterOf, BranchSteppingThatKvmDropsIsToldOnceAndCounted) {
  backend_.dropped[debugctl] = btf;
  for (int n = 0; n < 3; ++n) EXPECT_FALSE(write_faults(router_, debugctl, btf));
  EXPECT_FALSE(write_faults(router_, debugctl, 0));
  EXPECT_EQ(router_.statistics().lost_branch_stepping, 3U);
  ASSERT_EQ(lines_.size(), 1U);
  EXPECT_NE(lines_[0].find("DEBUGCTL.BTF"), std::string::npos) << lines_[0];
}

TEST_F(MsrRouterOf, BranchSteppingThatKvmKeepsIsNotWarnedOf) {
  for (int n = 0; n < 3; ++n) write_faults(router_, debugctl, n % 2 == 0 ? btf : 0);
  EXPECT_EQ(router_.statistics().lost_branch_stepping, 0U);
  EXPECT_TRUE(lines_.empty());
}

TEST_F(MsrRouterOf, RefusedWriteOfDebugctlIsNotForwarded) {
  EXPECT_TRUE(write_faults(router_, debugctl, btf | vpmu::bit(63)));
  EXPECT_TRUE(backend_.calls.empty());
}

TEST_F(MsrRouterOf, KvmWithoutBranchSteppingIsWarnedOfOnce) {
  backend_.broken.insert("set_msr");
  EXPECT_FALSE(write_faults(router_, debugctl, btf));
  EXPECT_FALSE(write_faults(router_, debugctl, 0));
  EXPECT_FALSE(write_faults(router_, debugctl, btf));
  EXPECT_EQ(lines_.size(), 1U);
}

}  // namespace
}  // namespace vmm::test
