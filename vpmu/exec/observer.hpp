#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "vpmu/address.hpp"
#include "vpmu/retirement.hpp"

namespace vpmu::exec {

/// A line of code that instructions are fetched from.
struct SeenCode {
  std::uint64_t linear{};
  std::uint64_t physical{};
  std::uint64_t page_bytes{};  ///< Of the page that it is in.
};

/// A data access that lies in one page. An access that crosses pages is two of these.
struct SeenAccess {
  std::uint64_t linear{};
  std::uint64_t physical{};
  std::uint64_t page_bytes{};
  std::uint16_t bytes{};
  bool store{};
  bool second_half{};  ///< Continues the access before it, in the next page.
};

/// A line that was flushed from all caches. SDM 2A CLFLUSH.
struct SeenFlush {
  std::uint64_t linear{};
  std::uint64_t physical{};
};

/// A branch that retired.
struct SeenBranch {
  std::uint64_t at{};
  std::uint64_t behind{};  ///< The next instruction in memory.
  std::uint64_t to{};
  BranchKind kind{};
  bool taken{};
  std::uint32_t now{};  ///< Instructions that have retired since Engine::observe(), this one included: the low half.
};

/// One of the events below, in the short form in which they are kept until there are enough of them.
struct Seen {
  enum class Kind : std::uint8_t { code, access, retired, branch, abandoned, flush };
  enum Flag : std::uint8_t { store = 1, second_half = 2, retires = 4, op_loads = 8, op_stores = 16, taken = 32 };

  std::uint64_t linear{};
  std::uint64_t physical{};    ///< A branch's target.
  std::uint64_t now{};         ///< A branch: SeenBranch::behind.
  std::uint32_t page_bytes{};  ///< A branch: SeenBranch::now.
  std::uint16_t bytes{};       ///< A branch: BranchKind.
  Kind kind{};
  std::uint8_t flags{};

  [[nodiscard]] bool is(Flag flag) const { return (flags & flag) != 0; }
};

/// Calls the function of Observer for each of them.
template <class To>
void tell(std::span<const Seen> all, To& to) {
  for (const Seen& s : all) {
    switch (s.kind) {
      case Seen::Kind::code:
        to.fetched({.linear = s.linear, .physical = s.physical, .page_bytes = s.page_bytes});
        break;
      case Seen::Kind::access:
        to.accessed({.linear = s.linear,
                     .physical = s.physical,
                     .page_bytes = s.page_bytes,
                     .bytes = s.bytes,
                     .store = s.is(Seen::store),
                     .second_half = s.is(Seen::second_half)},
                    s.now);
        if (s.is(Seen::retires)) to.retired(s.is(Seen::op_loads), s.is(Seen::op_stores));
        break;
      case Seen::Kind::retired: to.retired(s.is(Seen::op_loads), s.is(Seen::op_stores)); break;
      case Seen::Kind::branch:
        to.branched({.at = s.linear,
                     .behind = s.now,
                     .to = s.physical,
                     .kind = static_cast<BranchKind>(s.bytes),
                     .taken = s.is(Seen::taken),
                     .now = s.page_bytes});
        break;
      case Seen::Kind::abandoned: to.abandoned(); break;
      case Seen::Kind::flush: to.flushed_line({.linear = s.linear, .physical = s.physical}); break;
    }
  }
}

/// A page as it is mapped.
struct SeenPage {
  std::uint64_t physical{};
  std::uint64_t page_bytes{};
  bool operator==(const SeenPage&) const = default;
};
/// Places of the software TLB: each has the last used of the linear pages that map to it.
inline constexpr unsigned tlb_entries = 256;
constexpr std::size_t tlb_place(std::uint64_t at) { return at / page_size % tlb_entries; }

/// An access that an instruction of a block makes.
struct BlockAccess {
  std::uint8_t instruction{};  ///< Index in the block, from 0.
  std::uint8_t flags{};        ///< Seen::Flag.
  bool both{};                 ///< A load, and then a store.
  std::uint16_t bytes{};
};

/// What is known of a block before it runs: straight-line code up to the branch that may end it.
struct SeenBlock {
  std::uint64_t rip{};
  std::uint32_t instructions{};
  SeenBranch branch{};          ///< The last instruction: `at`, `behind`, `kind`; none if no branch.
  std::vector<SeenCode> lines;  ///< The lines that hold its code.
  std::vector<BlockAccess> accesses;
};

/// Blocks that ran to their ends, one after another. `now`, `line` and `branch` tell the state before them; the reader
/// updates these to the state after them.
struct SeenBlocks {
  /// The most blocks, and the most instructions of all of them.
  static constexpr std::size_t most = 2048;
  std::span<const SeenBlock* const> blocks;
  std::span<const std::uint64_t> addresses;      ///< Linear, of all their accesses in turn. None lies in two pages.
  std::span<const SeenPage, tlb_entries> pages;  ///< By tlb_place(): the pages of these.
  std::uint64_t now{};                           ///< Instructions that have retired since Engine::observe().
  std::uint64_t line{};                          ///< The last line that was fetched.
  SeenBranch branch{};  ///< The last branch, if its target is not known yet; else of kind none.

  [[nodiscard]] SeenAccess access(const BlockAccess& a, std::uint64_t at) const {
    const SeenPage& page = pages[tlb_place(at)];
    return {.linear = at,
            .physical = page.physical + at % page_size,
            .page_bytes = page.page_bytes,
            .bytes = a.bytes,
            .store = (a.flags & Seen::store) != 0};
  }
  /// The branch before the block, completed: it went to the block.
  [[nodiscard]] SeenBranch branch_to(const SeenBlock& block) const {
    SeenBranch b = branch;
    b.to = block.rip;
    b.taken = b.kind != BranchKind::conditional || b.to != b.behind;
    b.now = static_cast<std::uint32_t>(now);
    return b;
  }
};

/// Calls the function of Observer for each of their events.
template <class To>
void tell(SeenBlocks& all, To& to) {
  const std::uint64_t* address = all.addresses.data();
  for (const SeenBlock* const seen : all.blocks) {
    const SeenBlock& block = *seen;
    if (all.branch.kind != BranchKind::none) to.branched(all.branch_to(block));
    for (const SeenCode& line : block.lines)
      if (line.linear != all.line) {
        to.fetched(line);
        all.line = line.linear;
      }
    for (const BlockAccess& a : block.accesses) {
      SeenAccess access = all.access(a, *address++);
      const std::uint64_t now = all.now + a.instruction;
      if (a.both) {
        access.store = false;
        to.accessed(access, now);
        access.store = true;
      }
      to.accessed(access, now);
      if ((a.flags & Seen::retires) != 0) to.retired((a.flags & Seen::op_loads) != 0, (a.flags & Seen::op_stores) != 0);
    }
    all.now += block.instructions;
    all.branch = block.branch;
  }
}

/// Receives what instructions do to memory, in program order. Each event is reported once, and only if it happened; but
/// all code of a block may be reported as fetched, although its last instructions then fault. Events come in batches,
/// the last one before the engine returns.
class Observer {
 public:
  virtual ~Observer() = default;
  /// All events, in batches. A final class that overrides this with `tell(all, *this)` saves a virtual call for each.
  virtual void saw(std::span<const Seen> all) { tell(all, *this); }
  /// The same for compiled code. Calls of saw() and saw_blocks() come in program order.
  virtual void saw_blocks(SeenBlocks& all) { tell(all, *this); }
  /// The block that begins has code in this line, which is not the one that was fetched last.
  virtual void fetched(const SeenCode& code) = 0;
  /// The instruction that is going to retire made an access; `now` instructions have retired before it, since
  /// Engine::observe().
  virtual void accessed(const SeenAccess& access, std::uint64_t now) = 0;
  /// The instruction has retired. It loads, stores, or both by its kind, even if it made no access. Not called for
  /// other instructions.
  virtual void retired(bool load, bool store) = 0;
  virtual void branched(const SeenBranch& branch) = 0;
  /// The engine left a string instruction after some elements: the accesses that were reported have happened, but the
  /// instruction does not retire here.
  virtual void abandoned() = 0;
  /// CLFLUSH or CLFLUSHOPT retired. It is neither a load nor a store.
  virtual void flushed_line(const SeenFlush& flush) = 0;
  /// Control registers changed: translations are gone.
  virtual void flushed() = 0;
  /// From here on a linear address may be mapped elsewhere.
  virtual void remapped() {}
};

}  // namespace vpmu::exec
