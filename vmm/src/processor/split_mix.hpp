#pragma once
#include <cstdint>

namespace vmm {

/// SplitMix64: a random number generator whose whole state is one word; any seed is valid.
struct SplitMix64 {
  std::uint64_t state{};

  std::uint64_t next() {
    state += 0x9E37'79B9'7F4A'7C15;
    std::uint64_t z = state;
    z = (z ^ z >> 30) * 0xBF58'476D'1CE4'E5B9;
    z = (z ^ z >> 27) * 0x94D0'49BB'1331'11EB;
    return z ^ z >> 31;
  }
};

}  // namespace vmm
