#pragma once
#include "events/haswell.hpp"
#include "events/haswell_ep.hpp"
#include "generations/ivy_bridge.hpp"

namespace vpmu::generations {

/// Haswell client. SDM 3B 18.11, 3C table 35-27.
template <>
inline constexpr GenerationDesc description<haswell> = derive(description<ivy_bridge>, [](GenerationDesc& g) {
  g.generation = Generation::haswell;
  g.name = "haswell";
  g.pebs_format = 2;
  g.lbr_format = LbrFormat::eip_flags_tsx;
  g.lbr_select_mask = 0x3FF;
  g.features.eventing_ip = true;
  g.features.precise_store = false;
  g.features.data_la = true;
  g.features.lbr_callstack = true;
  g.offcore_rsp_mask = 0x3F'FFFF'8FFF;
  g.precise_store_code = g.precise_store_umask = 0;
  g.load_latency_counters = 0xF;
  g.events = events::haswell;
});

template <>
inline constexpr GenerationDesc description<haswell_ep> = derive(description<haswell>, [](GenerationDesc& g) {
  g.generation = Generation::haswell_ep;
  g.name = "haswell-ep";
  g.offcore.of(OffcoreSupplier::local_dram).snoop = snoop_of_memory_on_servers;
  g.uncore = &haswell_ep_uncore;
  g.events = events::haswell_ep;
});

}  // namespace vpmu::generations
