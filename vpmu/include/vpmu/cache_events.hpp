#pragma once
#include <array>
#include <cstdint>

#include "vpmu/set_of.hpp"

// What happens in a core's caches besides what a retired access finds there. SDM 3C chapter 19: L2_RQSTS, L2_TRANS,
// OFFCORE_REQUESTS, PAGE_WALKER_LOADS and their like.
namespace vpmu {

/// One such event. A request to the L2 is of a line that an L1 lacks: a read of data, which the L1D's prefetchers make
/// too, a read for ownership, of a store, or a read of code.
enum class CacheEvent : std::uint8_t {
  l2_data_read_hit,   ///< A read of data that the L2 had,
  l2_data_read_miss,  ///< and that it lacked.
  l2_rfo_hit,         ///< The same of reads for ownership,
  l2_rfo_miss,        ///<
  l2_code_read_hit,   ///< and of reads of code.
  l2_code_read_miss,  ///<
  l2_prefetch_hit,    ///< A line that a prefetcher of the L2 asked for, and that the L2 had,
  l2_prefetch_miss,   ///< and that it lacked.
  l1d_prefetch_hit,   ///< A line that a prefetcher of the L1D asked for, and that the L1D had,
  l1d_prefetch_miss,  ///< and that it lacked.
  data_walk_l1d,      ///< An entry that a page walk for data read: it was in the L1D,
  data_walk_l2,       ///< in the L2,
  data_walk_l3,       ///< in the L3,
  data_walk_memory,   ///< or in memory.
  code_walk_l1d,      ///< The same of page walks for code.
  code_walk_l2,       ///<
  code_walk_l3,       ///<
  code_walk_memory,   ///<
};
/// Number of them.
inline constexpr unsigned cache_event_count = static_cast<unsigned>(CacheEvent::code_walk_memory) + 1;

/// A set of them.
using CacheEvents = SetOf<CacheEvent>;
static_assert(cache_event_count < 64);

/// How often each happened, by CacheEvent.
using CacheEventCounts = std::array<std::uint16_t, cache_event_count>;

}  // namespace vpmu
