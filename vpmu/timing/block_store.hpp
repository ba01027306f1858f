#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "timing/timed_block.hpp"

namespace vpmu::timing {

/// The TimedBlocks of the code that came last, so that code which comes again, in whatever SeenBlock, is timed with
/// what was made of it.
class BlockStore {
 public:
  /// Of the host's memory that what came last may take; and as much again what came before that. Guests have any code.
  static constexpr std::size_t max_bytes = 64U << 20;

  explicit BlockStore(const Microarchitecture& on) : on_{on} {}

  /// Of whole instructions for so many bits, at most TimedBlock::max_instructions.
  std::shared_ptr<const TimedBlock> find(std::uint64_t rip, std::uint8_t bits, std::span<const std::byte> code);
  /// That all of it takes, somewhat more than counted.
  [[nodiscard]] std::size_t bytes() const { return recent_bytes_ + older_bytes_; }

 private:
  struct Kept {
    std::uint64_t rip{};
    std::uint8_t bits{};
    std::vector<std::byte> code;
    std::shared_ptr<const TimedBlock> block;
  };
  using All = std::unordered_map<std::uint64_t, Kept>;  ///< By a hash of the rest.

  const Microarchitecture& on_;
  All recent_, older_;
  std::size_t recent_bytes_{}, older_bytes_{};
};

}  // namespace vpmu::timing
