#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "vpmu/env.hpp"

namespace bed {

/// Guest memory as the emulated CPU, as supervisor, sees it now. An access has no side effect on the CPU.
vpmu::AccessResult read_guest(std::uint64_t linear, std::span<std::byte> out);
vpmu::AccessResult write_guest(std::uint64_t linear, std::span<const std::byte> in);
vpmu::AccessResult probe_guest(std::uint64_t linear, std::uint64_t bytes);

}  // namespace bed
