#include "memory/host_code.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace vmm {
namespace {

/// A routine begins where the CPU likes to jump to.
constexpr std::size_t alignment = 16;

std::byte* map_shared(int fd, std::size_t bytes, int protection) {
  void* const at = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

}  // namespace

bool MappedHostCode::map() {
  tried_ = true;
  const int fd = ::memfd_create("vpmu-routines", MFD_CLOEXEC);
  if (fd < 0) return false;
  if (::ftruncate(fd, static_cast<::off_t>(bytes)) == 0) {
    to_run_ = map_shared(fd, bytes, PROT_READ | PROT_EXEC);
    if (to_run_ != nullptr) to_write_ = map_shared(fd, bytes, PROT_READ | PROT_WRITE);
  }
  ::close(fd);
  return to_write_ != nullptr;
}

MappedHostCode::~MappedHostCode() {
  if (to_run_ != nullptr) ::munmap(to_run_, bytes);
  if (to_write_ != nullptr) ::munmap(to_write_, bytes);
}

const std::byte* MappedHostCode::add(std::span<const std::byte> routine) {
  if (!tried_) map();
  if (to_write_ == nullptr || routine.size() > bytes - used_) return nullptr;
  std::memcpy(to_write_ + used_, routine.data(), routine.size());
  const std::byte* const at = to_run_ + used_;
  used_ = (used_ + routine.size() + alignment - 1) / alignment * alignment;
  return at;
}

}  // namespace vmm
