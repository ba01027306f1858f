#include "kvm/fd.hpp"

#include <sys/mman.h>

namespace vmm {

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) {
    ::munmap(base_, size_);
  }
}

}  // namespace vmm
