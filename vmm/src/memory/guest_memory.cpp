#include "memory/guest_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "support/assert.hpp"

namespace vmm {
namespace {

constexpr std::uint64_t huge_page = 2ULL << 20U;

}  // namespace

Result<GuestMemory> GuestMemory::create(std::uint64_t bytes, GuestBacking backing) {
  if (bytes < min_bytes || bytes > max_bytes || bytes % vpmu::page_size != 0) {
    return usage_error(fmt::format("bad memory size of {} bytes", bytes),
                       "give a multiple of 4 KiB from 16M to 256G, for example --memory 512M");
  }
  // Anonymous unless another process has to map it: by default only such memory gets huge pages. Each 4 KiB page that a
  // guest touches for the first time costs an exit and a fault; with huge pages a Linux guest boots in half the time on
  // a nested host.
  void* const reserved =
      ::mmap(nullptr, bytes + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    return host_error(fmt::format("cannot reserve {} MiB of guest memory", bytes >> 20U), errno,
                      "give a smaller --memory");
  }
  GuestMemory memory;
  memory.mapping_ = Mapping{reserved, bytes + huge_page};
  // KVM maps a huge page only where the low bits of guest and host address are the same.
  const auto address = reinterpret_cast<std::uintptr_t>(reserved);
  memory.base_ = static_cast<std::byte*>(reserved) + (huge_page - address % huge_page) % huge_page;
  memory.bytes_ = bytes;
  if (backing == GuestBacking::shared) VMM_TRY(memory.map_file());
  ::madvise(memory.base_, bytes, MADV_HUGEPAGE);  // only advice: a host without huge pages is slower
  // Keeps guest memory out of core files and of child processes.
  if (::madvise(reserved, bytes + huge_page, MADV_DONTDUMP) != 0 ||
      ::madvise(reserved, bytes + huge_page, MADV_DONTFORK) != 0)
    return host_error("madvise of the guest's memory", errno);
  const std::uint64_t low = std::min(bytes, hole_first);
  memory.ranges_[memory.range_count_++] = {.first = vpmu::GuestPhysical{0}, .bytes = low};
  if (bytes > low) {
    memory.ranges_[memory.range_count_++] = {.first = vpmu::GuestPhysical{hole_end}, .bytes = bytes - low};
  }
  return memory;
}

/// Maps a memfd in place of the anonymous pages from base_ on.
Result<void> GuestMemory::map_file() {
  file_ = Fd{::memfd_create("vpmu-guest", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!file_.valid()) return host_error("memfd_create for the guest's memory", errno);
  if (::ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0)
    return host_error(fmt::format("cannot make a file of {} MiB for the guest's memory", bytes_ >> 20U), errno,
                      "give a smaller --memory");
  // Otherwise anybody with the descriptor could shorten the file, and the next access here would be a SIGBUS.
  if (::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return host_error("cannot seal the guest's memory", errno);
  if (::mmap(base_, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_.get(), 0) ==
      MAP_FAILED)
    return host_error("cannot map the guest's memory", errno);
  return {};
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
      return {base_ + host_offset + offset, size};
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

Result<void> GuestMemory::fill(vpmu::GuestPhysical at, std::span<const std::byte> in) const {
  const auto target = bytes_at(at, in.size());
  VMM_ASSERT(target.size() == in.size());
  if (!file_.valid()) {
    std::memcpy(target.data(), in.data(), in.size());
    return {};
  }
  for (std::size_t done = 0; done < in.size();) {
    const auto put = ::pwrite(file_.get(), in.data() + done, in.size() - done, target.data() + done - base_);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return host_error("cannot fill the guest's memory", errno, "give a smaller --memory");
    done += static_cast<std::size_t>(put);
  }
  return {};
}

}  // namespace vmm
