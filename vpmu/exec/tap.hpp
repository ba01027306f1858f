#pragma once
#include <array>

#include "exec/core.hpp"
#include "exec/observer.hpp"

/// How an Observer sees what ops do, at no cost while there is none.
///
/// Blocks that were decoded for an observer have, in place of the functions of ops that touch memory, and of the first
/// op, ones that note what is going to happen and go on with the real one. Where the op accesses one place that can be
/// told before, and the TLB knows the page, that is noted at once. All others run with an empty TLB, so that each
/// access comes to find_slowly(), and is noted there. An op that gives up takes back what was noted of it: leave(). A
/// branch is noted when its successor is known: the next block begins, or the engine stops.
///
/// Compiled blocks write a log, blocks and addresses as SeenBlocks has them: all else is known before. It is read
/// whenever compiled code is left, if only for one op; so the TLB still has what the addresses were translated by.
namespace vpmu::exec {

struct Tap {
  /// So many instructions at most are run before the log is read.
  static constexpr std::int64_t most_logged = SeenBlocks::most;

  Observer* observer{};
  Tlb closed{};  ///< Never has anything: the fast path goes through it.
  std::array<std::array<SeenPage, tlb_entries>, rights_count>
      pages{};  ///< What the TLB entry of the same place translates to.

  std::array<Seen, 256> seen{};  ///< What the observer was not told yet.
  unsigned count{};
  bool running{};          ///< An op that touches memory has begun, with an empty TLB.
  unsigned first{};        ///< Of its entries, as far as they may be taken back;
  bool partly{};           ///< some were told already;
  std::uint8_t events{};   ///< its OpEvent,
  std::uint16_t offset{};  ///< place in its block,
  std::uint64_t now{};     ///< and the instructions that retired before it.

  std::uint64_t at_entry{};   ///< The same for the block.
  std::uint64_t passed{};     ///< Instructions before the present Engine::run().
  std::int64_t begun_with{};  ///< Core::left at its beginning.
  std::uint64_t line{~0ULL};  ///< Of code, the last one.
  SeenBranch branch{};        ///< Whose successor is not known yet; kind none: there is none.

  std::int64_t held{};      ///< Of Core::aside: instructions that are for the present Engine::run() after all.
  std::uint64_t at_next{};  ///< What retires before the next block of the log.
  const Site* resumed{};    ///< Compiled code goes on behind its op: the log begins with what else its block accesses.
  /// The log. A block has one instruction at least; an instruction makes two accesses at most.
  std::array<const SeenBlock*, most_logged> blocks{};
  std::array<std::uint64_t, 2 * most_logged> addresses{};
};

/// Makes the ops of a block that was just decoded tell of themselves.
void prepare(Block& block, const SeenPage& page);
/// It is known where the block lies now.
void see_lines(Block& block);
/// The first op of `core.block` is going to run alone; `left` may still pass.
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

/// Compiled code is going to begin with core.block, whose counts have been taken off.
void begin_log(Core& core);
/// It was left at `site`; null: an op gave up.
void tell_log(Core& core, const Site* site);
/// Its op at `site` is going to run alone,
void begin_alone_in_log(Core& core, const Site& site);
/// and has retired.
void go_on_in_log(Core& core, const Site& site);
/// What an op that is not the first of its block does so that the observer is told.
Run observed_run(const Block& block, std::size_t op);
/// No op is running, and the TLB is that of the present rights.
void settle(Core& core);

/// As find_slowly(), which calls it when there is a tap.
std::byte* find_tapped(Core* c, std::uint64_t at, PagingAccess access, unsigned bytes);

}  // namespace vpmu::exec
