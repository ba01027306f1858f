#include "soft/device_memory.hpp"

#include <algorithm>
#include <cstring>

#include "boot/layout.hpp"
#include "support/x86.hpp"

namespace vmm {
namespace {

/// The most that a device is asked for at a time.
constexpr std::size_t widest_access = 8;

}  // namespace

std::optional<vpmu::GuestPhysical> DeviceMemory::beyond_ram(std::uint64_t at, bool write) const {
  const auto kind = write ? vpmu::PagingAccess::write : vpmu::PagingAccess::read;
  const vpmu::Walk walk = vpmu::translate(core_->paging(), core_->memory.physical(), vpmu::GuestLinear{at}, kind,
                                          core_->privilege(), vpmu::AccessedDirty::leave);
  const auto* mapped = std::get_if<vpmu::Mapped>(&walk);
  if (mapped == nullptr || core_->memory.physical().host_page(page_of(mapped->address)) != nullptr) return std::nullopt;
  return mapped->address;
}

std::vector<DeviceMemory::Part> DeviceMemory::parts_of(std::span<const Access> accesses) const {
  std::vector<Part> parts;
  for (const Access& access : accesses) add_parts(access, parts);
  return parts;
}

void DeviceMemory::add_parts(const Access& access, std::vector<Part>& parts) const {
  for (std::size_t done = 0; done < access.bytes;) {
    const std::uint64_t at = access.at + done;
    const std::size_t bytes = std::min({access.bytes - done, vpmu::page_size - at % vpmu::page_size, widest_access});
    if (const auto physical = beyond_ram(at, access.write)) {
      const Device device = device_at(page_of(*physical));
      const bool known = std::ranges::any_of(
          parts, [&](const Part& p) { return p.at <= at && at < p.at + p.bytes && p.write == access.write; });
      if (!known && (device == Device::others || done == 0))
        parts.push_back({.device = device, .physical = *physical, .at = at, .bytes = bytes, .write = access.write});
    }
    done += bytes;
  }
}

void DeviceMemory::load(std::span<const Part> parts, std::span<std::byte, vpmu::page_size> page) {
  std::ranges::fill(page, std::byte{0xFF});
  for (const Part& p : parts)
    if (!p.write || p.device != Device::others)
      read_device(p.device, p.physical, page.subspan(p.at % vpmu::page_size, p.bytes));
}

void DeviceMemory::store(std::span<const Part> parts, std::span<const std::byte, vpmu::page_size> page) {
  for (const Part& p : parts)
    if (p.write) write_device(p.device, p.physical, page.subspan(p.at % vpmu::page_size, p.bytes));
}

void DeviceMemory::read(vpmu::GuestPhysical at, std::span<std::byte> out) {
  std::ranges::fill(out, std::byte{0xFF});
  for (std::size_t done = 0; done < out.size(); done += widest_access)
    read_device(device_at(page_of(at)), at + done, out.subspan(done).first(std::min(widest_access, out.size() - done)));
}

void DeviceMemory::write(vpmu::GuestPhysical at, std::span<const std::byte> in) {
  for (std::size_t done = 0; done < in.size(); done += widest_access)
    write_device(device_at(page_of(at)), at + done, in.subspan(done).first(std::min(widest_access, in.size() - done)));
}

DeviceMemory::Device DeviceMemory::device_at(vpmu::GuestPhysical page) const {
  const std::uint64_t base = core_->state.sregs.apic_base;
  const bool apic = (base & (x86::apic_base::EN::mask | x86::apic_base::EXTD::mask)) == x86::apic_base::EN::mask &&
                    page.value() == (base & x86::apic_base::Base::mask);
  if (apic) return Device::local_apic;
  return core_->interrupts.io_apic() != nullptr && page == layout::io_apic ? Device::io_apic : Device::others;
}

// The APICs' registers have four bytes. SDM 3A 10.4.1.
void DeviceMemory::read_device(Device device, vpmu::GuestPhysical at, std::span<std::byte> out) {
  const auto offset = static_cast<std::uint32_t>(at.value() % vpmu::page_size);
  std::uint32_t value = 0;
  switch (device) {
    case Device::others:
      if (devices_ != nullptr) devices_->mmio_read(at, out);
      return;
    case Device::local_apic: value = core_->interrupts.read(offset); break;
    case Device::io_apic: value = core_->interrupts.io_apic()->read(offset); break;
  }
  std::memcpy(out.data(), &value, std::min(out.size(), sizeof value));
}

void DeviceMemory::write_device(Device device, vpmu::GuestPhysical at, std::span<const std::byte> in) {
  const auto offset = static_cast<std::uint32_t>(at.value() % vpmu::page_size);
  std::uint32_t value = 0;
  std::memcpy(&value, in.data(), std::min(in.size(), sizeof value));
  switch (device) {
    case Device::others:
      if (devices_ != nullptr) devices_->mmio_write(at, in);
      return;
    case Device::local_apic: return core_->interrupts.write(offset, value);
    case Device::io_apic: return core_->interrupts.io_apic()->write(offset, value);
  }
}

}  // namespace vmm
