#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "support/result.hpp"

namespace vmm::tool {

/// What an .xz or .zst file has in it; a file of neither format as it is. Fails with kind usage on one that is damaged,
/// and on more than `most` bytes of content.
Result<std::vector<std::byte>> decompress(std::span<const std::byte> file, std::uint64_t most);

}  // namespace vmm::tool
