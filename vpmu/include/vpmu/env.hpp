#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "vpmu/address.hpp"

namespace vpmu {

/// Why a linear access of the PMU failed.
struct AccessFault {
  GuestLinear address;         ///< First byte that could not be accessed: what CR2 would hold.
  std::uint32_t error_code{};  ///< Page-fault error code, SDM 3A 4.7; meaningless when `not_memory`.
  bool not_memory{};           ///< The page tables map it, but to no guest RAM.
};

/// Empty on success.
using AccessResult = std::optional<AccessFault>;

/// Which right an access needs.
enum class AccessKind : std::uint8_t { read, write };

/// All that the PMU may ask of the world around it. One per virtual CPU; the PMU holds no reference to it between
/// calls. Linear accesses are supervisor accesses under the guest's current CR3 at any CPL: they never reach outside
/// guest RAM and may fail at any time.
class GuestEnv {
 public:
  /// Reads `out.size()` bytes at `at`; may cross pages. On failure `out` is unspecified.
  virtual AccessResult read_linear(GuestLinear at, std::span<std::byte> out) = 0;
  /// Writes `in.size()` bytes at `at`; may cross pages; sets accessed and dirty bits (rule F12).
  virtual AccessResult write_linear(GuestLinear at, std::span<const std::byte> in) = 0;
  /// Checks that `size` bytes at `at` could be accessed, without a side effect on their contents (rule F10).
  virtual AccessResult probe_linear(GuestLinear at, std::uint64_t size, AccessKind kind) = 0;
  /// The guest's time-stamp counter now, offset and scaling applied (rule P9).
  virtual std::uint64_t tsc() = 0;
  /// Asks for a performance monitoring interrupt through LVTPC. It is delivered at the instruction boundary, after the
  /// PMU's call has returned.
  virtual void request_pmi() = 0;

 protected:
  ~GuestEnv() = default;
};

}  // namespace vpmu
