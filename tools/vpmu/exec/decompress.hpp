#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "support/result.hpp"

namespace vmm::tool {

/// The content of an .xz or .zst file; a file of neither format is returned as it is. Fails with kind usage if the file
/// is damaged, or has more than `most` bytes of content.
Result<std::vector<std::byte>> decompress(std::span<const std::byte> file, std::uint64_t max);

}  // namespace vmm::tool
