#pragma once
#include "events/broadwell.hpp"
#include "events/broadwell_de.hpp"
#include "events/broadwell_ep.hpp"
#include "generations/haswell.hpp"

namespace vpmu::generations {

/// Broadwell client. SDM 3B 18.12, 3C table 35-30.
template <>
inline constexpr GenerationDesc description<broadwell> = derive(description<haswell>, [](GenerationDesc& g) {
  g.generation = Generation::broadwell;
  g.name = "broadwell";
  g.offcore.of(OffcoreSupplier::local_dram).supplier = bit(26);  // L3_MISS_LOCAL_DRAM
  g.events = events::broadwell;
});

template <>
inline constexpr GenerationDesc description<broadwell_de> = derive(description<broadwell>, [](GenerationDesc& g) {
  g.generation = Generation::broadwell_de;
  g.name = "broadwell-de";
  g.uncore = description<haswell_ep>.uncore;
  g.events = events::broadwell_de;
});

template <>
inline constexpr GenerationDesc description<broadwell_ep> = derive(description<broadwell>, [](GenerationDesc& g) {
  g.generation = Generation::broadwell_ep;
  g.name = "broadwell-ep";
  g.offcore.of(OffcoreSupplier::local_dram).snoop = snoop_of_memory_on_servers;
  g.uncore = description<haswell_ep>.uncore;
  g.events = events::broadwell_ep;
});

}  // namespace vpmu::generations
