#pragma once
#include "events/ivy_bridge.hpp"
#include "events/ivy_bridge_ep.hpp"
#include "generations/sandy_bridge.hpp"

namespace vpmu::generations {

/// Ivy Bridge client. SDM 3B 18.10, 3C table 35-22.
template <>
inline constexpr GenerationDesc description<ivy_bridge> = derive(description<sandy_bridge>, [](GenerationDesc& g) {
  g.generation = Generation::ivy_bridge;
  g.name = "ivybridge";
  g.events = events::ivy_bridge;
});

template <>
inline constexpr GenerationDesc description<ivy_bridge_ep> = derive(description<ivy_bridge>, [](GenerationDesc& g) {
  g.generation = Generation::ivy_bridge_ep;
  g.name = "ivybridge-ep";
  g.offcore_rsp_mask = description<sandy_bridge_ep>.offcore_rsp_mask;
  g.offcore = description<sandy_bridge_ep>.offcore;
  g.uncore = description<sandy_bridge_ep>.uncore;
  g.events = events::ivy_bridge_ep;
});

}  // namespace vpmu::generations
