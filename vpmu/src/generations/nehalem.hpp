#pragma once
#include "events/nehalem.hpp"
#include "events/nehalem_ex.hpp"
#include "generations/derive.hpp"
#include "generations/uncore.hpp"

namespace vpmu::generations {

/// Nehalem client and EP. SDM 3B 18.8, 3C table 35-13.
template <>
inline constexpr GenerationDesc description<nehalem>{
    .generation = Generation::nehalem,
    .name = "nehalem",
    .perfmon_version = 3,
    .unavailable_events = 0x44,  // reference cycles; mispredicted branches by erratum AAJ80
    .gp_counters = 4,
    .gp_counters_no_smt = 4,
    .fixed_counters = 3,
    .counter_width = 48,
    .pebs_format = 1,
    .pebs_counters = 4,
    .lbr_format = LbrFormat::eip_flags,
    .lbr_depth = 16,
    .freeze = FreezeKind::legacy,
    .features = {.full_width_write = false,
                 .eventing_ip = false,
                 .load_latency = true,
                 .precise_store = false,
                 .data_la = false,
                 .pdir = false,
                 .frontend = false,
                 .global_status_set = false,
                 .lbr_callstack = false,
                 .data_source_tlb_lock = false,
                 .lbr_info = false,
                 .qualifying_umasks = false},
    .offcore_rsp_msrs = 1,
    .offcore_rsp_mask = 0xFFFF,
    // UNCORE_HIT and LOCAL_DRAM: one bit for each supplier, and no bit that means all of them. SDM 3B table 18-26.
    .offcore =
        {.any_response = 0,
         .answers = {{{.supplier = bit(8)}, {.supplier = bit(14)}, {.supplier = bit(9)}, {.supplier = bit(10)}}}},
    .frontend_mask = 0,
    .lbr_select_mask = 0x1FF,
    .misc_enable_reset = 0x85'0089,
    .load_latency_code = 0x0B,
    .load_latency_umask = 0x10,
    .precise_store_code = 0,
    .precise_store_umask = 0,
    .load_latency_counters = 0xF,
    .bus_clock = {.khz = 400'000, .of = 3},
    .base_clock = {.khz = 400'000, .of = 3},
    // Unknown, L1, LFB, L2, L3 without snoop, local DRAM, uncached, I/O, L3 shared, L3 modified. SDM 3B table 18-24.
    .data_source_code = {0x0, 0x1, 0x2, 0x3, 0x4, 0xC, 0xF, 0xE, 0x5, 0x6},
    .uncore = &nehalem_uncore,
    .events = events::nehalem,
};

template <>
inline constexpr GenerationDesc description<nehalem_ex> = derive(description<nehalem>, [](GenerationDesc& g) {
  g.generation = Generation::nehalem_ex;
  g.name = "nehalem-ex";
  g.uncore = &nehalem_ex_uncore;
  g.events = events::nehalem_ex;
});

}  // namespace vpmu::generations
