#include "vcpu/kvm_port.hpp"

namespace vmm {

Result<KvmPort> KvmPort::create(Vm& vm, Vcpu& vcpu) {
  VMM_ASSIGN(const std::uint32_t khz, vcpu.tsc_khz());
  // A precise sample looks at the registers of every exit it causes: let them come along.
  vcpu.sync_after_run(KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS);
  return KvmPort{vm, vcpu, khz};
}

Result<bool> KvmPort::halted() {
  VMM_ASSIGN(const kvm_mp_state state, vcpu_->mp_state());
  return state.mp_state == KVM_MP_STATE_HALTED;
}

// SDM 3A 10.11: physical destination, fixed delivery. APIC ids above 255 do not occur below 256 vCPUs.
Result<void> KvmPort::interrupt(std::uint32_t apic_id, std::uint8_t vector) {
  constexpr std::uint64_t msi_base = 0xFEE0'0000;
  VMM_TRY(vm_->signal_msi(msi_base | (std::uint64_t{apic_id & 0xFF} << 12), vector));
  return {};
}

}  // namespace vmm
