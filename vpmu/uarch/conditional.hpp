#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "uarch/path_history.hpp"
#include "uarch/profiles.hpp"
#include "uarch/state.hpp"

namespace vpmu::uarch {

/// A counter of two bits: from 0, strongly not taken, to 3, strongly taken.
struct TwoBits {
  std::uint8_t value{2};
  [[nodiscard]] bool taken() const { return value >= 2; }
  void learn(bool was_taken) {
    if (was_taken ? value < 3 : value > 0) value = static_cast<std::uint8_t>(was_taken ? value + 1 : value - 1);
  }
};

/// Conditional branches, up to Sandy Bridge: by address alone, and in two levels, by address and the outcomes of the
/// conditional branches before. As on the Pentium M (S. Gochman et al., Intel Technology Journal 7(2), 2003) the second
/// has tags, and knows what the first has mispredicted. A. Fog, "The microarchitecture of Intel, AMD and VIA CPUs": 32
/// outcomes and no predictor of loops on Sandy Bridge; before, 18 outcomes and counters of loops, for up to 64
/// iterations. How many counters there are is unknown.
class TwoLevels {
 public:
  explicit TwoLevels(const BranchShapes& shapes);
  /// Whether it was mispredicted.
  bool retire(std::uint64_t at, bool taken);
  [[nodiscard]] std::uint64_t outcomes() const { return history_; }
  /// The history has a piece of an indirect branch's target, too.
  void note_target(std::uint64_t to) { history_ = (history_ << 2 ^ to >> 4) & mask_; }
  void visit_state(const StateVisitor& visit);

 private:
  static constexpr std::size_t base_entries = 8192;
  static constexpr unsigned entry_bits = 14, max_iterations = 64;
  static constexpr std::uint8_t sure = 2;
  /// How often a branch is taken before it is not.
  struct Loop {
    std::uint64_t at{};
    std::uint8_t iterations{}, now{}, repeated{};
    std::array<std::uint8_t, 5> unused{};
  };
  static_assert(std::has_unique_object_representations_v<Loop>, "its bytes are saved");
  struct Entry {
    std::uint16_t tag{};
    TwoBits counter;
    std::uint8_t unused{};
  };
  [[nodiscard]] bool retire_by_counters(std::uint64_t at, bool taken);
  std::uint64_t mask_, history_{};
  std::vector<TwoBits> base_;
  std::vector<Entry> entries_;
  std::vector<Loop> loops_;
};

/// Conditional branches, from Ivy Bridge on: by address, and by address and three lengths of PathHistory in tables
/// with tags, of which the longest that knows the branch decides (A. Seznec and P. Michaud, "TAGE", 2006; "Half&Half":
/// 2^13 counters without history, and three tables of 2048). How long the two shorter histories are is unknown.
class TaggedTables {
 public:
  explicit TaggedTables(const BranchShapes& shapes);
  /// Whether it was mispredicted.
  bool retire(std::uint64_t at, bool taken, const PathHistory& path) {
    Base& base = base_[at % base_.size()];
    if (base.has_tagged) return retire_tagged(at, taken, path, base);
    // Most branches nearly always go the same way: no table knows them.
    const bool mispredicted = base.counter.taken() != taken;
    base.counter.learn(taken);
    if (mispredicted) surprise(at, taken, path, base);
    return mispredicted;
  }
  void visit_state(const StateVisitor& visit);

 private:
  static constexpr std::size_t tables = PathHistory::lengths.size(), entries = 2048, base_entries = 8192;
  struct Base {
    TwoBits counter;
    std::uint8_t has_tagged{};  ///< A branch here was mispredicted: tables may know it.
  };
  struct Entry {
    std::uint16_t tag{};
    std::int8_t counter{};  ///< From -4; from 0 on: taken.
    std::uint8_t useful{};  ///< How often it was right where the next shorter history was wrong.
    [[nodiscard]] bool taken() const { return counter >= 0; }
    [[nodiscard]] bool is_new() const { return useful == 0 && (counter == 0 || counter == -1); }
    void learn(bool was_taken);
  };
  struct Place {
    Entry* entry;
    std::uint16_t tag;
  };
  bool retire_tagged(std::uint64_t at, bool taken, const PathHistory& path, Base& base);
  void surprise(std::uint64_t at, bool taken, const PathHistory& path, Base& base);
  Place place(std::uint64_t at, std::size_t table, const PathHistory& path);
  void allocate(std::array<Place, tables>& places, std::size_t from, bool taken);
  std::vector<Base> base_;
  std::vector<Entry> entries_;
  std::int32_t trusts_new_{};  ///< Below 0: what a new entry says is more often wrong than what was said before.
  std::uint32_t surprises_{};  ///< Since entries were last made less useful.
};

/// One of both.
class ConditionalPredictor {
 public:
  explicit ConditionalPredictor(const BranchShapes& shapes)
      : has_outcomes_{shapes.outcomes != 0}, by_outcomes_{shapes}, by_path_{shapes} {}
  bool retire(std::uint64_t at, bool taken, const PathHistory& path) {
    return has_outcomes_ ? by_outcomes_.retire(at, taken) : by_path_.retire(at, taken, path);
  }
  [[nodiscard]] std::uint64_t outcomes() const { return by_outcomes_.outcomes(); }
  void note_target(std::uint64_t to) { by_outcomes_.note_target(to); }
  void visit_state(const StateVisitor& visit) {
    by_outcomes_.visit_state(visit);
    by_path_.visit_state(visit);
  }

 private:
  bool has_outcomes_;
  TwoLevels by_outcomes_;
  TaggedTables by_path_;
};

}  // namespace vpmu::uarch
