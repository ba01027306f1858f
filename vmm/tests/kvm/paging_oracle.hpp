#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "kvm/paging_vm.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/paging.hpp"

namespace vmm::test {

/// The bits of CR0, CR4 and IA32_EFER that choose a paging mode. SDM 3A 2.5, 2.2.1.
namespace paging_bits {
inline constexpr std::uint64_t PE = vpmu::bit(0), WP = vpmu::bit(16), PG = vpmu::bit(31);
inline constexpr std::uint64_t PSE = vpmu::bit(4), PAE = vpmu::bit(5), LA57 = vpmu::bit(12);
inline constexpr std::uint64_t SMEP = vpmu::bit(20), SMAP = vpmu::bit(21);
inline constexpr std::uint64_t LME = vpmu::bit(8), LMA = vpmu::bit(10), NXE = vpmu::bit(11);
inline constexpr std::uint64_t P = vpmu::bit(0), RW = vpmu::bit(1), US = vpmu::bit(2), A = vpmu::bit(5),
                               D = vpmu::bit(6), PS = vpmu::bit(7), XD = vpmu::bit(63);
}  // namespace paging_bits

/// Random page walks in a VM, the same on every run. `Mode` has the `cr4` and `efer` of a paging mode.
template <class Mode>
class PagingOracle : public testing::TestWithParam<Mode> {
 protected:
  /// Makes the VM, or skips the test where this KVM cannot have the mode.
  void SetUp() override {
    const auto system = System::open();
    if (!system) GTEST_SKIP() << "no KVM here: " << describe(system.error());
    auto created = PagingVm::create(*system, ram_bytes());
    ASSERT_TRUE(created) << describe(created.error());
    vm_ = std::move(*created);
    if (this->GetParam().efer == 0) {
      const auto walks = vm_->walks_legacy_tables();
      ASSERT_TRUE(walks) << describe(walks.error());
      if (!*walks) GTEST_SKIP() << "this KVM does not walk page tables outside IA-32e mode";
    }
    if ((this->GetParam().cr4 & paging_bits::LA57) != 0 && !vm_->features.la57)
      GTEST_SKIP() << "this KVM has no 5-level paging";
  }

  [[nodiscard]] virtual std::size_t ram_bytes() const = 0;

  std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  bool once_in(unsigned n) { return draw(n) == 0; }

  /// A random state that the mode and the VM allow. `nx` is added to IA32_EFER: NXE or 0.
  vpmu::PagingState random_state(std::uint64_t cr3, std::uint64_t nx) {
    using namespace paging_bits;
    vpmu::PagingState state{.cr0 = PE | PG | (once_in(2) ? WP : 0),
                            .cr3 = cr3,
                            .cr4 = this->GetParam().cr4,
                            .efer = this->GetParam().efer | nx,
                            .physical_width = vm_->features.physical_width,
                            .alignment_check = once_in(2),
                            .gigabyte_pages = vm_->features.gigabyte_pages};
    if (vm_->features.smep && once_in(2)) state.cr4 |= SMEP;
    if (vm_->features.smap && once_in(2)) state.cr4 |= SMAP;
    return state;
  }

  std::unique_ptr<PagingVm> vm_;
  std::mt19937_64 random_{20160901};  // NOLINT(bugprone-random-generator-seed): the same tables on every run.
};

}  // namespace vmm::test
