#pragma once
#include "events/jaketown.hpp"
#include "events/sandybridge.hpp"
#include "generations/westmere.hpp"

namespace vpmu::generations {

/// Sandy Bridge client. SDM 3B 18.9, 3C table 35-18.
inline constexpr GenerationDesc sandy_bridge = derive(westmere, [](GenerationDesc& g) {
  g.generation = Generation::sandy_bridge;
  g.name = "sandybridge";
  g.unavailable_events = 0;
  g.gp_counters_no_smt = 8;
  g.features.full_width_write = true;
  g.features.precise_store = true;
  g.features.pdir = true;
  g.offcore_rsp_mask = 0x3F'807F'8FFF;
  g.load_latency_code = 0xCD;
  g.load_latency_umask = 0x01;
  g.precise_store_code = 0xCD;
  g.precise_store_umask = 0x02;
  g.load_latency_counters = 0x8;
  g.events = events::sandybridge;
});

inline constexpr GenerationDesc sandy_bridge_ep = derive(sandy_bridge, [](GenerationDesc& g) {
  g.generation = Generation::sandy_bridge_ep;
  g.name = "sandybridge-ep";
  g.offcore_rsp_mask = 0x3F'FFFF'8FFF;
  g.events = events::jaketown;
});

}  // namespace vpmu::generations
