#pragma once
#include <cstdint>
#include <optional>
#include <variant>

#include "processor/exceptions.hpp"
#include "support/x86.hpp"

namespace vmm {

/// Results of a system instruction.
struct Completed {};
struct Raised {
  Exception exception;
  EventKind kind{EventKind::fault};
};
inline constexpr Raised raised_gp{general_protection};
inline constexpr Raised raised_ud{{.vector = x86::vector::UD, .error_code = std::nullopt}};
/// An MSR that is not held here: the instruction completes when the access has been answered.
struct MsrAccess {
  std::uint32_t index{};
  std::uint64_t value{};  ///< Of a write.
  bool write{};
};
/// RDPMC of the counter in ECX.
struct CounterAccess {};
struct PortAccess {
  /// One of a string: INS and OUTS.
  struct Element {
    std::uint64_t at{};
    std::uint8_t address_bytes{};
    bool repeats{};
  };
  std::uint16_t port{};
  std::uint8_t bytes{};
  bool write{};
  std::uint32_t value{};  ///< Of a write.
  std::optional<Element> element;
};
using SystemResult = std::variant<Completed, Raised, MsrAccess, CounterAccess, PortAccess>;

/// The result of what either completes or faults.
inline SystemResult completed_unless(const std::optional<Exception>& fault) {
  if (fault) return Raised{*fault};
  return Completed{};
}

}  // namespace vmm
