#pragma once
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

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
/// victim. Of a key it keeps the tag, which is the key without the number of its set. Allocates when it is made only.
template <class Tag>
class BasicRecencySets {
 public:
  /// Empty. Without sets nothing is ever found in it.
  explicit BasicRecencySets(Shape shape);

  /// Whether the key is there; then it becomes its set's latest.
  bool touch(std::uint64_t key) {
    if (shape_.sets == 0) return false;
    Chunk* const set = set_of(key);
    return set->tags[0] == tag_of(key) || touch_older(set, tag_of(key));
  }
  /// Whether the key is its set's latest: touch() would change nothing.
  [[nodiscard]] bool is_latest(std::uint64_t key) const {
    return shape_.sets != 0 && set_of(key)->tags[0] == tag_of(key);
  }
  /// Puts in a key that is not there, as its set's latest; returns the one that had to go, if any.
  std::optional<std::uint64_t> insert(std::uint64_t key);
  /// Takes a key out; false when it was not there.
  bool remove(std::uint64_t key);
  /// Whether the key is there; changes nothing.
  [[nodiscard]] bool contains(std::uint64_t key) const;
  void clear();
  /// The key is going to be looked up: its set comes nearer meanwhile.
  void prefetch(std::uint64_t key) const {
    if (shape_.sets != 0) __builtin_prefetch(set_of(key));
  }
  [[nodiscard]] Shape shape() const { return shape_; }

 private:
  /// As many as the host moves and compares at once.
  static constexpr unsigned lanes = 16 / sizeof(Tag);
  using Tags [[gnu::vector_size(16)]] = Tag;
  struct Chunk {
    Tags tags;
  };
  static constexpr Tag none = static_cast<Tag>(~Tag{0});

  [[nodiscard]] Tag tag_of(std::uint64_t key) const { return static_cast<Tag>(key >> set_bits_); }
  [[nodiscard]] const Chunk* set_of(std::uint64_t key) const {
    return chunks_.data() + (key & (shape_.sets - 1)) * chunks_in_set_;
  }
  [[nodiscard]] Chunk* set_of(std::uint64_t key) { return chunks_.data() + (key & (shape_.sets - 1)) * chunks_in_set_; }
  [[nodiscard]] unsigned find(const Chunk* set, Tag tag) const;
  static Tags moved_on(Tags tags, Tags before);
  static void put_first(Chunk* set, Tag tag, unsigned until);
  bool touch_older(Chunk* set, Tag tag) const;

  Shape shape_;
  unsigned set_bits_;
  std::uint32_t chunks_in_set_;
  std::vector<Chunk> chunks_;
};

extern template class BasicRecencySets<std::uint64_t>;
extern template class BasicRecencySets<std::uint32_t>;

/// Of keys of any size below 2^64 - 1.
using RecencySets = BasicRecencySets<std::uint64_t>;
/// In half of the memory: of keys below (2^32 - 1) * sets.
using CompactRecencySets = BasicRecencySets<std::uint32_t>;

}  // namespace vpmu::uarch
