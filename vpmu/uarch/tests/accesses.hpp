#pragma once
#include <cstdint>

#include "vpmu/observer.hpp"

namespace vpmu::uarch::test {

inline SeenAccess load_of(std::uint64_t at, std::uint16_t bytes = 8, bool second_half = false) {
  return {.linear = at, .physical = at, .page_bytes = 4096, .bytes = bytes, .store = false, .second_half = second_half};
}
inline SeenAccess store_of(std::uint64_t at) {
  return {.linear = at, .physical = at, .page_bytes = 4096, .bytes = 8, .store = true};
}

}  // namespace vpmu::uarch::test
