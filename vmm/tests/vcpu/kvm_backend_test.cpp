#include "vcpu/kvm_backend.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "fakes/fake_kvm.hpp"
#include "kvm/system.hpp"
#include "vpmu/msr.hpp"

// The clock of a vCPU whose TSC KVM scales, as for QEMU's tsc-frequency and for guests migrated from another host.

namespace vmm::test {
namespace {

using namespace std::chrono_literals;
constexpr std::uint32_t pmc0 = 0xC1;

class ScaledTsc : public testing::TestWithParam<std::uint32_t> {
 protected:
  /// A vCPU whose TSC rate was set to `khz` before its back end was made.
  void make(std::uint32_t khz, unsigned fraction_bits = 32) {
    backend.reset();
    auto system = System::open(kvm.path());
    ASSERT_TRUE(system);
    auto created = system->create_vm();
    ASSERT_TRUE(created);
    vm.emplace(std::move(*created));
    auto made = vm->create_vcpu(0);
    ASSERT_TRUE(made);
    vcpu.emplace(std::move(*made));
    state_ = &kvm.newest_vcpu();
    state().fraction_bits = fraction_bits;
    state().tsc_khz = khz;
    state().tsc_offset = 0 - (1ULL << 35);
    auto opened = KvmBackend::create(*vm, *vcpu);
    ASSERT_TRUE(opened) << describe(opened.error());
    backend.emplace(std::move(*opened));
    backend->watch_clock(true);
  }
  FakeKvm::Vcpu& state() { return *state_; }
  [[nodiscard]] std::uint64_t tsc_by_kvm() const {
    return vcpu->msr(vpmu::msr::IA32_TIME_STAMP_COUNTER.value()).value_or(0);
  }
  /// The guest runs for `time` and exits for an MSR of the PMU; returns its TSC at the exit.
  std::uint64_t run_for(std::chrono::milliseconds time) {
    std::uint64_t left = 0;
    state().script.emplace_back([&](kvm_run& run) {
      std::this_thread::sleep_for(time);
      left = tsc_by_kvm();
      FakeKvm::reads(pmc0)(run);
    });
    const auto exit = backend->run();
    EXPECT_TRUE(exit && std::holds_alternative<MsrRead>(*exit));
    return left;
  }
  [[nodiscard]] std::uint64_t statistic(const std::string& name) const {
    std::map<std::string, std::uint64_t> all;
    backend->visit_statistics([&](std::string_view n, std::uint64_t value) { all[std::string{n}] = value; });
    return all.at(name);
  }

  FakeKvm kvm;
  std::optional<Vm> vm;
  std::optional<Vcpu> vcpu;
  std::optional<KvmBackend> backend;

 private:
  FakeKvm::Vcpu* state_{};
};

// Two exits, with time outside of the guest between them: time must be hidden at the guest's rate.
TEST_P(ScaledTsc, StandsInAnExitWhereTheGuestLeftIt) {
  for (const unsigned bits : {32U, 48U}) {
    SCOPED_TRACE(bits);
    ASSERT_NO_FATAL_FAILURE(make(GetParam(), bits));
    EXPECT_EQ(backend->tsc_khz(), GetParam());
    for (int n = 0; n < 2; ++n) {
      const std::uint64_t left = run_for(1ms);
      std::this_thread::sleep_for(3ms);
      const auto now = backend->tsc();
      ASSERT_TRUE(now);
      EXPECT_GE(*now, left);
      EXPECT_LT(*now, left + 2ULL * GetParam()) << "less than the time outside";
      EXPECT_LE(*now, tsc_by_kvm());
    }
    EXPECT_EQ(statistic("pmu.clock.unknown_scale"), 0U);
    EXPECT_GT(statistic("pmu.clock.hidden_ticks"), 2ULL * GetParam()) << "of the first exit's 3 ms";
  }
}

TEST_P(ScaledTsc, UnhaltedTicksAreTheGuests) {
  ASSERT_NO_FATAL_FAILURE(make(GetParam()));
  const std::uint64_t begin = tsc_by_kvm();
  const std::uint64_t end = run_for(5ms);
  EXPECT_GE(backend->unhalted_ticks(), 4ULL * GetParam());
  EXPECT_LE(backend->unhalted_ticks(), end - begin + GetParam()) << "a millisecond for this thread's turns";
}

TEST_P(ScaledTsc, ARateThatIsSetLaterIsFollowed) {
  ASSERT_NO_FATAL_FAILURE(make(FakeKvm::host_tsc_khz));
  state().tsc_khz = GetParam();
  ASSERT_TRUE(backend->follow_tsc());
  EXPECT_EQ(backend->tsc_khz(), GetParam());
  const std::uint64_t left = run_for(1ms);
  std::this_thread::sleep_for(3ms);
  const auto now = backend->tsc();
  ASSERT_TRUE(now);
  EXPECT_GE(*now, left);
  EXPECT_LT(*now, left + 2ULL * GetParam());
}

TEST_P(ScaledTsc, ATscWithoutAScaleIsReadFromKvmAndNothingIsHidden) {
  ASSERT_NO_FATAL_FAILURE(make(GetParam()));
  state().jumps = true;
  ASSERT_TRUE(backend->follow_tsc());
  EXPECT_EQ(statistic("pmu.clock.unknown_scale"), 1U);
  run_for(1ms);
  const std::uint64_t before = tsc_by_kvm();
  const auto now = backend->tsc();
  ASSERT_TRUE(now);
  EXPECT_GE(*now, before);
  EXPECT_LE(*now, tsc_by_kvm());
  run_for(1ms);
  EXPECT_EQ(statistic("pmu.clock.hidden_ticks"), 0U);
}

TEST_P(ScaledTsc, WithoutOffsetsLengthsOfTimeAreTheGuests) {
  kvm.errors[KVM_GET_DEVICE_ATTR] = ENXIO;
  ASSERT_NO_FATAL_FAILURE(make(GetParam()));
  run_for(5ms);
  EXPECT_GE(backend->unhalted_ticks(), 4ULL * GetParam());
  const std::uint64_t before = tsc_by_kvm();
  const auto now = backend->tsc();
  ASSERT_TRUE(now);
  EXPECT_GE(*now, before);
}

INSTANTIATE_TEST_SUITE_P(Rates, ScaledTsc, testing::Values(300'000U, 1'000'000U, 3'500'000U));

}  // namespace
}  // namespace vmm::test
