#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "uarch/recency_sets.hpp"

namespace vpmu::uarch {

inline constexpr std::uint64_t line_bytes = 64;

/// How the last level cache relates to the ones above it.
enum class LastLevel : std::uint8_t {
  inclusive,  ///< Holds all that the L1 and L2 hold: what it evicts, they lose.
  victim,     ///< Takes what the L2 evicts; lines from memory bypass it.
};

/// Core cycles until the data of a load are there, by where they were.
struct Latencies {
  std::uint16_t l1, l2, l3, dram;
  std::uint16_t stlb_hit;  ///< More, for a translation from the second level TLB.
  std::uint16_t walk;      ///< More, for a translation from the page tables.
  std::uint16_t split;     ///< More for data in two lines.
  std::uint16_t shared;    ///< More than l3, for a line that another core has unchanged.
  std::uint16_t modified;  ///< More than l3, for a line that another core has changed.
};

/// First level TLBs: one for each page size.
struct TlbShapes {
  Shape small, large, huge;  ///< 4 KiB, 2 and 4 MiB, 1 GiB.
};

/// What the second level TLB holds: 4 KiB pages always.
struct SecondTlb {
  Shape shared;        ///< 4 KiB pages,
  bool holds_large{};  ///< 2 and 4 MiB pages have places there, too.
  Shape huge;          ///< 1 GiB pages.
};

/// How branches are predicted.
struct BranchShapes {
  /// Of conditional branches, that are the history; 0: the way of the branches that were taken is.
  std::uint8_t outcomes;
  std::uint8_t path_from_bit{};  ///< The lowest bit of a branch's address that is part of its way.
  std::uint8_t loops{};          ///< Counters of iterations.
  bool buffer_is_hashed{};
  Shape buffer;                     ///< Of branches that are taken. Four ways.
  Shape targets;                    ///< Of indirect branches: once by address, once by history.
  std::uint8_t return_stack;        ///< Entries.
  std::uint8_t mispredict_penalty;  ///< Cycles, where no pipeline says.
  std::uint8_t resteer;             ///< Cycles for which the front end has nothing when the decoder finds a branch.
};

/// The memory behind the L3.
struct Memory {
  std::uint16_t ns{};       ///< Until its data are there, after the L3 has missed.
  std::uint16_t line_ps{};  ///< For which a line occupies its channels.
};

/// Which line a cache evicts.
enum class Replacement : std::uint8_t {
  lru,       ///< The one that was not used for the longest time.
  tree,      ///< One that a tree of bits tells, of those that were not used lately: tree pseudo-LRU.
  adaptive,  ///< That, or nearly always the one that came last: whichever missed less in the sets where it is fixed.
};

/// One processor's sizes and times.
struct Profile {
  std::string_view name;   ///< A generation's, as in GenerationDesc::name.
  Shape l1i, l1d, l2, l3;  ///< L3: all of it, as one core sees it.
  LastLevel last_level;
  std::uint8_t fill_buffers;
  TlbShapes dtlb, itlb;
  SecondTlb stlb;
  Shape decoded;  ///< Windows of 32 bytes in the decoded micro-op cache.
  BranchShapes branches;
  Latencies latency;  ///< `dram` follows from `memory` and `mhz`.
  Memory memory;
  Replacement l2_replacement{}, l3_replacement{};  ///< With a CoreClock. The L1s have `tree`.
  std::uint32_t mhz{};                             ///< Of the core.
  std::uint16_t channel;                           ///< Memory::line_ps in cycles.
  std::uint8_t prefetchers_off{};  ///< That never work, whatever the guest says: reg::misc_feature_control.
};

/// The clock of the guests' cores.
inline constexpr std::uint32_t nominal_mhz = 2500;
/// The same processor with its core at another frequency: memory takes as long as before, which is other cycles.
Profile at_frequency(Profile profile, std::uint32_t mhz);

/// Cycles in which the decoders take over from the decoded micro-op cache, and the queue of decoded instructions gets
/// nothing.
inline constexpr unsigned switch_to_decoders = 2;
/// The longest bubble that a fetch can cause, in cycles: a page walk, and code that no cache has. `walk_loads`: the
/// walk is loads of entries, of which no cache has one.
constexpr unsigned max_bubble(const Profile& p, bool walk_loads) {
  constexpr unsigned entries = 3;
  const unsigned walk = walk_loads ? p.latency.stlb_hit + entries * p.latency.dram : p.latency.walk;
  return switch_to_decoders + walk + p.latency.dram;
}

/// All profiles, oldest first; each generation's client before its server.
std::span<const Profile> all_profiles();
/// The profile of that name, or null.
const Profile* find_profile(std::string_view name);

}  // namespace vpmu::uarch
