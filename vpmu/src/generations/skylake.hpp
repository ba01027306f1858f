#pragma once
#include "events/skylake.hpp"
#include "events/skylake_sp.hpp"
#include "generations/broadwell.hpp"

namespace vpmu::generations {

/// Skylake client. SDM 3B 18.13, 3C tables 35-37 and 35-38.
template <>
inline constexpr GenerationDesc description<skylake> = derive(description<broadwell>, [](GenerationDesc& g) {
  g.generation = Generation::skylake;
  g.name = "skylake";
  g.perfmon_version = 4;
  g.pebs_format = 3;
  g.lbr_format = LbrFormat::eip_with_info;
  g.lbr_depth = 32;
  g.freeze = FreezeKind::streamlined;
  g.features.frontend = true;
  g.features.global_status_set = true;
  g.features.lbr_info = true;
  g.bus_clock = {.khz = 24'000};
  g.frontend_mask = 0x7F'FF17;
  g.data_source_code = {0x0, 0x1, 0x2, 0x3, 0x4, 0xA, 0xF, 0xE, 0x6, 0x7};
  g.offcore.requests[static_cast<unsigned>(OffcoreRequest::prefetch_data_read)] = 0;
  g.uncore = &skylake_uncore;
  g.events = events::skylake;
});

template <>
inline constexpr GenerationDesc description<skylake_sp> = derive(description<skylake>, [](GenerationDesc& g) {
  g.generation = Generation::skylake_sp;
  g.name = "skylake-sp";
  g.bus_clock = {.khz = 25'000};
  g.offcore.of(OffcoreSupplier::local_dram).snoop = snoop_of_memory_on_servers;
  g.offcore.requests = description<broadwell>.offcore.requests;
  g.uncore = &skylake_sp_uncore;
  g.events = events::skylake_sp;
});

}  // namespace vpmu::generations
