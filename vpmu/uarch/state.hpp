#pragma once
#include <cstddef>
#include <functional>
#include <span>

namespace vpmu::uarch {

/// Called with the bytes of each part of a model's state, always the same parts in the same order: reads them to save
/// the model, or overwrites them to restore it.
using StateVisitor = std::function<void(std::span<std::byte>)>;

/// The bytes of one value, or of an array or vector of them.
template <class T>
std::span<std::byte> state_bytes(T& value) {
  if constexpr (requires { value.data(); })
    return std::as_writable_bytes(std::span{value});
  else
    return std::as_writable_bytes(std::span{&value, 1});
}

}  // namespace vpmu::uarch
