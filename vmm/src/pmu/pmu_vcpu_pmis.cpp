// When a vCPU's PMIs come.
#include <array>
#include <span>

#include "decode/instruction.hpp"
#include "pmu/pmu_vcpu.hpp"

namespace vmm {
namespace {

/// How many tries to wait for a PMI's handler to stop the counters: some 100 ms. A guest need not stop them at all.
constexpr unsigned max_handler_tries = 64;

}  // namespace

// An overflow is noticed when the vCPU next leaves its guest. Interrupts from other parts of the package are not
// precise either.
Result<void> PmuVcpu::look_at_uncore() {
  if (uncore_.package == nullptr || !uncore_.package->is_awaited()) return {};
  if (uncore_.package->take_overflow(uncore_.id, tsc_.read())) pmu_.on_uncore_overflow(env_);
  return {};
}

// Nothing retires in a halt, so that the record for which a PMI waits would come only after something else has woken
// the guest (rule Q5a).
Result<void> PmuVcpu::look_at_halt() {
  if (!pmu_.pmi_waits()) return {};
  VMM_ASSIGN(const bool halted, backend_->halted());
  if (halted) pmu_.halt(env_);
  return {};
}

// At the IRET of an NMI handler, KVM may be single-stepping the guest (store_to_apic). The PMI is as good one
// instruction later: no other guest code runs in between.
Result<bool> PmuVcpu::is_leaving_nmi_handler() {
  VMM_ASSIGN(const kvm_vcpu_events events, backend_->events());
  if (events.nmi.masked == 0) return false;
  VMM_ASSIGN(const kvm_regs regs, backend_->regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend_->sregs());
  std::array<std::byte, max_instruction_bytes> code{};
  const std::size_t size = view_.fetch(instruction_pointer(regs, sregs), code, cpl_of(sregs));
  const auto next = decode_instruction(std::span{code}.first(size), code_mode(sregs));
  return !next || next->is(SystemOp::iret);  // unreadable code may be an IRET
}

Result<void> PmuVcpu::deliver_pmis() {
  if (!pmi_.pending()) return {};
  VMM_ASSIGN(const bool later, is_leaving_nmi_handler());
  return pmi_.deliver(*backend_, !later);
}

// On hardware, a handler stops the counters long before the next overflow. With slow exits it may not: its own entry
// would be sampled, and it would find several records. KVM's NMI mask cannot tell
// whether the handler still runs: the IRET of a page fault in the handler clears it.
Result<bool> PmuVcpu::waits_for_handler() {
  if (!nmi_in_service_ || !plan_.armed || source_->traits().precise_ip) return false;
  VMM_ASSIGN(const bool masked, Pmi::is_masked(*backend_));
  nmi_in_service_ = masked && walks_.tries < max_handler_tries;
  return nmi_in_service_;
}

}  // namespace vmm
