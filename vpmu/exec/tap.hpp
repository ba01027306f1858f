#pragma once
#include <array>

#include "exec/core.hpp"
#include "exec/observer.hpp"

/// How an Observer sees what ops do, at no cost while there is none.
///
/// In blocks that were decoded for an observer, the first op and all ops that touch memory have a function that notes
/// what is going to happen and then calls the real one. If the op accesses one place that is known beforehand, and the
/// TLB knows the page, the access is noted at once. All other ops run with an empty TLB, so that each access goes
/// through find_slowly() and is noted there. leave() takes back what was noted of an op that gives up. A branch is
/// noted when its target is known: the next block begins, or the engine stops.
///
/// Compiled blocks log blocks and addresses, as SeenBlocks has them: all else is known beforehand. The log is read
/// whenever compiled code is left, even for one op: so the TLB still has what translated the addresses.
namespace vpmu::exec {

struct Tap {
  /// The most instructions that run before the log is read.
  static constexpr std::int64_t most_logged = SeenBlocks::most;

  Observer* observer{};
  Tlb closed{};  ///< Always empty: the fast path misses in it.
  std::array<std::array<SeenPage, tlb_entries>, rights_count>
      pages{};  ///< What the TLB entry of the same place translates to.

  std::array<Seen, 256> seen{};  ///< What the observer was not told yet.
  unsigned count{};
  bool running{};          ///< An op that touches memory has begun, with an empty TLB.
  unsigned first{};        ///< The first of its entries that may be taken back;
  bool partly{};           ///< some were reported already;
  std::uint8_t events{};   ///< its OpEvent,
  std::uint16_t offset{};  ///< place in its block,
  std::uint64_t now{};     ///< and the instructions that retired before it.

  std::uint64_t at_entry{};   ///< Instructions that retired before the block.
  std::uint64_t passed{};     ///< Instructions before the present Engine::run().
  std::int64_t begun_with{};  ///< Core::left at its beginning.
  std::uint64_t line{~0ULL};  ///< The line of code that was fetched last.
  SeenBranch branch{};        ///< The branch whose target is not known yet; kind none: there is none.

  std::int64_t held{};      ///< Part of Core::aside: instructions that belong to the present Engine::run().
  std::uint64_t at_next{};  ///< Instructions that retire before the next block of the log.
  const Site* resumed{};    ///< Compiled code went on after its op: the log begins with the block's other accesses.
  /// The log. A block has one instruction at least; an instruction makes two accesses at most.
  std::array<const SeenBlock*, most_logged> blocks{};
  std::array<std::uint64_t, 2 * most_logged> addresses{};
};

/// Makes the ops of a block that was just decoded report to the observer.
void prepare(Block& block, const SeenPage& page);
/// Fills in the lines of the block: its physical pages are known now.
void see_lines(Block& block);
/// The first op of `core.block` is going to run alone; `left` instructions may still retire.
void begin_alone(Core& core, std::int64_t left);
/// `op` gave up.
void note_left(Core& core, const Op& op);
/// A whole element of a string instruction is done: from here on it cannot be given up.
void note_element(Core& core);
/// The line at `at`, which the TLB knows for reading, is flushed from the caches.
void note_flush(Core& core, std::uint64_t at);
/// Between Engine::run()'s beginning and end.
void begin_run(Core& core);
/// Lets more of the run's instructions pass, once few are left.
void continue_run(Core& core);
void end_run(Core& core);

/// Compiled code is going to begin with core.block, whose counts have been subtracted.
void begin_log(Core& core);
/// Compiled code was left at `site`; null: an op gave up.
void tell_log(Core& core, const Site* site);
/// Its op at `site` is going to run alone,
void begin_alone_in_log(Core& core, const Site& site);
/// and has retired.
void go_on_in_log(Core& core, const Site& site);
/// The function that reports an op to the observer and runs it; not for the first op of a block.
Run observed_run(const Block& block, std::size_t op);
/// Ends the running op, and selects the TLB of the present rights.
void settle(Core& core);

/// As find_slowly(), which calls it when there is a tap.
std::byte* find_tapped(Core* c, std::uint64_t at, PagingAccess access, unsigned bytes);

}  // namespace vpmu::exec
