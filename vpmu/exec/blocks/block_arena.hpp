#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "exec/decode/decoded_block.hpp"

namespace vpmu::exec {

/// The memory of blocks, which are all freed together. A block that is decoded anew becomes another block: the old one
/// stays until then.
class BlockArena {
 public:
  BlockArena() = default;
  BlockArena(const BlockArena&) = delete;
  BlockArena& operator=(const BlockArena&) = delete;
  BlockArena(BlockArena&&) = delete;
  BlockArena& operator=(BlockArena&&) = delete;
  ~BlockArena() { clear(); }

  /// A block with these ops, and `code` that they were decoded from.
  Block& make(const DecodedBlock& decoded, std::span<const std::byte> code);
  /// Destroys all of them; their memory is used again.
  void clear();
  /// Of all blocks.
  [[nodiscard]] std::size_t bytes() const { return full_ * chunk_bytes + used_; }

 private:
  static constexpr std::size_t chunk_bytes = std::size_t{1} << 18;
  struct alignas(Block) Chunk {
    std::array<std::byte, chunk_bytes> bytes;
  };
  static std::size_t size_of(const BlockFacts& facts);

  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<std::size_t> ends_;  ///< Of full chunks: bytes in use.
  std::size_t full_{};             ///< Chunks in front of the one that is being filled.
  std::size_t used_{};             ///< Bytes in use of the chunk that is being filled.
};

/// The blocks that begin in one page, by their offset there. Open addressing.
class BlockTable {
 public:
  /// Null: there is none.
  [[nodiscard]] Block* find(std::size_t offset) const;
  /// Replaces the block at its offset, if there is one.
  void put(Block& block);
  /// In any order; null where there is none.
  [[nodiscard]] std::span<Block* const> places() const { return places_; }

 private:
  [[nodiscard]] std::size_t place_of(std::size_t offset) const;

  std::vector<Block*> places_;  ///< A power of two.
  std::size_t used_{};
};

}  // namespace vpmu::exec
