#include "vcpu/guest_view.hpp"

#include <algorithm>

#include "vpmu/bits.hpp"

namespace vmm {

unsigned cpl_of(const kvm_sregs& sregs) { return sregs.ss.dpl; }

vpmu::PagingState paging_state(const kvm_sregs& sregs, const kvm_regs& regs) {
  constexpr std::uint64_t rflags_ac = vpmu::bit(18);
  return {.cr0 = sregs.cr0,
          .cr3 = sregs.cr3,
          .cr4 = sregs.cr4,
          .efer = sregs.efer,
          .physical_width = 52,
          .alignment_check = (regs.rflags & rflags_ac) != 0};
}

}  // namespace vmm
