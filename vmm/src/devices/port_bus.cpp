#include "devices/port_bus.hpp"

#include <algorithm>

#include "support/assert.hpp"

namespace vmm {

void PortBus::add(std::uint16_t first, std::uint16_t count, PortDevice& device) {
  const auto end = static_cast<unsigned>(first) + count;
  for (const auto& entry : entries_) {
    VMM_ASSERT(end <= entry.first || first >= static_cast<unsigned>(entry.first) + entry.count);
  }
  entries_.push_back({.first = first, .count = count, .device = &device});
}

PortDevice* PortBus::find(std::uint16_t port) {
  for (const auto& entry : entries_) {
    if (port >= entry.first && port - entry.first < entry.count) {
      return entry.device;
    }
  }
  unclaimed_.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

void PortBus::read(const PortRead& access) {
  std::ranges::fill(access.data, std::byte{0xFF});
  auto* const device = find(access.port);
  if (device == nullptr) {
    return;
  }
  for (auto rest = access.data; rest.size() >= access.width; rest = rest.subspan(access.width)) {
    device->port_read(access.port, rest.first(access.width));
  }
}

void PortBus::write(const PortWrite& access) {
  auto* const device = find(access.port);
  if (device == nullptr) {
    return;
  }
  for (auto rest = access.data; rest.size() >= access.width; rest = rest.subspan(access.width)) {
    device->port_write(access.port, rest.first(access.width));
  }
}

}  // namespace vmm
