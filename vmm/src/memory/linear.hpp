#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "memory/physical_memory.hpp"
#include "vpmu/env.hpp"
#include "vpmu/paging.hpp"

namespace vmm {

/// Called with the address of each 4 KiB page of RAM after a write to it, page tables included: writes that KVM's own
/// dirty log does not see. Because it is called after the write, a copy made between write and call is followed by
/// another. Called on the thread that writes.
using DirtyPageLog = std::function<void(vpmu::GuestPhysical page)>;

/// The guest's memory by linear address: our own page walk, then guest RAM. Every argument may be controlled by the
/// guest: nothing outside of guest RAM is touched, and every failure is a value. Holds no vCPU state; one object serves
/// all vCPUs, on any thread.
///
/// Accesses may cross pages; each page is walked on its own (rule F13). Cost: one walk, up to five words of RAM, per
/// page.
class LinearMemory {
 public:
  /// More than any one access of ours needs; a longer one fails. Bounds the work that a guest can ask for.
  static constexpr std::uint64_t max_bytes = 1 << 20;

  /// `memory` must outlive this object.
  explicit LinearMemory(PhysicalMemory& memory, DirtyPageLog log = {}) : memory_{memory}, log_{std::move(log)} {}

  /// Copies guest memory to `out`, reading each byte once; sets accessed bits. On failure `out` is unspecified.
  vpmu::AccessResult read(const vpmu::PagingState& state, vpmu::GuestLinear at, std::span<std::byte> out,
                          vpmu::PagingPrivilege privilege = vpmu::PagingPrivilege::supervisor) const;

  /// Copies `in` to guest memory; sets accessed and dirty bits (rule F12). On failure pages before the faulting one
  /// hold the new bytes, as after a faulting CPU store of several parts: probe() first where that matters (rule F10).
  vpmu::AccessResult write(const vpmu::PagingState& state, vpmu::GuestLinear at, std::span<const std::byte> in,
                           vpmu::PagingPrivilege privilege = vpmu::PagingPrivilege::supervisor) const;

  /// Checks that `size` bytes could be accessed now. Changes nothing, not even accessed bits.
  vpmu::AccessResult probe(const vpmu::PagingState& state, vpmu::GuestLinear at, std::uint64_t size,
                           vpmu::AccessKind kind,
                           vpmu::PagingPrivilege privilege = vpmu::PagingPrivilege::supervisor) const;

  /// Copies instruction bytes, up to the first that cannot be fetched without a fault, at most `out.size()`; returns
  /// their number. Has no effect that the guest could see.
  std::size_t fetch(const vpmu::PagingState& state, vpmu::GuestLinear at, std::span<std::byte> out,
                    vpmu::PagingPrivilege privilege) const;

  /// Overwrites bytes of one page past its write protection, as a debugger plants a breakpoint. False when the page is
  /// not mapped to RAM or `in` crosses it.
  bool patch(const vpmu::PagingState& state, vpmu::GuestLinear at, std::span<const std::byte> in) const;

  /// The memory below, for code that walks page tables itself: it calls written() after it has written to a page.
  [[nodiscard]] PhysicalMemory& physical() const { return memory_; }
  void written(vpmu::GuestPhysical page) const {
    if (log_) log_(page);
  }

 private:
  PhysicalMemory& memory_;
  DirtyPageLog log_;
};

}  // namespace vmm
