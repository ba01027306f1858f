#pragma once
#include <cstdint>
#include <vector>

#include "uarch/state.hpp"

namespace vpmu::uarch {

/// Sets and ways of a cache or TLB. `sets` is a power of two; 0: there is none.
struct Shape {
  std::uint32_t sets{};
  std::uint32_t ways{};
  /// Entries in all.
  [[nodiscard]] constexpr std::uint64_t entries() const { return std::uint64_t{sets} * ways; }
  friend constexpr bool operator==(const Shape&, const Shape&) = default;
};

/// Set-associative memory of keys (lines or pages) with least-recently-used replacement. A set keeps its keys in the
/// order of their last use, the latest first: so the test for a repeated use is one comparison, and the last one is the
/// victim. Allocates in its constructor, and when its replacement is chosen.
///
/// With a tree (tree pseudo-LRU) a node over each two halves of a set, and of its halves, tells in which of these the
/// victim is: a use lets the nodes above the key tell the other one. A set then keeps its latest key first by
/// exchanging halves on the way to it, together with their nodes, which changes no victim.
///
/// A tag is the 32 bits of a key above those that number its set: keys that are a multiple of 2^32 * `sets` apart are
/// taken for the same key. The tag 2^31 marks a way as empty, so a key that happens to have this tag is found wherever
/// a way is empty.
class RecencySets {
 public:
  /// The most ways that a set may have.
  static constexpr unsigned max_ways = 64;
  /// What insert() returns when no key was evicted.
  static constexpr std::uint64_t nothing = ~0ULL;

  /// Empty. Without sets it stays so.
  explicit RecencySets(Shape shape);

  /// Whether the key is there; then it becomes its set's latest.
  bool touch(std::uint64_t key) {
    Chunk* const set = set_of(key);
    return set->tags[0] == tag_of(key) || touch_older(set, tag_of(key));
  }
  /// The same where the key is not its set's latest.
  bool touch_older(std::uint64_t key) { return touch_older(set_of(key), tag_of(key)); }
  /// Whether the key is its set's latest: touch() would change nothing.
  [[nodiscard]] bool is_latest(std::uint64_t key) const { return set_of(key)->tags[0] == tag_of(key); }
  /// Inserts a key that is not there; returns the key that it evicts, or nothing. It becomes its set's latest, unless
  /// the memory adapts, when it may become its oldest.
  std::uint64_t insert(std::uint64_t key);
  /// Whether it adapts to keys that come again only when there are more than fit: some sets always insert a key as the
  /// latest and some nearly always as the oldest, and the others do as those that miss less. Qureshi et al., "Adaptive
  /// Insertion Policies for High Performance Caching" (2007), with set duelling.
  void adapt(bool on) { adapts_ = on; }
  /// From here on a tree decides, if a set has 4 or 8 ways. What was in the sets is lost. If it has a tree already, or
  /// other ways, nothing changes.
  void replace_by_tree();
  /// Removes a key; false when it was not there.
  bool remove(std::uint64_t key);
  /// Whether the key is there; changes nothing.
  [[nodiscard]] bool contains(std::uint64_t key) const;
  void clear();
  /// Starts to load the key's set into the host's own cache: the key is going to be looked up.
  void prefetch(std::uint64_t key) const { __builtin_prefetch(set_of(key)); }
  [[nodiscard]] Shape shape() const { return shape_; }
  /// Its keys. Any bytes are valid.
  void visit_state(const StateVisitor& visit);

 private:
  using Tag = std::uint32_t;
  using Tags [[gnu::vector_size(16)]] = Tag;
  static constexpr unsigned lanes = 4;
  /// Ways that the host compares and moves at once.
  struct Chunk {
    Tags tags;
  };
  static constexpr Tag none = 1U << 31;

  [[nodiscard]] Tag tag_of(std::uint64_t key) const { return static_cast<Tag>(key >> set_bits_); }
  [[nodiscard]] const Chunk* set_of(std::uint64_t key) const {
    return chunks_.data() + (key & set_mask_) * chunks_in_set_;
  }
  [[nodiscard]] Chunk* set_of(std::uint64_t key) { return chunks_.data() + (key & set_mask_) * chunks_in_set_; }
  [[nodiscard]] unsigned find(const Chunk* set, Tag tag) const;
  void put_first(Chunk* set, Tag tag, unsigned until) const;
  bool touch_older(Chunk* set, Tag tag) {
    const unsigned way = find(set, tag);
    if (way >= shape_.ways) return false;
    if (nodes_.empty())
      put_first(set, tag, way);
    else
      go_up(set, way);
    return true;
  }
  void go_up(Chunk* set, unsigned way);
  [[nodiscard]] unsigned victim_of(const Chunk* set) const;
  [[nodiscard]] std::size_t number_of(const Chunk* set) const {
    return static_cast<std::size_t>(set - chunks_.data()) >> (chunks_in_set_ - 1);  // with a tree it is 1 or 2
  }
  [[nodiscard]] std::uint8_t& nodes_of(const Chunk* set) { return nodes_[number_of(set)]; }

  /// Of `duel` sets, one always inserts as the latest and one does not.
  static constexpr std::uint64_t duel = 32, rarely = 32;
  static constexpr std::int32_t most_votes = 512;
  bool is_inserted_as_oldest(std::uint64_t set);

  Shape shape_;
  unsigned set_bits_;
  std::uint64_t set_mask_;
  std::uint64_t chunks_in_set_;
  std::vector<Chunk> chunks_;        ///< Without sets an empty one.
  std::vector<std::uint8_t> nodes_;  ///< Of each set with a tree; empty: there are none.
  bool adapts_{};
  std::int32_t votes_{};       ///< More misses where keys are inserted as the latest: above 0.
  std::uint32_t as_oldest_{};  ///< Keys that were not, or once in a while were.
};

}  // namespace vpmu::uarch
