#include "devices/test_device.hpp"

#include <algorithm>
#include <optional>

namespace vmm {
namespace {

/// Where in the test device's memory an access begins; empty if it begins elsewhere.
std::optional<std::size_t> place_of(vpmu::GuestPhysical at) {
  const std::uint64_t offset = at.value() - TestMemory::first.value();
  return offset < TestMemory::bytes ? std::optional{static_cast<std::size_t>(offset)} : std::nullopt;
}

}  // namespace

// A wide access at the end of the four bytes goes as far as they do.
void TestDevice::port_read(std::uint16_t port, std::span<std::byte> out) {
  for (std::size_t i = 0; i < out.size(); ++i)
    if (const std::size_t at = std::size_t{port} - first_byte + i; port >= first_byte && at < kept_.size())
      out[i] = std::byte{kept_[at].load()};
}

void TestDevice::port_write(std::uint16_t port, std::span<const std::byte> in) {
  if (port >= first_line) return set_line_(port - first_line, in[0] != std::byte{0} ? LineLevel::high : LineLevel::low);
  for (std::size_t i = 0; i < in.size(); ++i)
    if (const std::size_t at = std::size_t{port} - first_byte + i; at < kept_.size())
      kept_[at] = std::to_integer<std::uint8_t>(in[i]);
}

void TestDevice::save(ByteWriter& out) {
  for (const std::atomic<std::uint8_t>& byte : kept_) out.put(byte.load());
}

void TestDevice::restore(ByteReader& in) {
  for (std::atomic<std::uint8_t>& byte : kept_) byte = in.get<std::uint8_t>();
}

// An access at the end goes as far as the memory does.
void TestMemory::mmio_read(vpmu::GuestPhysical at, std::span<std::byte> out) {
  const auto place = place_of(at);
  if (!place) return others_->mmio_read(at, out);
  for (std::size_t i = 0; i < std::min(out.size(), bytes - *place); ++i) out[i] = kept_[*place + i];
}

void TestMemory::mmio_write(vpmu::GuestPhysical at, std::span<const std::byte> in) {
  const auto place = place_of(at);
  if (!place) return others_->mmio_write(at, in);
  written_ = true;
  for (std::size_t i = 0; i < std::min(in.size(), bytes - *place); ++i) kept_[*place + i] = in[i];
}

std::vector<std::byte> TestMemory::kept() const {
  if (!written_) return {};
  return {kept_.begin(), kept_.end()};
}

bool TestMemory::set_kept(std::span<const std::byte> kept) {
  written_ = !kept.empty();
  if (!written_) return true;
  if (kept.size() != bytes) return false;
  std::ranges::copy(kept, kept_.begin());
  return true;
}

}  // namespace vmm
