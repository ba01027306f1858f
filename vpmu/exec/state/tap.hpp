#pragma once
#include <array>

#include "exec/state/core.hpp"
#include "vpmu/observer.hpp"

namespace vpmu::exec {

/// What the engine notes for an Observer: see observe/tap.hpp.
struct Tap {
  /// The most instructions that run before the log is read.
  static constexpr std::int64_t max_logged = SeenBlocks::max;

  Observer* observer{};
  Tlb closed{};  ///< Always empty: the fast path misses in it.
  std::array<std::array<SeenPage, tlb_entries>, rights_count>
      pages{};  ///< What the TLB entry of the same place translates to.

  std::array<Seen, 256> seen{};  ///< What the observer was not told yet.
  unsigned count{};
  bool running{};          ///< An op that touches memory has begun, with an empty TLB.
  unsigned first{};        ///< Of the running op: the first entry that may be taken back.
  bool partly{};           ///< Of the running op: some entries were reported already.
  std::uint8_t events{};   ///< Of the running op: OpEvent.
  std::uint16_t offset{};  ///< Of the running op: its place in its block.
  std::uint64_t now{};     ///< Instructions that retired before the running op.

  std::uint64_t at_entry{};   ///< Instructions that retired before the block.
  std::uint64_t passed{};     ///< Instructions before the present Engine::run().
  std::int64_t begun_with{};  ///< Core::left at its beginning.
  std::uint64_t line{~0ULL};  ///< The line of code that was fetched last.
  SeenBranch branch{};        ///< The branch whose target is not known yet; kind none: there is none.

  std::int64_t held{};      ///< Part of Core::aside: instructions that belong to the present Engine::run().
  std::uint64_t at_next{};  ///< Instructions that retire before the next block of the log.
  const Site* resumed{};    ///< Compiled code went on after its op: the log begins with the block's other accesses.
  /// The log. A block has one instruction at least; an instruction makes two accesses at most.
  std::array<const SeenBlock*, max_logged> blocks{};
  std::array<std::uint64_t, 2 * max_logged> addresses{};
};

}  // namespace vpmu::exec
