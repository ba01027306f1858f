#include "timing/block_store.hpp"

#include <algorithm>
#include <utility>

namespace vpmu::timing {
namespace {

/// FNV-1a.
std::uint64_t hash_of(std::uint64_t rip, std::span<const std::byte> code) {
  std::uint64_t value = 0xCBF29CE484222325 ^ rip;
  for (const std::byte b : code) value = (value ^ static_cast<std::uint8_t>(b)) * 0x100000001B3;
  return value;
}

}  // namespace

std::shared_ptr<const TimedBlock> BlockStore::find(std::uint64_t rip, std::uint8_t bits,
                                                   std::span<const std::byte> code) {
  const std::uint64_t hash = hash_of(rip, code);
  const auto is_it = [&](const Kept& kept) {
    return kept.rip == rip && kept.bits == bits && std::ranges::equal(kept.code, code);
  };
  if (const auto found = recent_.find(hash); found != recent_.end() && is_it(found->second)) return found->second.block;
  // Those are dropped that were not asked for since there were so many last.
  if (recent_bytes_ >= max_bytes) {
    older_ = std::exchange(recent_, {});
    older_bytes_ = std::exchange(recent_bytes_, 0);
  }
  Kept& kept = recent_[hash];
  if (const auto found = older_.find(hash); found != older_.end() && is_it(found->second)) {
    kept = std::move(found->second);
    older_.erase(found);
  } else {
    std::vector<TimedInstruction> instructions = timed_code(code, bits, on_);
    join(instructions, on_);
    kept = {.rip = rip, .bits = bits, .code = {code.begin(), code.end()}, .block = make_block(instructions, rip, on_)};
  }
  recent_bytes_ += sizeof(All::value_type) + code.size() + kept.block->bytes();
  return kept.block;
}

}  // namespace vpmu::timing
