#pragma once
#include <array>
#include <span>

#include "exec/host/host_routine.hpp"
#include "exec/state/core.hpp"

namespace vpmu::exec {

/// A block as it is decoded. Large, so it is used again for each block.
class DecodedBlock {
 public:
  /// Decodes as many of the instructions in `code`, which stands at `rip`, as make a block. An instruction that the
  /// engine does not know becomes an op that stops before it, and the last one of its block. False when not even one
  /// whole instruction is there. The ops use `routines`.
  bool decode(std::uint64_t rip, CodeMode mode, std::span<const std::byte> code, HostRoutines& routines);

  /// Becomes what decode() would make of `code` at `rip`, if it can be told from `known`, which was made of the same.
  bool copy(const Block& known, std::uint64_t rip, CodeMode mode, std::span<const std::byte> code);

  BlockFacts facts;
  [[nodiscard]] std::span<const Op> ops() const { return std::span{ops_}.first(facts.op_count); }

 private:
  std::array<Op, BlockFacts::max_ops + 1> ops_;
};

}  // namespace vpmu::exec
