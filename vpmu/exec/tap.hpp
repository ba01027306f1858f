#pragma once
#include <array>

#include "exec/core.hpp"
#include "exec/observer.hpp"

/// How an Observer sees what ops do, at no cost while there is none.
///
/// Blocks that were decoded for an observer have `observe` in place of the functions of ops that touch memory, and of the first op; it
/// notes that the op begins and goes on with the real one. The fast TLB stays empty, so that each access comes to find_slowly(), and is noted
/// there. What an op did is told to the observer when the next one begins, for until then it may give up: leave(). A branch is told when
/// its successor is known: the next block begins, or the engine stops.
namespace vpmu::exec {

struct Tap {
  Observer* observer{};
  Tlb closed{};  ///< Never has anything: the fast path goes through it.
  std::array<std::array<SeenPage, tlb_entries>, rights_count> pages{};  ///< What the TLB entry of the same place translates to.

  static constexpr unsigned most_pending = 8;
  std::array<SeenAccess, most_pending> pending{};  ///< Of the op that runs.
  unsigned pending_count{};
  bool running{};            ///< An op that touches memory has begun.
  std::uint8_t events{};     ///< Its OpEvent,
  std::uint16_t offset{};    ///< place in its block,
  std::uint64_t now{};       ///< and the instructions that retired before it.

  std::uint64_t at_entry{};  ///< The same for the block.
  std::uint64_t passed{};    ///< Instructions before the present Engine::run().
  std::int64_t begun_with{}; ///< Core::left at its beginning.
  std::uint64_t line{~0ULL}; ///< Of code, the last one.
  SeenBranch branch{};       ///< Whose successor is not known yet; kind none: there is none.
};

/// Makes the ops of a block that was just decoded tell of themselves.
void prepare(Block& block);
/// The first op of `core.block` is going to run alone; `left` may still pass.
void begin_alone(Core& core, std::int64_t left);
/// `op` gave up.
void note_left(Core& core, const Op& op);
/// A whole element of a string instruction is done: from here on it cannot be given up.
void note_element(Core& core);
/// Between Engine::run()'s beginning and end.
void begin_run(Core& core);
void end_run(Core& core);

/// As find_slowly(), which calls it when there is a tap.
std::byte* find_tapped(Core* c, std::uint64_t at, PagingAccess access, unsigned bytes);

}  // namespace vpmu::exec
