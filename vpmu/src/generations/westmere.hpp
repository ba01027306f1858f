#pragma once
#include "events/westmere.hpp"
#include "events/westmere_ep.hpp"
#include "events/westmere_ex.hpp"
#include "generations/nehalem.hpp"

namespace vpmu::generations {

/// Westmere client. SDM 3B 18.8.4, 3C table 35-16.
inline constexpr GenerationDesc westmere = derive(nehalem, [](GenerationDesc& g) {
  g.generation = Generation::westmere;
  g.name = "westmere";
  g.unavailable_events = 0x04;  // reference cycles
  g.features.data_source_tlb_lock = true;
  g.offcore_rsp_msrs = 2;
  g.offcore.of(OffcoreSupplier::local_dram).supplier = bit(13);
  g.events = events::westmere;
});

inline constexpr GenerationDesc westmere_ep = derive(westmere, [](GenerationDesc& g) {
  g.generation = Generation::westmere_ep;
  g.name = "westmere-ep";
  g.offcore.of(OffcoreSupplier::local_dram).supplier = bit(12);  // LOCAL_DRAM_AND_REMOTE_CACHE_HIT
  g.events = events::westmere_ep;
});

inline constexpr GenerationDesc westmere_ex = derive(westmere, [](GenerationDesc& g) {
  g.generation = Generation::westmere_ex;
  g.name = "westmere-ex";
  g.offcore.of(OffcoreSupplier::local_dram).supplier = bit(14);
  g.uncore = nehalem_ex.uncore;
  g.events = events::westmere_ex;
});

}  // namespace vpmu::generations
