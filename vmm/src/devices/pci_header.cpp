#include "devices/pci_header.hpp"

#include "support/assert.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;

// PCI 3.0 figure 6-1, by dword.
constexpr std::uint8_t offset_id = 0x00, offset_command = 0x04, offset_class = 0x08, offset_bar = 0x10,
                       offset_subsystem = 0x2C, offset_capabilities = 0x34, offset_interrupt = 0x3C;
/// Memory space, bus master, interrupt disable. PCI 3.0 6.2.2.
constexpr auto command_memory = static_cast<std::uint32_t>(bit(1));
constexpr auto command_writable = static_cast<std::uint32_t>(bit(1) | bit(2) | bit(10));
constexpr auto status_capabilities = static_cast<std::uint32_t>(bit(20));

}  // namespace

PciHeader::PciHeader(const Identity& identity) {
  values_[offset_id / 4] = identity.vendor | std::uint32_t{identity.device} << 16U;
  values_[offset_class / 4] = identity.revision | identity.class_code << 8U;
  values_[offset_subsystem / 4] = identity.subsystem_vendor | std::uint32_t{identity.subsystem} << 16U;
  make_writable(offset_command, command_writable);
  make_writable(offset_interrupt, 0xFF);  // the interrupt line, only a note for software
}

void PciHeader::add_bar(unsigned bar, std::uint32_t bytes, std::uint32_t address) {
  VMM_ASSERT(bar < bars && bytes >= vpmu::page_size && (bytes & (bytes - 1)) == 0 && address % bytes == 0);
  const unsigned at = offset_bar / 4 + bar;
  values_[at] = address;
  writable_[at] = ~(bytes - 1);
  bar_bytes_[bar] = bytes;
}

std::uint8_t PciHeader::add_capability(std::uint8_t id, std::span<const std::uint8_t> body) {
  const std::uint8_t at = next_free_;
  const std::size_t end = at + 2 + body.size();
  VMM_ASSERT(end <= sizeof values_);
  const auto put = [this](std::size_t offset, std::uint8_t value) {
    const auto shift = static_cast<unsigned>(offset % 4 * 8);
    auto& dword = values_[offset / 4];
    dword = (dword & ~(0xFFU << shift)) | std::uint32_t{value} << shift;
  };
  put(last_capability_ == 0 ? offset_capabilities : last_capability_ + 1U, at);
  put(at, id);
  for (std::size_t i = 0; i < body.size(); ++i) put(at + 2U + i, body[i]);
  values_[offset_command / 4] |= status_capabilities;
  last_capability_ = at;
  next_free_ = static_cast<std::uint8_t>((end + 3) & ~std::size_t{3});
  return at;
}

void PciHeader::make_writable(std::uint8_t offset, std::uint32_t bits) { writable_[offset / 4U] |= bits; }

void PciHeader::write(std::uint8_t offset, std::uint32_t value, std::uint32_t mask) {
  const std::uint32_t changes = mask & writable_[offset / 4U];
  auto& dword = values_[offset / 4U];
  dword = (dword & ~changes) | (value & changes);
}

void PciHeader::restore(ByteReader& in) {
  const auto saved = in.get<std::array<std::uint32_t, 64>>();
  for (std::size_t i = 0; i < values_.size(); ++i)
    values_[i] = (values_[i] & ~writable_[i]) | (saved[i] & writable_[i]);
}

std::optional<vpmu::GuestPhysical> PciHeader::bar_address(unsigned bar) const {
  if (bar_bytes_[bar] == 0 || (values_[offset_command / 4] & command_memory) == 0) return std::nullopt;
  return vpmu::GuestPhysical{values_[offset_bar / 4 + bar] & ~(bar_bytes_[bar] - 1)};
}

std::optional<PciHeader::Hit> PciHeader::find(vpmu::GuestPhysical at) const {
  for (unsigned bar = 0; bar < bars; ++bar) {
    const auto address = bar_address(bar);
    if (!address || at < *address || at.value() - address->value() >= bar_bytes_[bar]) continue;
    return Hit{.bar = bar, .offset = static_cast<std::uint32_t>(at.value() - address->value())};
  }
  return std::nullopt;
}

}  // namespace vmm
