#pragma once
#include <cstdint>
#include <optional>
#include <span>
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
/// victim. Allocates when it is made only.
class RecencySets {
 public:
  /// Empty. Without sets nothing is ever found in it.
  explicit RecencySets(Shape shape);

  /// Whether the key is there; then it becomes its set's latest.
  bool touch(std::uint64_t key) {
    if (shape_.sets == 0) return false;
    std::uint64_t* const set = set_of(key);
    return set[0] == key || touch_older(set, key);
  }
  /// Whether the key is its set's latest: touch() would change nothing.
  [[nodiscard]] bool is_latest(std::uint64_t key) const {
    return shape_.sets != 0 && keys_[(key & (shape_.sets - 1)) * shape_.ways] == key;
  }
  /// Puts in a key that is not there, as its set's latest; returns the one that had to go, if any.
  std::optional<std::uint64_t> insert(std::uint64_t key);
  /// Takes a key out; false when it was not there.
  bool remove(std::uint64_t key);
  /// Whether the key is there; changes nothing.
  [[nodiscard]] bool contains(std::uint64_t key) const;
  void clear();
  [[nodiscard]] Shape shape() const { return shape_; }

 private:
  static constexpr std::uint64_t none = ~0ULL;
  [[nodiscard]] std::uint64_t* set_of(std::uint64_t key) {
    return keys_.data() + (key & (shape_.sets - 1)) * shape_.ways;
  }
  [[nodiscard]] std::span<const std::uint64_t> set_of(std::uint64_t key) const;
  bool touch_older(std::uint64_t* set, std::uint64_t key) const;

  Shape shape_;
  std::vector<std::uint64_t> keys_;
};

}  // namespace vpmu::uarch
