#pragma once
#include <linux/kvm.h>

#include <array>
#include <cstdint>
#include <span>

#include "kvm/fd.hpp"
#include "kvm/vcpu.hpp"
#include "support/result.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// One KVM virtual machine. Thin typed wrapper without policy; every call is one ioctl and fails with its name and
/// errno. Calls other than create_vcpu may come from any thread.
class Vm {
 public:
  Vm(Fd fd, std::size_t run_mapping_size) : fd_{std::move(fd)}, run_mapping_size_{run_mapping_size} {}

  /// KVM_CHECK_EXTENSION on this VM; 0 when absent.
  [[nodiscard]] int check(std::uint32_t capability) const;
  /// KVM_ENABLE_CAP with up to four arguments.
  Result<void> enable(std::uint32_t capability, const std::array<std::uint64_t, 4>& arguments = {});

  /// Three pages below 4 GiB that Intel hosts need for real mode and for the TSS; no guest RAM may be there.
  Result<void> set_reserved_pages(vpmu::GuestPhysical first);
  /// In-kernel LAPIC, IOAPIC and 8259. Before the first vCPU.
  Result<void> create_irqchip();
  /// In-kernel 8254 and port 61H, whose error bits 7:6 read as 0. After create_irqchip.
  Result<void> create_pit();

  /// Maps the memory `host` of this process into the guest. `slot` names the mapping. `host` must stay mapped.
  Result<void> map_memory(std::uint32_t slot, vpmu::GuestPhysical at, std::span<std::byte> host);
  /// The same, but the guest's stores there are exits (MmioWrite).
  Result<void> map_read_only(std::uint32_t slot, vpmu::GuestPhysical at, std::span<const std::byte> host);

  /// Drives an interrupt line (GSI) of the in-kernel chips.
  enum class Level : std::uint32_t { low = 0, high = 1 };
  Result<void> set_line(std::uint32_t gsi, Level level);
  /// Raises an edge on `gsi` whenever `event` (an eventfd) is written; a write before this call raises one, too.
  Result<void> attach_irqfd(std::uint32_t gsi, const Fd& event);
  /// Ends that.
  Result<void> detach_irqfd(std::uint32_t gsi, const Fd& event);
  /// Replaces the routes of all GSIs.
  Result<void> set_gsi_routes(std::span<const kvm_irq_routing_entry> routes);
  /// Writes to `event` whenever the guest stores `bytes` bytes at `at`, which is then no exit; detaching ends that.
  Result<void> attach_ioeventfd(vpmu::GuestPhysical at, std::uint32_t bytes, const Fd& event);
  Result<void> detach_ioeventfd(vpmu::GuestPhysical at, std::uint32_t bytes, const Fd& event);

  /// Sends a message-signalled interrupt; used for a fixed-vector interrupt to one LAPIC. SDM 3A 10.11.
  /// @return false when no LAPIC took it.
  Result<bool> signal_msi(std::uint64_t address, std::uint32_t data);

  /// Replaces the whole MSR filter.
  Result<void> set_msr_filter(const kvm_msr_filter& filter);

  /// Sets which events the guest may count with KVM's own PMU. KVM_CAP_PMU_EVENT_FILTER.
  Result<void> set_pmu_event_filter(kvm_pmu_event_filter& filter);

  /// The state of chip KVM_IRQCHIP_*, and of the 8254.
  [[nodiscard]] Result<kvm_irqchip> irqchip(std::uint32_t chip) const;
  Result<void> set_irqchip(const kvm_irqchip& state);
  [[nodiscard]] Result<kvm_pit_state2> pit() const;
  Result<void> set_pit(const kvm_pit_state2& state);

  /// Creates vCPU `id`. Its KVM_RUN and most of its ioctls belong to the thread that runs it.
  Result<Vcpu> create_vcpu(std::uint32_t id);
  /// A vCPU of this VM that somebody else has created: maps its kvm_run once more. Takes over `fd`.
  Result<Vcpu> adopt_vcpu(std::uint32_t id, Fd fd) const;

 private:
  Result<void> irqfd(std::uint32_t gsi, const Fd& event, std::uint32_t flags);
  Result<void> ioeventfd(vpmu::GuestPhysical at, std::uint32_t bytes, const Fd& event, std::uint32_t flags);
  Result<void> map(std::uint32_t slot, std::uint32_t flags, vpmu::GuestPhysical at, std::span<const std::byte> host);

  Fd fd_;
  std::size_t run_mapping_size_;
};

}  // namespace vmm
