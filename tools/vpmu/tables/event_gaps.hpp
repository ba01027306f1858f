#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "vpmu/generation.hpp"

namespace vmm::tool {

/// A precise event that the exact source does not deliver.
struct EventGap {
  const vpmu::EventDesc* event;
  std::string_view reason;  ///< Empty when nobody has written one down.
};

/// All of them of one generation, in the order of its table.
std::vector<EventGap> event_gaps(const vpmu::GenerationDesc& generation);
/// How many events of the generation are precise.
std::size_t precise_events(const vpmu::GenerationDesc& generation);

/// The gaps of each generation, a line each, under a line with their share of its precise events.
std::string list_gaps(const std::vector<const vpmu::GenerationDesc*>& generations);

}  // namespace vmm::tool
