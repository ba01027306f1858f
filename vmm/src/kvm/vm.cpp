#include "kvm/vm.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "kvm/ioctl.hpp"

namespace vmm {

int Vm::check(std::uint32_t capability) const {
  return VMM_IOCTL_VALUE(fd_, KVM_CHECK_EXTENSION, capability).value_or(0);
}

Result<void> Vm::enable(std::uint32_t capability, const std::array<std::uint64_t, 4>& arguments) {
  kvm_enable_cap request{};
  request.cap = capability;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    request.args[i] = arguments[i];
  }
  if (const auto done = VMM_IOCTL(fd_, KVM_ENABLE_CAP, &request); !done) {
    return host_error(fmt::format("KVM_ENABLE_CAP {}", capability), done.error().system_errno);
  }
  return {};
}

Result<void> Vm::set_reserved_pages(vpmu::GuestPhysical first) {
  std::uint64_t identity_map = first.value();
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_IDENTITY_MAP_ADDR, &identity_map));
  VMM_TRY(VMM_IOCTL_VALUE(fd_, KVM_SET_TSS_ADDR, first.value() + vpmu::page_size));
  return {};
}

Result<void> Vm::create_irqchip() {
  VMM_TRY(VMM_IOCTL_VALUE(fd_, KVM_CREATE_IRQCHIP, 0));
  return {};
}

Result<void> Vm::create_pit() {
  kvm_pit_config config{};
  config.flags = KVM_PIT_SPEAKER_DUMMY;
  VMM_TRY(VMM_IOCTL(fd_, KVM_CREATE_PIT2, &config));
  return {};
}

Result<void> Vm::map_memory(std::uint32_t slot, vpmu::GuestPhysical at, std::span<std::byte> host) {
  return map(slot, 0, at, host);
}

Result<void> Vm::map_read_only(std::uint32_t slot, vpmu::GuestPhysical at, std::span<const std::byte> host) {
  return map(slot, KVM_MEM_READONLY, at, host);
}

Result<void> Vm::map(std::uint32_t slot, std::uint32_t flags, vpmu::GuestPhysical at, std::span<const std::byte> host) {
  kvm_userspace_memory_region region{};
  region.slot = slot;
  region.flags = flags;
  region.guest_phys_addr = at.value();
  region.memory_size = host.size();
  region.userspace_addr = reinterpret_cast<std::uintptr_t>(host.data());
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_USER_MEMORY_REGION, &region));
  return {};
}

Result<void> Vm::set_line(std::uint32_t gsi, Level level) {
  kvm_irq_level request{};
  request.irq = gsi;
  request.level = static_cast<std::uint32_t>(level);
  VMM_TRY(VMM_IOCTL(fd_, KVM_IRQ_LINE, &request));
  return {};
}

Result<void> Vm::irqfd(std::uint32_t gsi, const Fd& event, std::uint32_t flags) {
  kvm_irqfd request{};
  request.fd = static_cast<std::uint32_t>(event.get());
  request.gsi = gsi;
  request.flags = flags;
  VMM_TRY(VMM_IOCTL(fd_, KVM_IRQFD, &request));
  return {};
}

Result<void> Vm::attach_irqfd(std::uint32_t gsi, const Fd& event) { return irqfd(gsi, event, 0); }

Result<void> Vm::detach_irqfd(std::uint32_t gsi, const Fd& event) { return irqfd(gsi, event, KVM_IRQFD_FLAG_DEASSIGN); }

Result<void> Vm::set_gsi_routes(std::span<const kvm_irq_routing_entry> routes) {
  // The kernel's header, followed by the entries.
  std::vector<std::byte> request(sizeof(kvm_irq_routing) + routes.size_bytes());
  const kvm_irq_routing head{.nr = static_cast<std::uint32_t>(routes.size()), .flags = 0};
  std::memcpy(request.data(), &head, sizeof head);
  std::memcpy(request.data() + sizeof head, routes.data(), routes.size_bytes());
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_GSI_ROUTING, request.data()));
  return {};
}

Result<void> Vm::ioeventfd(vpmu::GuestPhysical at, std::uint32_t bytes, const Fd& event, std::uint32_t flags) {
  kvm_ioeventfd request{};
  request.addr = at.value();
  request.len = bytes;
  request.fd = event.get();
  request.flags = flags;
  VMM_TRY(VMM_IOCTL(fd_, KVM_IOEVENTFD, &request));
  return {};
}

Result<void> Vm::attach_ioeventfd(vpmu::GuestPhysical at, std::uint32_t bytes, const Fd& event) {
  return ioeventfd(at, bytes, event, 0);
}

Result<void> Vm::detach_ioeventfd(vpmu::GuestPhysical at, std::uint32_t bytes, const Fd& event) {
  return ioeventfd(at, bytes, event, KVM_IOEVENTFD_FLAG_DEASSIGN);
}

Result<bool> Vm::signal_msi(std::uint64_t address, std::uint32_t data) {
  kvm_msi message{};
  message.address_lo = static_cast<std::uint32_t>(address);
  message.address_hi = static_cast<std::uint32_t>(address >> 32U);
  message.data = data;
  VMM_ASSIGN(const int taken, VMM_IOCTL(fd_, KVM_SIGNAL_MSI, &message));
  return taken > 0;
}

Result<kvm_irqchip> Vm::irqchip(std::uint32_t chip) const {
  kvm_irqchip state{};
  state.chip_id = chip;
  VMM_TRY(VMM_IOCTL(fd_, KVM_GET_IRQCHIP, &state));
  return state;
}

Result<void> Vm::set_irqchip(const kvm_irqchip& state) {
  kvm_irqchip copy = state;
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_IRQCHIP, &copy));
  return {};
}

Result<kvm_pit_state2> Vm::pit() const {
  kvm_pit_state2 state{};
  VMM_TRY(VMM_IOCTL(fd_, KVM_GET_PIT2, &state));
  return state;
}

Result<void> Vm::set_pit(const kvm_pit_state2& state) {
  kvm_pit_state2 copy = state;
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_PIT2, &copy));
  return {};
}

Result<void> Vm::set_pmu_event_filter(kvm_pmu_event_filter& filter) {
  VMM_TRY(VMM_IOCTL(fd_, KVM_SET_PMU_EVENT_FILTER, &filter));
  return {};
}

Result<void> Vm::set_msr_filter(const kvm_msr_filter& filter) {
  kvm_msr_filter copy = filter;
  VMM_TRY(VMM_IOCTL(fd_, KVM_X86_SET_MSR_FILTER, &copy));
  return {};
}

Result<Vcpu> Vm::create_vcpu(std::uint32_t id) {
  VMM_ASSIGN(const int number, VMM_IOCTL_VALUE(fd_, KVM_CREATE_VCPU, id));
  return adopt_vcpu(id, Fd{number});
}

Result<Vcpu> Vm::adopt_vcpu(std::uint32_t id, Fd fd) const {
  void* const run = ::mmap(nullptr, run_mapping_size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (run == MAP_FAILED) {
    return host_error("mmap of kvm_run", errno);
  }
  return Vcpu{id, std::move(fd), Mapping{run, run_mapping_size_}, check(KVM_CAP_SYNC_REGS)};
}

}  // namespace vmm
