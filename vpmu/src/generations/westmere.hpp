#pragma once
#include "events/westmere.hpp"
#include "events/westmere_ep.hpp"
#include "events/westmere_ex.hpp"
#include "generations/nehalem.hpp"

namespace vpmu::generations {

/// Westmere client. SDM 3B 18.8.4, 3C table 35-16.
template <>
inline constexpr GenerationDesc description<westmere> = derive(description<nehalem>, [](GenerationDesc& g) {
  g.generation = Generation::westmere;
  g.name = "westmere";
  g.unavailable_events = 0x04;  // reference cycles
  g.features.data_source_tlb_lock = true;
  g.offcore_rsp_msrs = 2;
  g.offcore.of(OffcoreSupplier::local_dram).supplier = bit(13);
  g.events = events::westmere;
});

template <>
inline constexpr GenerationDesc description<westmere_ep> = derive(description<westmere>, [](GenerationDesc& g) {
  g.generation = Generation::westmere_ep;
  g.name = "westmere-ep";
  g.offcore.of(OffcoreSupplier::local_dram).supplier = bit(12);  // LOCAL_DRAM_AND_REMOTE_CACHE_HIT
  g.events = events::westmere_ep;
});

template <>
inline constexpr GenerationDesc description<westmere_ex> = derive(description<westmere>, [](GenerationDesc& g) {
  g.generation = Generation::westmere_ex;
  g.name = "westmere-ex";
  g.offcore.of(OffcoreSupplier::local_dram).supplier = bit(14);
  g.uncore = description<nehalem_ex>.uncore;
  g.events = events::westmere_ex;
});

}  // namespace vpmu::generations
