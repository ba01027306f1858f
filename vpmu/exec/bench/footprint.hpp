#pragma once
#include <cstddef>
#include <vector>

namespace vpmu::exec::bench {

/// A program with much code, each instruction of which runs once in a pass: some 5 instructions to a block. Its second
/// argument says how many passes; it needs a page of memory.
struct Footprint {
  std::vector<std::byte> code;
  std::size_t instructions{};
};
Footprint make_footprint(std::size_t blocks);

}  // namespace vpmu::exec::bench
