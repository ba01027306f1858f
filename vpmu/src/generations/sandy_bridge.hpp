#pragma once
#include "events/sandy_bridge.hpp"
#include "events/sandy_bridge_ep.hpp"
#include "generations/westmere.hpp"

namespace vpmu::generations {

/// On a server, which may have a second package, a read from memory snoops, and the snoop misses: SNP_MISS.
inline constexpr std::uint64_t snoop_of_memory_on_servers = bit(33);

/// Sandy Bridge client. SDM 3B 18.9, 3C table 35-18.
template <>
inline constexpr GenerationDesc description<sandy_bridge> = derive(description<westmere>, [](GenerationDesc& g) {
  g.generation = Generation::sandy_bridge;
  g.name = "sandybridge";
  g.unavailable_events = 0;
  g.gp_counters_no_smt = 8;
  g.features.full_width_write = true;
  g.features.precise_store = true;
  g.features.qualifying_umasks = true;
  g.features.pdir = true;
  g.features.signals_full_buffer = true;
  g.offcore_rsp_mask = 0x3F'807F'8FFF;
  // ANY_RESPONSE; L3_HITE and LOCAL_DRAM with SNP_NOT_NEEDED. SDM 3B tables 18-35 to 18-38.
  g.offcore = {.any_response = bit(16),
               .answers = {{{.supplier = bit(19), .snoop = bit(32)},
                            {.supplier = bit(22), .snoop = bit(32)},
                            {.supplier = bit(20), .snoop = bit(34)},
                            {.supplier = bit(18), .snoop = bit(36)}}}};
  g.data_source_code = {0x0, 0x1, 0x2, 0x3, 0x4, 0xC, 0xF, 0xE, 0x6, 0x7};
  g.bus_clock = g.base_clock = {.khz = 100'000};
  g.load_latency_code = 0xCD;
  g.load_latency_umask = 0x01;
  g.precise_store_code = 0xCD;
  g.precise_store_umask = 0x02;
  g.load_latency_counters = 0x8;
  g.uncore = &sandy_bridge_uncore;
  g.events = events::sandy_bridge;
});

template <>
inline constexpr GenerationDesc description<sandy_bridge_ep> = derive(description<sandy_bridge>, [](GenerationDesc& g) {
  g.generation = Generation::sandy_bridge_ep;
  g.name = "sandybridge-ep";
  g.offcore_rsp_mask = 0x3F'FFFF'8FFF;
  g.offcore.of(OffcoreSupplier::local_dram).snoop = snoop_of_memory_on_servers;
  g.uncore = &sandy_bridge_ep_uncore;
  g.events = events::sandy_bridge_ep;
});

}  // namespace vpmu::generations
