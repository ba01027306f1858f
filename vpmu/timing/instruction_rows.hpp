#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace vpmu::timing {

/// Micro-ops of one instruction that may each go to any of these ports.
struct PortUse {
  std::uint8_t ports{};  ///< Bit n: port n.
  std::uint8_t count{};
};

/// What one form of instruction (form.hpp) takes. Its loads and stores are not in it: they follow from the operands.
struct InstructionRow {
  std::uint64_t form{};  ///< form_hash() of its name.
  std::array<PortUse, 6> micro_ops{};
  std::uint16_t latency{};  ///< Cycles from its operands, a load's data among them, to its result.
  std::uint16_t divider{};  ///< Cycles in which no other instruction can begin to divide.
};

/// FNV-1a.
constexpr std::uint64_t form_hash(std::string_view form) {
  std::uint64_t value = 0xCBF29CE484222325;
  for (const char c : form) value = (value ^ static_cast<std::uint8_t>(c)) * 0x100000001B3;
  return value;
}

/// The micro-architectures that have rows of their own.
enum class RowSet : std::uint8_t { nehalem, sandy_bridge, ivy_bridge, haswell, broadwell, skylake, skylake_sp };

/// A form with memory that has no row has that of the same form with a register in its place. Empty: there is neither.
std::optional<InstructionRow> find_row(RowSet set, std::string_view form);

}  // namespace vpmu::timing
