#include "machine/kvm_wires.hpp"

#include <algorithm>
#include <cerrno>

namespace vmm {
namespace {

/// The IOAPIC's lines have the lowest GSIs.
constexpr std::uint32_t chip_lines = 24, pic_lines = 16, lines_of_a_pic = 8;
constexpr std::uint32_t store_bytes = 2;  // Virtio 1.2 4.1.5.2: the queue's index

/// The routes that KVM_CREATE_IRQCHIP sets up: each line to the IOAPIC, the first 16 also to the 8259s.
std::vector<kvm_irq_routing_entry> chip_routes() {
  std::vector<kvm_irq_routing_entry> routes;
  const auto add = [&routes](std::uint32_t gsi, std::uint32_t chip, std::uint32_t pin) {
    kvm_irq_routing_entry route{};
    route.gsi = gsi;
    route.type = KVM_IRQ_ROUTING_IRQCHIP;
    route.u.irqchip.irqchip = chip;
    route.u.irqchip.pin = pin;
    routes.push_back(route);
  };
  for (std::uint32_t gsi = 0; gsi < chip_lines; ++gsi) {
    if (gsi < pic_lines)
      add(gsi, gsi < lines_of_a_pic ? KVM_IRQCHIP_PIC_MASTER : KVM_IRQCHIP_PIC_SLAVE, gsi % lines_of_a_pic);
    add(gsi, KVM_IRQCHIP_IOAPIC, gsi);
  }
  return routes;
}

/// KVM refuses other messages, or routes to them. SDM 3A 10.11.1.
bool names_a_processor(const InterruptMessage& message) {
  constexpr std::uint64_t prefix = 0xFEE;
  return message.address >> 20U == prefix;
}

}  // namespace

KvmWires::KvmWires(Vm& vm) : vm_{&vm} {}

Result<void> KvmWires::send(const InterruptMessage& message) {
  if (!names_a_processor(message)) return {};
  const auto sent = vm_->signal_msi(message.address, message.data);
  // EPERM means that no processor accepted it.
  if (!sent && sent.error().system_errno != EPERM) return Failure{sent.error()};
  return {};
}

Result<void> KvmWires::set_routes() {
  auto routes = chip_routes();
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    if (!lines_[i].attached) continue;
    kvm_irq_routing_entry route{};
    route.gsi = chip_lines + static_cast<std::uint32_t>(i);
    route.type = KVM_IRQ_ROUTING_MSI;
    route.u.msi.address_lo = static_cast<std::uint32_t>(lines_[i].message.address);
    route.u.msi.address_hi = static_cast<std::uint32_t>(lines_[i].message.address >> 32U);
    route.u.msi.data = lines_[i].message.data;
    routes.push_back(route);
  }
  return vm_->set_gsi_routes(routes);
}

Result<void> KvmWires::wire_interrupt(const Fd& event, const std::optional<InterruptMessage>& wanted) {
  const auto message = wanted && names_a_processor(*wanted) ? wanted : std::nullopt;
  const std::scoped_lock lock{mutex_};
  auto line = std::ranges::find(lines_, event.get(), &Line::event);
  if (line == lines_.end()) line = lines_.insert(lines_.end(), Line{.event = event.get()});
  const std::uint32_t gsi = chip_lines + static_cast<std::uint32_t>(line - lines_.begin());
  const bool was_attached = line->attached;
  // Without an irqfd the eventfd keeps what is written to it, and so serves as a masked vector's pending bit.
  if (was_attached && !message) VMM_TRY(vm_->detach_irqfd(gsi, event));
  line->attached = message.has_value();
  if (message) line->message = *message;
  VMM_TRY(set_routes());
  if (message && !was_attached) VMM_TRY(vm_->attach_irqfd(gsi, event));
  return {};
}

Result<void> KvmWires::wire_store(vpmu::GuestPhysical at, const Fd& event, Wire wire) {
  return wire == Wire::connect ? vm_->attach_ioeventfd(at, store_bytes, event)
                               : vm_->detach_ioeventfd(at, store_bytes, event);
}

}  // namespace vmm
