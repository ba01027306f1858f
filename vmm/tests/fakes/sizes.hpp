#pragma once
#include <cstdint>

namespace vmm::test {

inline constexpr std::uint64_t mib = 1ULL << 20U;
inline constexpr std::uint64_t gib = 1ULL << 30U;

}  // namespace vmm::test
