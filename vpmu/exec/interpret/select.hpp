#pragma once
#include <cstdint>
#include <type_traits>

#include "exec/state/core.hpp"

/// From operand sizes at run time to template arguments.
namespace vpmu::exec {

/// Calls `pick` with a value of the unsigned type of `bytes`; null for other sizes.
template <class Pick>
Run by_size(unsigned bytes, Pick pick) {
  switch (bytes) {
    case 1: return pick(std::uint8_t{});
    case 2: return pick(std::uint16_t{});
    case 4: return pick(std::uint32_t{});
    case 8: return pick(std::uint64_t{});
    default: return nullptr;
  }
}
template <class Pick>
Run by_size_above_1(unsigned bytes, Pick pick) {
  switch (bytes) {
    case 2: return pick(std::uint16_t{});
    case 4: return pick(std::uint32_t{});
    case 8: return pick(std::uint64_t{});
    default: return nullptr;
  }
}
/// `pick` with a std::integral_constant of each condition code.
template <class Pick>
Run by_condition(unsigned condition, Pick pick) {
  const auto one = [&]<unsigned... Codes>(std::integer_sequence<unsigned, Codes...>) {
    Run found = nullptr;
    ((condition == Codes ? void(found = pick(std::integral_constant<unsigned, Codes>{})) : void()), ...);
    return found;
  };
  return one(std::make_integer_sequence<unsigned, 16>{});
}

}  // namespace vpmu::exec
