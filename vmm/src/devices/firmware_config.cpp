#include "devices/firmware_config.hpp"

#include <algorithm>
#include <cstring>

namespace vmm {
namespace {

constexpr std::uint16_t signature = 0x00, ram_size = 0x03, cpu_count = 0x05, max_cpus = 0x0F;
constexpr std::uint64_t signature_text = 0x554D'4551;  // "QEMU"

}  // namespace

std::uint64_t FirmwareConfig::item() const {
  switch (selected_) {
    case signature: return signature_text;
    case ram_size: return memory_bytes_;
    case cpu_count:
    case max_cpus: return cpus_;
    default: return 0;
  }
}

void FirmwareConfig::port_read(std::uint16_t port, std::span<std::byte> out) {
  if (port != data_port || out.size() != 1) return;
  const std::scoped_lock lock{mutex_};
  const bool is_behind = passed_ >= sizeof(std::uint64_t);
  out[0] = is_behind ? std::byte{} : static_cast<std::byte>(item() >> 8U * passed_);
  if (!is_behind) ++passed_;
}

void FirmwareConfig::port_write(std::uint16_t port, std::span<const std::byte> in) {
  if (port != selector_port || in.size() != sizeof selected_) return;
  const std::scoped_lock lock{mutex_};
  std::memcpy(&selected_, in.data(), sizeof selected_);
  passed_ = 0;
}

void FirmwareConfig::save(ByteWriter& out) {
  const std::scoped_lock lock{mutex_};
  out.put(selected_);
  out.put(passed_);
}

void FirmwareConfig::restore(ByteReader& in) {
  const std::scoped_lock lock{mutex_};
  selected_ = in.get<std::uint16_t>();
  passed_ = in.get<std::uint16_t>();
}

}  // namespace vmm
