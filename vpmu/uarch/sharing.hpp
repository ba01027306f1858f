#pragma once
#include <cstdint>
#include <vector>

namespace vpmu::uarch {

class Hierarchy;

/// What other cores have of a line.
struct Snoop {
  enum class Found : std::uint8_t { nothing, unchanged, changed };
  Found in_core{};  ///< In the L1s or the L2 of one of them.
  bool in_l3{};     ///< In the L3 that one of them sees.
};

/// Keeps the caches of several cores coherent, as MESI does: a line that one core stores to is in no other core's L1 or
/// L2. For models that run one at a time.
class Sharing {
 public:
  Sharing() = default;
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;
  Sharing(Sharing&&) = delete;
  Sharing& operator=(Sharing&&) = delete;
  ~Sharing() = default;

  /// Adds a core, which must outlive the use of all of them.
  void add(Hierarchy& core) { cores_.push_back(&core); }
  /// `by` reads a line that its own L1 and L2 lack; a core that has it modified writes it back and keeps it unmodified.
  /// Cost: some look-ups for each core.
  Snoop read(const Hierarchy& by, std::uint64_t line) { return ask(by, line, false); }
  /// `by` is going to store to the line: the others lose it.
  Snoop own(const Hierarchy& by, std::uint64_t line) { return ask(by, line, true); }

 private:
  Snoop ask(const Hierarchy& by, std::uint64_t line, bool for_itself);
  std::vector<Hierarchy*> cores_;
};

}  // namespace vpmu::uarch
