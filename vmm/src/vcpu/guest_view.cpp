#include "vcpu/guest_view.hpp"

#include <algorithm>

#include "support/x86.hpp"

namespace vmm {
namespace {

vpmu::PagingPrivilege privilege_at(unsigned cpl) {
  return cpl == 3 ? vpmu::PagingPrivilege::user : vpmu::PagingPrivilege::supervisor;
}

/// The answer to an access if KVM does not give us the registers: nothing can be reached.
vpmu::AccessFault unreachable(vpmu::GuestLinear at) { return {.address = at, .not_memory = true}; }

/// `access`, to the parts of `bytes` in each page, up to the first fault.
template <typename Bytes, typename Access>
vpmu::AccessResult by_pages(vpmu::GuestLinear at, Bytes bytes, Access access) {
  for (std::size_t done = 0; done < bytes.size();) {
    const vpmu::GuestLinear part = at + done;
    const std::size_t in_page =
        std::min<std::size_t>(bytes.size() - done, vpmu::page_size - part.value() % vpmu::page_size);
    if (const auto fault = access(part, bytes.subspan(done, in_page))) return fault;
    done += in_page;
  }
  return {};
}

}  // namespace

unsigned cpl_of(const kvm_sregs& sregs) { return sregs.ss.dpl; }

bool is_delivering(const kvm_vcpu_events& e) {
  return e.exception.injected != 0 || e.exception.pending != 0 || e.interrupt.injected != 0 || e.nmi.injected != 0;
}

vpmu::PagingState paging_state(const kvm_sregs& sregs, const kvm_regs& regs, PagingLimits limits) {
  return {.cr0 = sregs.cr0,
          .cr3 = sregs.cr3,
          .cr4 = sregs.cr4,
          .efer = sregs.efer,
          .physical_width = limits.physical_width,
          .alignment_check = x86::rflags::AC::test(regs.rflags),
          .gigabyte_pages = limits.gigabyte_pages};
}

std::optional<GuestView::Now> GuestView::now() {
  const auto regs = backend_->regs();
  const auto sregs = backend_->sregs();
  if (!regs || !sregs) return std::nullopt;
  return Now{.paging = paging_state(*sregs, *regs, backend_->paging_limits()), .cpl = cpl_of(*sregs)};
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
  if (!n) return unreachable(at);
  const auto fault = memory_->read(n->paging, at, out, privilege_at(n->cpl));
  if (!fault || !fault->not_memory) return fault;
  return by_pages(at, out, [&](vpmu::GuestLinear from, std::span<std::byte> part) {
    const auto again = memory_->read(n->paging, from, part, privilege_at(n->cpl));
    return again && again->not_memory && backend_->access_beyond_ram(from, part) ? vpmu::AccessResult{} : again;
  });
}

vpmu::AccessResult GuestView::read_as_program(vpmu::GuestLinear at, std::span<std::byte> out) {
  const auto n = implicit();
  return n ? memory_->read(n->paging, at, out, vpmu::PagingPrivilege::user) : unreachable(at);
}

vpmu::AccessResult GuestView::write_current(vpmu::GuestLinear at, std::span<const std::byte> in) {
  const auto n = now();
  if (!n) return unreachable(at);
  const auto fault = memory_->write(n->paging, at, in, privilege_at(n->cpl));
  if (!fault || !fault->not_memory) return fault;
  return by_pages(at, in, [&](vpmu::GuestLinear to, std::span<const std::byte> part) {
    const auto again = memory_->write(n->paging, to, part, privilege_at(n->cpl));
    return again && again->not_memory && backend_->access_beyond_ram(to, part) ? vpmu::AccessResult{} : again;
  });
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
