#pragma once
#include <cstddef>
#include <span>

namespace vmm {

/// The bytes of an object that lives on.
template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span{&value, 1});
}

}  // namespace vmm
