#include "uarch/recency_sets.hpp"

#include <algorithm>

namespace vpmu::uarch {

RecencySets::RecencySets(Shape shape) : shape_{shape}, keys_(shape.entries(), none) {}

std::span<const std::uint64_t> RecencySets::set_of(std::uint64_t key) const {
  return std::span{keys_}.subspan((key & (shape_.sets - 1)) * shape_.ways, shape_.ways);
}

bool RecencySets::touch_older(std::uint64_t* set, std::uint64_t key) const {
  for (unsigned way = 1; way < shape_.ways; ++way) {
    if (set[way] != key) continue;
    for (unsigned i = way; i > 0; --i) set[i] = set[i - 1];  // few: a call would cost more
    set[0] = key;
    return true;
  }
  return false;
}

std::optional<std::uint64_t> RecencySets::insert(std::uint64_t key) {
  if (shape_.sets == 0) return std::nullopt;
  std::uint64_t* const set = set_of(key);
  const std::uint64_t victim = set[shape_.ways - 1];
  for (unsigned i = shape_.ways - 1; i > 0; --i) set[i] = set[i - 1];  // few, as above
  set[0] = key;
  return victim == none ? std::nullopt : std::optional{victim};
}

bool RecencySets::remove(std::uint64_t key) {
  if (shape_.sets == 0) return false;
  std::uint64_t* const set = set_of(key);
  std::uint64_t* const end = set + shape_.ways;
  std::uint64_t* const at = std::find(set, end, key);
  if (at == end) return false;
  std::copy(at + 1, end, at);
  end[-1] = none;
  return true;
}

bool RecencySets::contains(std::uint64_t key) const {
  if (shape_.sets == 0) return false;
  return std::ranges::find(set_of(key), key) != set_of(key).end();
}

void RecencySets::clear() { std::ranges::fill(keys_, none); }

}  // namespace vpmu::uarch
