#pragma once
#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "support/error.hpp"

namespace vmm {

/// A value, or why there is none. The only way host-side functions fail; nothing throws across our interfaces.
template <class T>
using Result = tl::expected<T, Error>;

using Failure = tl::unexpected<Error>;

/// A failed Result: what was asked for is wrong.
inline Failure usage_error(std::string what, std::string advice = {}) {
  return Failure{Error{.kind = ErrorKind::usage, .what = std::move(what), .advice = std::move(advice)}};
}

/// A failed Result: the host refused. `system_errno` 0 = no system call was involved.
inline Failure host_error(std::string what, int system_errno = 0, std::string advice = {}) {
  return Failure{Error{
      .kind = ErrorKind::host, .what = std::move(what), .advice = std::move(advice), .system_errno = system_errno}};
}

}  // namespace vmm

// The two macros of the tree: C++20 has no operator that returns early from a failed Result.
#define VMM_CONCAT_INNER(a, b) a##b
#define VMM_CONCAT(a, b) VMM_CONCAT_INNER(a, b)

/// Returns from the calling function with the error when `expression` (a Result) failed; drops its value.
#define VMM_TRY(expression)                                 \
  do {                                                      \
    if (auto vmm_result = (expression); !vmm_result) {      \
      return ::vmm::Failure{std::move(vmm_result).error()}; \
    }                                                       \
  } while (false)

/// `VMM_ASSIGN(auto fd, open_it());` declares `fd` from the Result's value, or returns with its error.
#define VMM_ASSIGN(declaration, expression)                                      \
  auto VMM_CONCAT(vmm_result_, __LINE__) = (expression);                         \
  if (!VMM_CONCAT(vmm_result_, __LINE__)) {                                      \
    return ::vmm::Failure{std::move(VMM_CONCAT(vmm_result_, __LINE__)).error()}; \
  }                                                                              \
  declaration = *std::move(VMM_CONCAT(vmm_result_, __LINE__))
