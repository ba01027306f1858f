#include <gtest/gtest.h>

#include <map>
#include <string>

#include "kvm/system.hpp"
#include "vcpu/kvm_backend.hpp"
#include "vpmu/msr.hpp"

namespace vmm::test {
namespace {

// On a real KVM, the TSC that the back end computes is the one that KVM gives the guest.
TEST(KvmBackendOnKvm, TscIsTheOneThatKvmGives) {
  const auto system = System::open();
  ASSERT_TRUE(system) << describe(system.error());
  auto vm = system->create_vm();
  ASSERT_TRUE(vm);
  auto vcpu = vm->create_vcpu(0);
  ASSERT_TRUE(vcpu);
  auto backend = KvmBackend::create(*vm, *vcpu);
  ASSERT_TRUE(backend);
  backend->watch_clock(true);
  for (int n = 0; n < 100; ++n) {
    const auto before = vcpu->msr(vpmu::msr::IA32_TIME_STAMP_COUNTER.value());
    const auto now = backend->tsc();
    const auto after = vcpu->msr(vpmu::msr::IA32_TIME_STAMP_COUNTER.value());
    ASSERT_TRUE(before && now && after);
    EXPECT_LE(*before, *now);
    EXPECT_LE(*now, *after);
  }
  std::map<std::string, std::uint64_t> all;
  backend->visit_statistics([&](std::string_view name, std::uint64_t value) { all[std::string{name}] = value; });
  EXPECT_EQ(all.at("pmu.clock.unknown_scale"), 0U);
  EXPECT_EQ(backend->entries().has_value(), vcpu->halt_time().exact());
}

}  // namespace
}  // namespace vmm::test
