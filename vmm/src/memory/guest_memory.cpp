#include "memory/guest_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace vmm {

Result<GuestMemory> GuestMemory::create(std::uint64_t bytes) {
  if (bytes < least || bytes > most || bytes % vpmu::page_size != 0) {
    return usage_error(fmt::format("bad memory size of {} bytes", bytes),
                       "give a multiple of 4 KiB from 16M to 256G, for example --memory 512M");
  }
  const Fd file{::memfd_create("guest-ram", MFD_CLOEXEC)};
  if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return host_error(fmt::format("cannot reserve {} MiB of guest memory", bytes >> 20U), errno, "give a smaller --memory");
  }
  void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (base == MAP_FAILED) {
    return host_error(fmt::format("cannot map {} MiB of guest memory", bytes >> 20U), errno, "give a smaller --memory");
  }
  GuestMemory memory;
  memory.mapping_ = Mapping{base, bytes};
  const std::uint64_t low = std::min(bytes, hole_first);
  memory.ranges_[memory.range_count_++] = {.first = vpmu::GuestPhysical{0}, .bytes = low};
  if (bytes > low) {
    memory.ranges_[memory.range_count_++] = {.first = vpmu::GuestPhysical{hole_end}, .bytes = bytes - low};
  }
  return memory;
}

Result<void> GuestMemory::attach(Vm& vm) const {
  for (std::uint32_t slot = 0; slot < range_count_; ++slot) {
    VMM_TRY(vm.map_memory(slot, ranges_[slot].first, bytes_at(ranges_[slot].first, ranges_[slot].bytes)));
  }
  return {};
}

std::span<std::byte> GuestMemory::bytes_at(vpmu::GuestPhysical at, std::uint64_t size) const {
  std::uint64_t host_offset = 0;
  for (const auto& range : ranges()) {
    const std::uint64_t offset = at.value() - range.first.value();
    if (at >= range.first && offset < range.bytes && size <= range.bytes - offset) {
      return {static_cast<std::byte*>(mapping_.base()) + host_offset + offset, size};
    }
    host_offset += range.bytes;
  }
  return {};
}

bool GuestMemory::read(vpmu::GuestPhysical at, std::span<std::byte> out) const {
  const auto source = bytes_at(at, out.size());
  if (source.size() != out.size()) {
    return false;
  }
  std::memcpy(out.data(), source.data(), out.size());
  return true;
}

bool GuestMemory::write(vpmu::GuestPhysical at, std::span<const std::byte> in) const {
  const auto target = bytes_at(at, in.size());
  if (target.size() != in.size()) {
    return false;
  }
  std::memcpy(target.data(), in.data(), in.size());
  return true;
}

}  // namespace vmm
