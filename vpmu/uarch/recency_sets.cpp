#include "uarch/recency_sets.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

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

namespace {

// The nodes of a tree over 8 ways, a bit for each, in the order of a heap: bit 0 is the root, the halves of node n are
// nodes 2n + 1 and 2n + 2. A node that is set tells that the victim is in the second half. Of 4 ways the first three.
constexpr unsigned most_nodes = 7;
constexpr bool is_set(unsigned nodes, unsigned node) { return (nodes >> node & 1U) != 0; }

/// The nodes after the way has become the first.
constexpr std::uint8_t nodes_after(unsigned depth, unsigned nodes, unsigned way) {
  unsigned after = 0;
  for (unsigned level = 0; level < depth; ++level)
    for (unsigned at = 0; at < 1U << level; ++at) {
      // Where it came from: halves are exchanged up to the first level where it is not above the way.
      unsigned from = 0;
      bool above = true;
      for (unsigned bit = level; bit-- > 0;) {
        const unsigned half = at >> bit & 1U;
        from = from << 1U | (half ^ (above ? way >> (depth - level + bit) & 1U : 0U));
        above = above && half == 0;
      }
      const unsigned first = (1U << level) - 1;
      if (at == 0 || is_set(nodes, first + from)) after |= 1U << (first + at);
    }
  return static_cast<std::uint8_t>(after);
}

constexpr std::uint8_t victim_by(unsigned depth, unsigned nodes) {
  unsigned way = 0;
  for (unsigned level = 0; level < depth; ++level) way = way << 1U | (is_set(nodes, (1U << level) - 1 + way) ? 1U : 0U);
  return static_cast<std::uint8_t>(way);
}

/// For all nodes.
struct Tree {
  std::array<std::array<std::uint8_t, 8>, 1U << most_nodes> after{};
  std::array<std::uint8_t, 1U << most_nodes> victim{};
  explicit constexpr Tree(unsigned depth) {
    for (unsigned nodes = 0; nodes < 1U << ((1U << depth) - 1); ++nodes) {
      victim[nodes] = victim_by(depth, nodes);
      for (unsigned way = 0; way < 1U << depth; ++way) after[nodes][way] = nodes_after(depth, nodes, way);
    }
  }
};
constexpr std::array trees{Tree{2}, Tree{3}};
constexpr const Tree& tree_of(std::uint32_t ways) { return trees[ways / 8]; }

}  // namespace

void RecencySets::replace_by_tree() {
  if ((shape_.ways != 4 && shape_.ways != 8) || !nodes_.empty()) return;
  nodes_.assign(std::max<std::size_t>(shape_.sets, 1), 0);
  clear();
}

/// Makes the way the first one.
void RecencySets::go_up(Chunk* set, unsigned way) {
  std::uint8_t& nodes = nodes_of(set);
  nodes = tree_of(shape_.ways).after[nodes % (1U << most_nodes)][way];
  Tags tags = set[way / lanes].tags;
  if (way >= lanes) set[1] = set[0];
  const Tags halves = __builtin_shufflevector(tags, tags, 2, 3, 0, 1);
  tags = Tags{} + (way & 2U) != 0 ? halves : tags;
  const Tags pair = __builtin_shufflevector(tags, tags, 1, 0, 2, 3);
  set[0].tags = Tags{} + (way & 1U) != 0 ? pair : tags;
}

/// The way that a new key takes: an empty one, if there is one.
unsigned RecencySets::victim_of(const Chunk* set) const {
  if (nodes_.empty()) return shape_.ways - 1;
  const unsigned way = tree_of(shape_.ways).victim[nodes_[number_of(set)] % (1U << most_nodes)];
  if (set[way / lanes].tags[way % lanes] == none) return way;
  const unsigned empty = find(set, none);
  return empty < shape_.ways ? empty : way;
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
  const unsigned last = victim_of(set);
  const Tag victim = set[last / lanes].tags[last % lanes];
  if (!nodes_.empty()) {
    go_up(set, last);
    set->tags[0] = tag_of(key);
  } else if (adapts_ && victim != none && is_inserted_as_oldest(key & set_mask_)) {
    set[last / lanes].tags[last % lanes] = tag_of(key);
  } else {
    put_first(set, tag_of(key), last);
  }
  return victim == none ? nothing : std::uint64_t{victim} << set_bits_ | (key & set_mask_);
}

void RecencySets::visit_state(const StateVisitor& visit) {
  visit(state_bytes(chunks_));
  visit(state_bytes(nodes_));
  if (!adapts_) return;
  visit(state_bytes(votes_));
  visit(state_bytes(as_oldest_));
  votes_ = std::clamp(votes_, -most_votes, most_votes);
}

bool RecencySets::remove(std::uint64_t key) {
  Chunk* const set = set_of(key);
  const unsigned way = find(set, tag_of(key));
  if (way >= shape_.ways) return false;
  const unsigned last = nodes_.empty() ? shape_.ways - 1 : way;  // the others stay where they are in a tree
  for (unsigned i = way; i < last; ++i) set[i / lanes].tags[i % lanes] = set[(i + 1) / lanes].tags[(i + 1) % lanes];
  set[last / lanes].tags[last % lanes] = none;
  return true;
}

bool RecencySets::contains(std::uint64_t key) const { return find(set_of(key), tag_of(key)) < shape_.ways; }

void RecencySets::clear() {
  std::ranges::fill(chunks_, Chunk{Tags{} + none});
  std::ranges::fill(nodes_, std::uint8_t{0});
}

}  // namespace vpmu::uarch
