#pragma once

namespace vmm {

/// Reports a broken assumption of our own on standard error and aborts. Never returns.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line) noexcept;

}  // namespace vmm

/// Checks a condition that only a bug of ours can break; also in release builds. Guest or user input cannot break it.
#define VMM_ASSERT(condition) \
  (static_cast<bool>(condition) ? void() : ::vmm::assertion_failed(#condition, __FILE__, __LINE__))
