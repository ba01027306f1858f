#include "uarch/recency_sets.hpp"

#include <algorithm>

namespace vpmu::uarch {

template <class Tag>
BasicRecencySets<Tag>::BasicRecencySets(Shape shape)
    : shape_{shape},
      set_bits_{shape.sets == 0 ? 0U : static_cast<unsigned>(std::countr_zero(shape.sets))},
      chunks_in_set_{(shape.ways + lanes - 1) / lanes},
      chunks_(std::size_t{shape.sets} * chunks_in_set_) {
  clear();
}

/// Its way; if it is not there, at least `ways`.
template <class Tag>
unsigned BasicRecencySets<Tag>::find(const Chunk* set, Tag tag) const {
  using Bytes [[gnu::vector_size(16)]] = char;
  for (unsigned chunk = 0; chunk < chunks_in_set_; ++chunk) {
    const auto equal = reinterpret_cast<Bytes>(set[chunk].tags == tag);
    const auto found = static_cast<unsigned>(__builtin_ia32_pmovmskb128(equal));
    if (found != 0) return chunk * lanes + static_cast<unsigned>(std::countr_zero(found)) * lanes / 16;
  }
  return chunks_in_set_ * lanes;
}

/// The last of those before, and all but the last of these.
template <class Tag>
auto BasicRecencySets<Tag>::moved_on(Tags tags, Tags before) -> Tags {
  if constexpr (lanes == 2)
    return __builtin_shufflevector(before, tags, 1, 2);
  else
    return __builtin_shufflevector(before, tags, 3, 4, 5, 6);
}

/// The tags before way `until` move on by one: that of `until` is lost.
template <class Tag>
void BasicRecencySets<Tag>::put_first(Chunk* set, Tag tag, unsigned until) {
  Tags before = Tags{} + tag;
  for (; until >= lanes; until -= lanes, ++set) {
    const Tags here = set->tags;
    set->tags = moved_on(here, before);
    before = here;
  }
  Tags number;
  for (unsigned lane = 0; lane < lanes; ++lane) number[lane] = lane;
  set->tags = number <= static_cast<Tag>(until) ? moved_on(set->tags, before) : set->tags;
}

template <class Tag>
bool BasicRecencySets<Tag>::touch_older(Chunk* set, Tag tag) const {
  const unsigned way = find(set, tag);
  if (way >= shape_.ways) return false;
  put_first(set, tag, way);
  return true;
}

template <class Tag>
std::optional<std::uint64_t> BasicRecencySets<Tag>::insert(std::uint64_t key) {
  if (shape_.sets == 0) return std::nullopt;
  Chunk* const set = set_of(key);
  const unsigned last = shape_.ways - 1;
  const Tag victim = set[last / lanes].tags[last % lanes];
  put_first(set, tag_of(key), last);
  if (victim == none) return std::nullopt;
  return std::uint64_t{victim} << set_bits_ | (key & (shape_.sets - 1));
}

template <class Tag>
bool BasicRecencySets<Tag>::remove(std::uint64_t key) {
  if (shape_.sets == 0) return false;
  Chunk* const set = set_of(key);
  const unsigned way = find(set, tag_of(key));
  if (way >= shape_.ways) return false;
  const auto at = [&](unsigned i) -> Tag& { return set[i / lanes].tags[i % lanes]; };
  for (unsigned i = way; i + 1 < shape_.ways; ++i) at(i) = at(i + 1);
  at(shape_.ways - 1) = none;
  return true;
}

template <class Tag>
bool BasicRecencySets<Tag>::contains(std::uint64_t key) const {
  return shape_.sets != 0 && find(set_of(key), tag_of(key)) < shape_.ways;
}

template <class Tag>
void BasicRecencySets<Tag>::clear() {
  std::ranges::fill(chunks_, Chunk{Tags{} + none});
}

template class BasicRecencySets<std::uint64_t>;
template class BasicRecencySets<std::uint32_t>;

}  // namespace vpmu::uarch
