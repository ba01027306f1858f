#include "uarch/recency_sets.hpp"

#include <algorithm>
#include <bit>

namespace vpmu::uarch {

RecencySets::RecencySets(Shape shape)
    : shape_{shape},
      set_bits_{shape.sets == 0 ? 0U : static_cast<unsigned>(std::countr_zero(shape.sets))},
      set_mask_{shape.sets == 0 ? 0U : shape.sets - 1},
      chunks_in_set_{(shape.ways + lanes - 1) / lanes},
      chunks_(std::max<std::size_t>(shape.sets * chunks_in_set_, 1)) {
  clear();
}

// Both functions below go through the whole set: a loop that ends at the key's way would cost the host a mispredicted
// branch each time.

/// The way of the tag; max_ways if it is not there.
unsigned RecencySets::find(const Chunk* set, Tag tag) const {
  using Floats [[gnu::vector_size(16)]] = float;
  const Tags wanted = Tags{} + tag;
  std::uint64_t found = 0;
  for (unsigned chunk = 0; chunk < chunks_in_set_; ++chunk) {
    const auto equal = reinterpret_cast<Floats>(set[chunk].tags == wanted);
    found |= std::uint64_t{static_cast<unsigned>(__builtin_ia32_movmskps(equal))} << (lanes * chunk);
  }
  return static_cast<unsigned>(std::countr_zero(found));
}

/// Puts the tag first. The tags before way `until` move on by one; that of `until` is lost.
void RecencySets::put_first(Chunk* set, Tag tag, unsigned until) const {
  using Numbers [[gnu::vector_size(16)]] = std::int32_t;
  constexpr Numbers first_ways{0, 1, 2, 3};
  Numbers ways = first_ways;
  Tags before = Tags{} + tag;
  for (unsigned chunk = 0; chunk < chunks_in_set_; ++chunk) {
    const Tags here = set[chunk].tags;
    const Tags moved = __builtin_shufflevector(before, here, 3, 4, 5, 6);
    set[chunk].tags = ways <= static_cast<std::int32_t>(until) ? moved : here;
    before = here;
    ways += static_cast<std::int32_t>(lanes);
  }
}

bool RecencySets::touch_older(Chunk* set, Tag tag) const {
  const unsigned way = find(set, tag);
  if (way >= shape_.ways) return false;
  put_first(set, tag, way);
  return true;
}

/// A key that comes to this set and was not there.
bool RecencySets::is_inserted_as_oldest(std::uint64_t set) {
  const std::uint64_t role = (set ^ set / duel) % duel;
  if (role == 0) votes_ = std::min(votes_ + 1, most_votes);
  if (role == 1) votes_ = std::max(votes_ - 1, -most_votes);
  if (role == 0 || (role != 1 && votes_ <= 0)) return false;
  return ++as_oldest_ % rarely != 0;
}

std::uint64_t RecencySets::insert(std::uint64_t key) {
  if (shape_.sets == 0) return nothing;
  Chunk* const set = set_of(key);
  const unsigned last = shape_.ways - 1;
  const Tag victim = set[last / lanes].tags[last % lanes];
  if (adapts_ && victim != none && is_inserted_as_oldest(key & set_mask_))
    set[last / lanes].tags[last % lanes] = tag_of(key);
  else
    put_first(set, tag_of(key), last);
  return victim == none ? nothing : std::uint64_t{victim} << set_bits_ | (key & set_mask_);
}

void RecencySets::visit_state(const StateVisitor& visit) {
  visit(state_bytes(chunks_));
  if (!adapts_) return;
  visit(state_bytes(votes_));
  visit(state_bytes(as_oldest_));
  votes_ = std::clamp(votes_, -most_votes, most_votes);
}

bool RecencySets::remove(std::uint64_t key) {
  Chunk* const set = set_of(key);
  const unsigned way = find(set, tag_of(key));
  if (way >= shape_.ways) return false;
  for (unsigned i = way; i + 1 < shape_.ways; ++i)
    set[i / lanes].tags[i % lanes] = set[(i + 1) / lanes].tags[(i + 1) % lanes];
  set[(shape_.ways - 1) / lanes].tags[(shape_.ways - 1) % lanes] = none;
  return true;
}

bool RecencySets::contains(std::uint64_t key) const { return find(set_of(key), tag_of(key)) < shape_.ways; }

void RecencySets::clear() { std::ranges::fill(chunks_, Chunk{Tags{} + none}); }

}  // namespace vpmu::uarch
