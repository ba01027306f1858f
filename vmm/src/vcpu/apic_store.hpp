#pragma once
#include <cstdint>
#include <optional>

#include "kvm/exit.hpp"
#include "kvm/vcpu.hpp"
#include "kvm/vm.hpp"
#include "support/result.hpp"
#include "vcpu/port.hpp"

namespace vmm {

/// Puts the instruction that store_to_apic() runs into the guest's physical memory: a page that only can be read, in
/// the range of interrupt messages (FEEFF000H), where nobody has RAM. Before the first vCPU runs.
Result<void> prepare_apic_stores(Vm& vm);

/// What store_to_apic() has done.
struct ApicStore {
  Stored stored{};
  /// Somebody sent the vCPU an INIT meanwhile: how its next run has ended already. Nothing was stored.
  std::optional<Exit> exit{};
};

/// Stores `value` into the register at `offset` of the vCPU's xAPIC page, as an instruction of the guest's own does,
/// and changes nothing else. KVM_SET_LAPIC writes all of the page back: an interrupt that arrives between KVM_GET_LAPIC
/// and it would be gone from IRR. So the vCPU runs one MOV without paging, with interrupts off and NMIs blocked, and
/// has its own registers back afterwards; to KVM it is the processor itself that writes, alone and at once.
///
/// The last exit must be completed, and the vCPU not be at the IRET that ends an NMI's handler: KVM on AMD, which has
/// begun to step over it, would take our MOV for its end and let the next NMI in. A kick that comes meanwhile stays.
/// Cost: KVM_RUN twice, and the change of paging mode; on Linux 5.18 to 6.3 KVM builds the page tables of a machine
/// with one vCPU anew.
Result<ApicStore> store_to_apic(Vcpu& vcpu, std::uint32_t offset, std::uint32_t value);

}  // namespace vmm
