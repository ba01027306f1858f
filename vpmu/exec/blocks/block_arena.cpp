#include "exec/blocks/block_arena.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace vpmu::exec {

static_assert(alignof(Block) % alignof(Op) == 0);

std::size_t BlockArena::size_of(const BlockFacts& facts) {
  const std::size_t bytes = sizeof(Block) + facts.op_count * sizeof(Op) + facts.code_bytes;
  return (bytes + alignof(Block) - 1) / alignof(Block) * alignof(Block);
}

Block& BlockArena::make(const DecodedBlock& decoded, std::span<const std::byte> code) {
  const std::size_t size = size_of(decoded.facts);
  if (full_ < chunks_.size() && used_ + size > chunk_bytes) {
    ends_.push_back(std::exchange(used_, 0));
    ++full_;
  }
  if (full_ == chunks_.size()) chunks_.push_back(std::make_unique_for_overwrite<Chunk>());
  std::byte* const at = chunks_[full_]->bytes.data() + used_;
  used_ += size;
  Block* const block = std::construct_at(reinterpret_cast<Block*>(at), decoded.facts);
  std::uninitialized_copy_n(decoded.ops().data(), decoded.facts.op_count, block->ops().data());
  std::memcpy(at + sizeof(Block) + decoded.facts.op_count * sizeof(Op), code.data(), decoded.facts.code_bytes);
  return *block;
}

void BlockArena::clear() {
  ends_.push_back(used_);
  for (std::size_t n = 0; n < ends_.size() && n < chunks_.size(); ++n)
    for (std::size_t at = 0; at < ends_[n];) {
      auto* const block = reinterpret_cast<Block*>(chunks_[n]->bytes.data() + at);
      at += size_of(*block);
      std::destroy_at(block);
    }
  ends_.clear();
  full_ = used_ = 0;
}

std::size_t BlockTable::place_of(std::size_t offset) const {
  constexpr std::uint64_t golden = 0x9E37'79B9'7F4A'7C15ULL;
  std::size_t place = offset * golden >> 32 & (places_.size() - 1);
  while (places_[place] != nullptr && places_[place]->offset != offset) place = (place + 1) & (places_.size() - 1);
  return place;
}

Block* BlockTable::find(std::size_t offset) const { return places_.empty() ? nullptr : places_[place_of(offset)]; }

void BlockTable::put(Block& block) {
  if (2 * used_ >= places_.size()) {
    constexpr std::size_t min = 8;
    std::vector<Block*> before(std::max(2 * places_.size(), min));
    before.swap(places_);
    for (Block* const b : before)
      if (b != nullptr) places_[place_of(b->offset)] = b;
  }
  Block*& place = places_[place_of(block.offset)];
  if (place == nullptr) ++used_;
  place = &block;
}

}  // namespace vpmu::exec
