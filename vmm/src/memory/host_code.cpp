#include "memory/host_code.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "vpmu/address.hpp"

namespace vmm {
namespace {

/// Routines start at this alignment, which is fast for jump targets.
constexpr std::size_t alignment = 16;
constexpr std::size_t guard = vpmu::page_size;
constexpr std::size_t reserved_bytes = MappedHostCode::bytes + 2 * guard;

std::byte* reserve() {
  void* const at = ::mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

/// Maps a second, read-only descriptor of the file: such a mapping can never become writable. Without /proc, maps the
/// file itself.
std::byte* map_to_run(const Fd& file, std::byte* at) {
  const std::string path = fmt::format("/proc/self/fd/{}", file.get());
  const Fd to_read{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  const int from = to_read.valid() ? to_read.get() : file.get();
  void* const mapped = ::mmap(at, MappedHostCode::bytes, PROT_READ | PROT_EXEC, MAP_SHARED | MAP_FIXED, from, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

bool write_all(int file, std::span<const std::byte> what, std::size_t at) {
  while (!what.empty()) {
    const ::ssize_t written = ::pwrite(file, what.data(), what.size(), static_cast<::off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    what = what.subspan(static_cast<std::size_t>(written));
    at += static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace

MappedHostCode::MappedHostCode() : file_{::memfd_create("vpmu-routines", MFD_CLOEXEC | MFD_ALLOW_SEALING)} {
  if (!file_.valid() || ::ftruncate(file_.get(), static_cast<::off_t>(bytes)) != 0) return;
  if (::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) return;
  reserved_ = reserve();
  if (reserved_ != nullptr) to_run_ = map_to_run(file_, reserved_ + guard);
}

MappedHostCode::~MappedHostCode() {
  if (reserved_ != nullptr) ::munmap(reserved_, reserved_bytes);
}

const std::byte* MappedHostCode::add(std::span<const std::byte> routine) {
  if (to_run_ == nullptr || used_ > bytes || routine.size() > bytes - used_ || !write_all(file_.get(), routine, used_))
    return nullptr;
  const std::byte* const at = to_run_ + used_;
  used_ = (used_ + routine.size() + alignment - 1) / alignment * alignment;
  return at;
}

bool MappedHostCode::change(const std::byte* at, std::uint32_t to) {
  const auto offset = static_cast<std::size_t>(at - to_run_);
  if (offset > used_ || sizeof to > used_ - offset) return false;
  return write_all(file_.get(), std::as_bytes(std::span{&to, 1}), offset);
}

}  // namespace vmm
