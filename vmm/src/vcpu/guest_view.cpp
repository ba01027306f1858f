#include "vcpu/guest_view.hpp"

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

vpmu::PagingPrivilege privilege_at(unsigned cpl) {
  return cpl == 3 ? vpmu::PagingPrivilege::user : vpmu::PagingPrivilege::supervisor;
}

/// The answer to an access if KVM does not give us the registers: nothing can be reached.
vpmu::AccessFault unreachable(vpmu::GuestLinear at) { return {.address = at, .not_memory = true}; }

}  // namespace

unsigned cpl_of(const kvm_sregs& sregs) { return sregs.ss.dpl; }

bool is_delivering(const kvm_vcpu_events& e) {
  return e.exception.injected != 0 || e.exception.pending != 0 || e.interrupt.injected != 0 || e.nmi.injected != 0;
}

vpmu::PagingState paging_state(const kvm_sregs& sregs, const kvm_regs& regs) {
  constexpr std::uint64_t rflags_ac = vpmu::bit(18);
  return {.cr0 = sregs.cr0,
          .cr3 = sregs.cr3,
          .cr4 = sregs.cr4,
          .efer = sregs.efer,
          .physical_width = 52,  // the maximum: what the guest may not use lies outside its RAM anyway
          .alignment_check = (regs.rflags & rflags_ac) != 0};
}

std::optional<GuestView::Now> GuestView::now() {
  const auto regs = port_->regs();
  const auto sregs = port_->sregs();
  if (!regs || !sregs) return std::nullopt;
  return Now{.paging = paging_state(*sregs, *regs), .cpl = cpl_of(*sregs)};
}

std::optional<GuestView::Now> GuestView::implicit() {
  auto n = now();
  if (n) n->paging.alignment_check = false;
  return n;
}

vpmu::AccessResult GuestView::read(vpmu::GuestLinear at, std::span<std::byte> out) {
  const auto n = implicit();
  return n ? memory_->read(n->paging, at, out) : unreachable(at);
}

vpmu::AccessResult GuestView::write(vpmu::GuestLinear at, std::span<const std::byte> in) {
  const auto n = implicit();
  return n ? memory_->write(n->paging, at, in) : unreachable(at);
}

vpmu::AccessResult GuestView::probe(vpmu::GuestLinear at, std::uint64_t size, vpmu::AccessKind kind) {
  const auto n = implicit();
  return n ? memory_->probe(n->paging, at, size, kind) : unreachable(at);
}

vpmu::AccessResult GuestView::read_current(vpmu::GuestLinear at, std::span<std::byte> out) {
  const auto n = now();
  return n ? memory_->read(n->paging, at, out, privilege_at(n->cpl)) : unreachable(at);
}

vpmu::AccessResult GuestView::write_current(vpmu::GuestLinear at, std::span<const std::byte> in) {
  const auto n = now();
  return n ? memory_->write(n->paging, at, in, privilege_at(n->cpl)) : unreachable(at);
}

vpmu::AccessResult GuestView::probe_current(vpmu::GuestLinear at, std::uint64_t size, vpmu::AccessKind kind) {
  const auto n = now();
  return n ? memory_->probe(n->paging, at, size, kind, privilege_at(n->cpl)) : unreachable(at);
}

std::size_t GuestView::fetch(vpmu::GuestLinear at, std::span<std::byte> out, unsigned cpl) {
  const auto n = now();
  return n ? memory_->fetch(n->paging, at, out, privilege_at(cpl)) : 0;
}

bool GuestView::patch(vpmu::GuestLinear at, std::span<const std::byte> in) {
  const auto n = now();
  return n && memory_->patch(n->paging, at, in);
}

}  // namespace vmm
