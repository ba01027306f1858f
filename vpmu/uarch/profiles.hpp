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

/// Sizes of the branch predictor's tables.
struct BranchShapes {
  std::uint8_t history_bits;        ///< Outcomes in the history, and 2^n counters.
  Shape targets;                    ///< Of indirect branches.
  std::uint8_t return_stack;        ///< Entries.
  std::uint8_t mispredict_penalty;  ///< Cycles.
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
  Latencies latency;
};

/// Cycles in which the decoders take over from the decoded micro-op cache, and the queue of decoded instructions gets
/// nothing.
inline constexpr unsigned switch_to_decoders = 2;
/// The longest bubble that a fetch can cause, in cycles: a page walk, and code that no cache has.
constexpr unsigned max_bubble(const Profile& p) { return switch_to_decoders + p.latency.walk + p.latency.dram; }

/// All profiles, oldest first; each generation's client before its server.
std::span<const Profile> all_profiles();
/// The profile of that name, or null.
const Profile* find_profile(std::string_view name);

}  // namespace vpmu::uarch
