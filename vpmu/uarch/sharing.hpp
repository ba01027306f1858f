#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "uarch/recency_sets.hpp"

namespace vpmu::uarch {

class Hierarchy;

/// What other cores have of a line, in their L1s or L2s.
enum class Snoop : std::uint8_t { nothing, unchanged, changed };

/// What the cores of a package have in common: their L3, and that their caches are coherent, as MESI says: a line that
/// one core stores to is in no other core's L1 or L2. For models that run one at a time.
class Sharing {
 public:
  Sharing() = default;
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;
  Sharing(Sharing&&) = delete;
  Sharing& operator=(Sharing&&) = delete;
  ~Sharing() = default;

  /// Adds a core, which must outlive the use of all of them, with an L3. That of the first becomes the L3 of all.
  void add(Hierarchy& core, RecencySets& l3) {
    cores_.push_back(&core);
    if (l3_ == nullptr) l3_ = &l3;
  }
  [[nodiscard]] RecencySets& l3() const { return *l3_; }
  [[nodiscard]] std::span<Hierarchy* const> cores() const { return cores_; }
  /// `by` reads a line that its own L1 and L2 lack; a core that has it modified writes it back and keeps it unmodified.
  /// Cost: some look-ups for each core.
  Snoop read(const Hierarchy& by, std::uint64_t line) { return ask(by, line, false); }
  /// `by` is going to store to the line: the others lose it.
  Snoop own(const Hierarchy& by, std::uint64_t line) { return ask(by, line, true); }

 private:
  Snoop ask(const Hierarchy& by, std::uint64_t line, bool for_itself);
  std::vector<Hierarchy*> cores_;
  RecencySets* l3_{};
};

}  // namespace vpmu::uarch
