#pragma once
#include <cstdint>
#include <optional>

#include "kvm/exit.hpp"
#include "kvm/vcpu.hpp"
#include "kvm/vm.hpp"
#include "support/result.hpp"
#include "vcpu/backend.hpp"

namespace vmm {

/// Puts the instruction that store_to_apic() runs into the guest's physical memory: a read-only page in the address
/// range of interrupt messages (FEEFF000H), where no guest has RAM. Call before the first vCPU runs.
Result<void> prepare_apic_stores(Vm& vm);

/// The result of store_to_apic().
struct ApicStore {
  Stored stored{};
  /// The vCPU received an INIT meanwhile, and nothing was stored: the exit with which its next run has already ended.
  std::optional<Exit> exit{};
};

/// Stores `value` into the register at `offset` of the vCPU's xAPIC page, like an instruction of the guest, and changes
/// nothing else. KVM_SET_LAPIC would write the whole page back, and an interrupt that arrived since KVM_GET_LAPIC would
/// vanish from IRR. So the vCPU runs one MOV without paging, with interrupts off and NMIs blocked, and gets its own
/// registers back afterwards. For KVM the processor itself writes that one register.
///
/// The last exit must be completed, and the vCPU must not be at the IRET of an NMI handler: KVM on AMD may be
/// single-stepping that IRET, would take our MOV for its end, and let the next NMI in. A kick that arrives meanwhile is
/// kept. Cost: KVM_RUN twice, and the change of paging mode. Linux 5.18 to 6.3 rebuilds the page tables of a VM that
/// has one vCPU.
Result<ApicStore> store_to_apic(Vcpu& vcpu, std::uint32_t offset, std::uint32_t value);

}  // namespace vmm
