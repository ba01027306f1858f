#pragma once
#include "events/skylake.hpp"
#include "vpmu/generation.hpp"

namespace vpmu::generations {

/// Skylake client. SDM 3B 18.13, 3C tables 35-37 and 35-38.
inline constexpr GenerationDesc skylake{
    .generation = Generation::skylake,
    .name = "skylake",
    .perfmon_version = 4,
    .gp_counters = 4,
    .gp_counters_no_smt = 8,
    .fixed_counters = 3,
    .counter_width = 48,
    .pebs_format = 3,
    .pebs_counters = 4,
    .lbr_format = LbrFormat::eip_with_info,
    .lbr_depth = 32,
    .freeze = FreezeKind::streamlined,
    .features = {.full_width_write = true,
                 .eventing_ip = true,
                 .load_latency = true,
                 .precise_store = false,
                 .data_la = true,
                 .pdir = true,
                 .frontend = true,
                 .global_status_set = true,
                 .lbr_callstack = true,
                 .data_source_tlb_lock = true,
                 .lbr_info = true},
    .offcore_rsp_msrs = 2,
    .offcore_rsp_mask = 0x3F'FFFF'8FFF,
    .frontend_mask = 0x7F'FF17,
    .lbr_select_mask = 0x3FF,
    .misc_enable_reset = 0x85'0089,
    .load_latency_code = 0xCD,
    .load_latency_umask = 0x01,
    .load_latency_counters = 0xF,
    // unknown, L1, LFB, L2, L3 without snoop, local DRAM, uncached, I/O.
    .data_source_code = {0x0, 0x1, 0x2, 0x3, 0x4, 0xA, 0xF, 0xE},
    .events = events::skylake,
};
static_assert(skylake.perfmon_version == 4 && skylake.pebs_format == 3 && skylake.lbr_depth == 32);

}  // namespace vpmu::generations
