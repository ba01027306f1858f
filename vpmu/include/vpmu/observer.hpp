#pragma once
#include <cstdint>
#include <span>

#include "vpmu/address.hpp"
#include "vpmu/retirement.hpp"

namespace vpmu {

/// Where a software prefetch brings its line. SDM 2B PREFETCHW.
enum class Prefetch : std::uint8_t {
  none,      ///< It is none.
  to_l1,     ///< PREFETCHT0, PREFETCHNTA: into all levels.
  to_l2,     ///< PREFETCHT1, PREFETCHT2: into the L2 and below.
  to_write,  ///< PREFETCHW: as a store does.
};

/// A line of code that instructions are fetched from.
struct SeenCode {
  std::uint64_t linear{};
  std::uint64_t physical{};
  std::uint64_t page_bytes{};  ///< Of the page that it is in.
  bool global{};               ///< The page is global.
};

/// A data access that lies in one page. An access that crosses pages is two of these.
struct SeenAccess {
  std::uint64_t linear{};
  std::uint64_t physical{};
  std::uint64_t page_bytes{};
  std::uint16_t bytes{};
  bool store{};
  bool second_half{};  ///< Continues the access before it, in the next page.
  Prefetch prefetch{};
  bool locked{};         ///< The store of a locked instruction.
  bool is_mapped{true};  ///< A prefetch from where no RAM is, or none that the code may read, reaches no cache.
  bool global{};         ///< In a global page.
};

/// What the TLBs lose. SDM 3A 4.10.4.1.
struct TlbFlush {
  /// Which translations.
  enum class Of : std::uint8_t {
    everything,     ///< A change of CR0, CR4 or IA32_EFER.
    address_space,  ///< Those of `pcid`, but for global pages: it is in use from here on.
    nothing,        ///< `pcid` is in use from here on, and they are kept.
    page,           ///< That of the page at `linear`, under the PCID in use or global.
  };
  Of of{};
  std::uint16_t pcid{};  ///< 0 if CR4.PCIDE is clear.
  std::uint64_t linear{};
  friend constexpr bool operator==(const TlbFlush&, const TlbFlush&) = default;
};

/// A line that was flushed from all caches. SDM 2A CLFLUSH.
struct SeenFlush {
  std::uint64_t linear{};
  std::uint64_t physical{};
  std::uint64_t now{};  ///< Instructions that have retired before it since Engine::observe().
};

/// A branch that retired.
struct SeenBranch {
  std::uint64_t at{};
  std::uint64_t fall_through{};  ///< The next instruction in memory.
  std::uint64_t to{};
  BranchKind kind{};
  bool taken{};
  std::uint32_t now{};  ///< Instructions that have retired since Engine::observe(), this one included: the low half.
};

struct SeenBlock;

/// One of the events below, in the short form in which they are kept until there are enough of them. The kind tells
/// which member is valid.
union Seen {
  /// Which function of Observer is called for it.
  enum class Kind : std::uint8_t { block, code, access, retired, branch, abandoned, flush };
  /// What the flags of an access are made of, and of an instruction that has retired.
  enum Flag : std::uint8_t {
    store = 1,
    second_half = 2,      ///< SeenAccess::second_half.
    retires = 4,          ///< The access is the last one of its instruction, which retires.
    op_loads = 8,         ///< If it retires: it loads by its kind.
    op_stores = 16,       ///< It stores by its kind.
    global = 32,          ///< SeenAccess::global.
    locked = 64,          ///< Of a store: SeenAccess::locked.
    prefetch_to_l1 = 64,  ///< Of these two bits, where nothing is stored: a Prefetch.
    prefetch_to_l2 = 128,
  };
  /// Of the flags: the lowest of the two bits.
  static constexpr unsigned prefetch_at = 6;

  /// What all of them begin with.
  struct Any {
    Kind kind{};
  };
  /// Observer::begun().
  struct Begun {
    Kind kind{Kind::block};
    const SeenBlock* block{};
    std::uint64_t now{};
  };
  /// SeenCode.
  struct Code {
    Kind kind{Kind::code};
    bool global{};
    std::uint32_t page_bytes{};
    std::uint64_t linear{};
    std::uint64_t physical{};
  };
  /// SeenAccess.
  struct Access {
    Kind kind{Kind::access};
    std::uint8_t flags{};
    std::uint16_t bytes{};
    std::uint32_t page_bytes{};  ///< 0: SeenAccess::is_mapped is false.
    std::uint64_t linear{};
    std::uint64_t physical{};
    std::uint64_t now{};  ///< Instructions that have retired before it, since Engine::observe().

    /// Whether that flag is set.
    [[nodiscard]] bool is(Flag flag) const { return (flags & flag) != 0; }
    /// SeenAccess::prefetch.
    [[nodiscard]] Prefetch prefetch() const {
      return is(store) ? Prefetch::none : static_cast<Prefetch>(flags >> prefetch_at);
    }
  };
  /// An instruction whose last access was noted without Flag::retires.
  struct Retired {
    Kind kind{Kind::retired};
    std::uint8_t flags{};

    /// Whether that flag is set.
    [[nodiscard]] bool is(Flag flag) const { return (flags & flag) != 0; }
  };
  /// SeenBranch.
  struct Branch {
    Kind kind{Kind::branch};
    BranchKind branch_kind{};
    bool taken{};
    std::uint32_t now{};
    std::uint64_t at{};
    std::uint64_t fall_through{};
    std::uint64_t to{};
  };
  /// Observer::abandoned().
  struct Abandoned {
    Kind kind{Kind::abandoned};
  };
  /// SeenFlush.
  struct Flush {
    Kind kind{Kind::flush};
    std::uint64_t linear{};
    std::uint64_t physical{};
    std::uint64_t now{};
  };

  Any any{};            ///< Always valid.
  Begun begun;          ///< Of Kind::block.
  Code code;            ///< Of Kind::code.
  Access access;        ///< Of Kind::access.
  Retired retired;      ///< Of Kind::retired.
  Branch branch;        ///< Of Kind::branch.
  Abandoned abandoned;  ///< Of Kind::abandoned.
  Flush flush;          ///< Of Kind::flush.

  /// The kind of the member that is valid.
  [[nodiscard]] Kind kind() const { return any.kind; }
};
static_assert(sizeof(Seen) == 32, "the engine writes one for each access");

/// Calls the function of Observer for each of them.
template <class To>
void tell(std::span<const Seen> all, To& to) {
  for (const Seen& s : all) {
    switch (s.kind()) {
      case Seen::Kind::block: to.begun(*s.begun.block, s.begun.now); break;
      case Seen::Kind::code:
        to.fetched({.linear = s.code.linear,
                    .physical = s.code.physical,
                    .page_bytes = s.code.page_bytes,
                    .global = s.code.global});
        break;
      case Seen::Kind::access:
        to.accessed({.linear = s.access.linear,
                     .physical = s.access.physical,
                     .page_bytes = s.access.page_bytes,
                     .bytes = s.access.bytes,
                     .store = s.access.is(Seen::store),
                     .second_half = s.access.is(Seen::second_half),
                     .prefetch = s.access.prefetch(),
                     .locked = s.access.is(Seen::store) && s.access.is(Seen::locked),
                     .is_mapped = s.access.page_bytes != 0,
                     .global = s.access.is(Seen::global)},
                    s.access.now);
        if (s.access.is(Seen::retires)) to.retired(s.access.is(Seen::op_loads), s.access.is(Seen::op_stores));
        break;
      case Seen::Kind::retired: to.retired(s.retired.is(Seen::op_loads), s.retired.is(Seen::op_stores)); break;
      case Seen::Kind::branch:
        to.branched({.at = s.branch.at,
                     .fall_through = s.branch.fall_through,
                     .to = s.branch.to,
                     .kind = s.branch.branch_kind,
                     .taken = s.branch.taken,
                     .now = s.branch.now});
        break;
      case Seen::Kind::abandoned: to.abandoned(); break;
      case Seen::Kind::flush:
        to.flushed_line({.linear = s.flush.linear, .physical = s.flush.physical, .now = s.flush.now});
        break;
    }
  }
}

/// A page as it is mapped.
struct SeenPage {
  std::uint64_t physical{};
  std::uint32_t page_bytes{};  ///< At most 1 GiB.
  bool global{};               ///< SDM 3A 4.10.2.4.
  bool operator==(const SeenPage&) const = default;
};
/// Places of the software TLB: each has the last used of the linear pages that map to it.
inline constexpr unsigned tlb_entries = 256;
/// The place of the page of linear address `at`.
constexpr std::size_t tlb_place(std::uint64_t at) { return at / page_size % tlb_entries; }

/// An access that an instruction of a block makes.
struct BlockAccess {
  std::uint8_t instruction{};  ///< Index in the block, from 0.
  std::uint8_t flags{};        ///< Seen::Flag.
  bool both{};                 ///< A load, and then a store.
  std::uint16_t bytes{};

  /// Whether that flag is set.
  [[nodiscard]] bool is(Seen::Flag flag) const { return (flags & flag) != 0; }
};

/// What is known of a block before it runs: straight-line code up to the branch that may end it.
struct SeenBlock {
  std::uint64_t rip{};
  std::uint32_t instructions{};
  std::uint8_t bits{64};            ///< Of its code: 16, 32 or 64.
  std::span<const std::byte> code;  ///< Its bytes.
  SeenBranch branch{};              ///< The last instruction: `at`, `fall_through`, `kind`; none if no branch.
  std::span<const SeenCode> lines;  ///< The lines that hold its code.
  std::span<const BlockAccess> accesses;
  /// The observer's own, by which it knows the block again; 0 for a new one. One observer of an engine may use it.
  mutable std::uint64_t note{};
};

/// Blocks that ran to their ends, one after another. `now`, `line` and `branch` tell the state before them; the reader
/// updates these to the state after them.
struct SeenBlocks {
  /// The most blocks, and the most instructions of all of them.
  static constexpr std::size_t max = 2048;
  std::span<const SeenBlock* const> blocks;
  std::span<const std::uint64_t> addresses;      ///< Linear, of all their accesses in turn. None lies in two pages.
  std::span<const SeenPage, tlb_entries> pages;  ///< By tlb_place(): the pages of these.
  std::uint64_t now{};                           ///< Instructions that have retired since Engine::observe().
  std::uint64_t line{};                          ///< The last line that was fetched.
  SeenBranch branch{};  ///< The last branch, if its target is not known yet; else of kind none.

  /// Where the linear address `at` is, which is one of those of an access.
  [[nodiscard]] std::uint64_t physical(std::uint64_t at) const {
    return pages[tlb_place(at)].physical + at % page_size;
  }
  /// The access `a` at linear address `at`, with its translation.
  [[nodiscard]] SeenAccess access(const BlockAccess& a, std::uint64_t at) const {
    return {.linear = at,
            .physical = physical(at),
            .page_bytes = pages[tlb_place(at)].page_bytes,
            .bytes = a.bytes,
            .store = a.is(Seen::store),
            .global = pages[tlb_place(at)].global};
  }
  /// The branch before the block, completed: it went to the block.
  [[nodiscard]] SeenBranch branch_to(const SeenBlock& block) const {
    SeenBranch b = branch;
    b.to = block.rip;
    b.taken = b.kind != BranchKind::conditional || b.to != b.fall_through;
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
    to.begun(block, all.now);
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
      if (a.is(Seen::retires)) to.retired(a.is(Seen::op_loads), a.is(Seen::op_stores));
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
  /// A block begins, or its first instruction alone, after `now` instructions since Engine::observe(). How far it gets
  /// shows only later. `block` is valid until this returns.
  virtual void begun(const SeenBlock& /*block*/, std::uint64_t /*now*/) {}
  /// The block that begins has code in this line, which is not the one that was fetched last.
  virtual void fetched(const SeenCode& code) = 0;
  /// The instruction that is going to retire made an access; `now` instructions have retired before it, since
  /// Engine::observe().
  virtual void accessed(const SeenAccess& access, std::uint64_t now) = 0;
  /// The instruction has retired. It loads, stores, or both by its kind, even if it made no access. Not called for
  /// other instructions.
  virtual void retired(bool load, bool store) = 0;
  /// A branch has retired, and its target is known.
  virtual void branched(const SeenBranch& branch) = 0;
  /// The engine left a string instruction after some elements: the accesses that were reported have happened, but the
  /// instruction does not retire here.
  virtual void abandoned() = 0;
  /// CLFLUSH or CLFLUSHOPT retired. It is neither a load nor a store.
  virtual void flushed_line(const SeenFlush& flush) = 0;
  /// Control registers changed, or an instruction such as INVLPG ran.
  virtual void flushed(const TlbFlush& flush) = 0;
  /// From here on a linear address may be mapped elsewhere.
  virtual void remapped() {}
};

}  // namespace vpmu
