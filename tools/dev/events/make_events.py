#!/usr/bin/env python3
"""Writes a generation's event table, a header of the library, from its event list beside this script. The build runs it.

    tools/dev/events/make_events.py LIST.csv TABLE.hpp

README.md says what the columns mean. Counters are `;`-separated PMC numbers, or fixedN. A list's name is that of its generation.
An event of a pair of codes (0xB7;0xBB with MSRs 0x1A6;0x1A7) is listed under the first one; where there are two, the second code gets one row.
"""
import csv
import fnmatch
import pathlib
import sys

HEADER = """\
#pragma once
// Written by tools/dev/events/make_events.py from the list of this name beside it.
// Event names and codes follow Intel's public perfmon event lists, which are Copyright (c) Intel Corporation,
// BSD-3-Clause.
#include <array>

#include "event_table.hpp"
#include "vpmu/event.hpp"

namespace vpmu::events {{

// clang-format off
/// name, code, umask, cmask, inv, edge, any, counters, pebs, data_la, l1_hit_indication, msr_index, msr_value, sample_after, counts
inline constexpr std::array<EventDesc, {count}> {generation}{{{{
{rows}
}}}};
// clang-format on

static_assert(is_sorted_and_unique({generation}));
static_assert(has_possible_counters({generation}));
static_assert(has_pebs_on_pebs_counters({generation}));
static_assert(has_architectural_events({generation}));

}}  // namespace vpmu::events
"""

# What an event counts, by name. All rows of the same code and umask count the same thing (CMASK, INV, EDGE and ANY change how, not
# what: SDM 3B 18.2.1.1), so naming the plain form is enough.
COUNTS = {
    "cycles": ["CPU_CLK_UNHALTED.THREAD", "CPU_CLK_UNHALTED.THREAD_P"],
    "ref_cycles": ["CPU_CLK_UNHALTED.REF_TSC", "CPU_CLK_UNHALTED.REF"],
    "bus_cycles": ["CPU_CLK_UNHALTED.REF_XCLK", "CPU_CLK_UNHALTED.REF_P"],
    "bus_cycles_alone": ["CPU_CLK_UNHALTED.ONE_THREAD_ACTIVE"],
    "instructions": ["INST_RETIRED.ANY", "INST_RETIRED.ANY_P", "INST_RETIRED.PREC_DIST", "INSTRUCTIONS_RETIRED"],
    "uops_retired": ["UOPS_RETIRED.ALL", "UOPS_RETIRED.ANY"],
    "slots_retired": ["UOPS_RETIRED.RETIRE_SLOTS"],
    "uops_issued": ["UOPS_ISSUED.ANY"],
    "uops_executed": ["UOPS_EXECUTED.THREAD", "UOPS_EXECUTED.CORE", "UOPS_EXECUTED.STALL_CYCLES", "UOPS_EXECUTED.CORE_STALL_CYCLES",
                      "UOPS_DISPATCHED.THREAD", "UOPS_DISPATCHED.CORE"],
    "branches": ["BR_INST_RETIRED.ALL_BRANCHES", "BR_INST_RETIRED.ALL_BRANCHES_PEBS", "BRANCH_INSTRUCTIONS_RETIRED"],
    # Where nothing is speculated, a branch executes exactly when it retires.
    "branches_taken": ["BR_INST_RETIRED.NEAR_TAKEN", "BR_INST_EXEC.TAKEN"],
    "branches_not_taken": ["BR_INST_RETIRED.NOT_TAKEN", "BR_INST_EXEC.NONTAKEN_CONDITIONAL"],
    "branches_conditional": ["BR_INST_RETIRED.CONDITIONAL", "BR_INST_EXEC.COND", "BR_INST_EXEC.ALL_CONDITIONAL"],
    "branches_conditional_taken": ["BR_INST_EXEC.TAKEN_CONDITIONAL"],
    "branches_jump_direct": ["BR_INST_EXEC.DIRECT", "BR_INST_EXEC.TAKEN_DIRECT_JUMP", "BR_INST_EXEC.ALL_DIRECT_JMP"],
    "branches_jump_indirect": ["BR_INST_EXEC.INDIRECT_NON_CALL", "BR_INST_EXEC.TAKEN_INDIRECT_JUMP_NON_CALL_RET",
                               "BR_INST_EXEC.ALL_INDIRECT_JUMP_NON_CALL_RET"],
    # Its umask is that of COND, DIRECT and INDIRECT_NON_CALL: returns are not in it.
    "branches_not_call": ["BR_INST_EXEC.NON_CALLS"],
    "branches_call_direct": ["BR_INST_EXEC.DIRECT_NEAR_CALL", "BR_INST_EXEC.TAKEN_DIRECT_NEAR_CALL", "BR_INST_EXEC.ALL_DIRECT_NEAR_CALL"],
    "branches_call_indirect": ["BR_INST_EXEC.INDIRECT_NEAR_CALL", "BR_INST_EXEC.TAKEN_INDIRECT_NEAR_CALL"],
    "branches_call": ["BR_INST_RETIRED.NEAR_CALL", "BR_INST_EXEC.NEAR_CALLS"],
    "branches_return": ["BR_INST_RETIRED.NEAR_RETURN", "BR_INST_EXEC.RETURN_NEAR", "BR_INST_EXEC.TAKEN_INDIRECT_NEAR_RETURN",
                        "BR_INST_EXEC.ALL_INDIRECT_NEAR_RETURN"],
    "branches_far": ["BR_INST_RETIRED.FAR_BRANCH"],
    "branches_near": ["BR_INST_EXEC.ANY", "BR_INST_EXEC.ALL_BRANCHES"],
    "mispredicts": ["BR_MISP_RETIRED.ALL_BRANCHES", "BR_MISP_RETIRED.ALL_BRANCHES_PEBS", "BRANCH_MISSES_RETIRED",
                    "BR_MISP_EXEC.ALL_BRANCHES", "BR_MISP_EXEC.ANY"],
    "mispredicts_conditional": ["BR_MISP_RETIRED.CONDITIONAL", "BR_MISP_EXEC.COND", "BR_MISP_EXEC.ALL_CONDITIONAL"],
    "mispredicts_taken": ["BR_MISP_RETIRED.NEAR_TAKEN", "BR_MISP_RETIRED.TAKEN", "BR_MISP_EXEC.TAKEN"],
    "mispredicts_not_taken": ["BR_MISP_RETIRED.NOT_TAKEN", "BR_MISP_EXEC.NONTAKEN_CONDITIONAL"],
    "mispredicts_conditional_taken": ["BR_MISP_EXEC.TAKEN_CONDITIONAL"],
    "mispredicts_jump_direct": ["BR_MISP_EXEC.DIRECT"],
    "mispredicts_jump_indirect": ["BR_MISP_EXEC.INDIRECT_NON_CALL", "BR_MISP_EXEC.TAKEN_INDIRECT_JUMP_NON_CALL_RET",
                                  "BR_MISP_EXEC.ALL_INDIRECT_JUMP_NON_CALL_RET"],
    "mispredicts_not_call": ["BR_MISP_EXEC.NON_CALLS"],
    "mispredicts_call_direct": ["BR_MISP_EXEC.DIRECT_NEAR_CALL", "BR_MISP_EXEC.TAKEN_DIRECT_NEAR_CALL", "BR_MISP_EXEC.ALL_DIRECT_NEAR_CALL"],
    "mispredicts_call_indirect": ["BR_MISP_EXEC.INDIRECT_NEAR_CALL", "BR_MISP_EXEC.TAKEN_INDIRECT_NEAR_CALL"],
    "mispredicts_indirect": ["BR_MISP_EXEC.INDIRECT"],
    "mispredicts_call": ["BR_MISP_RETIRED.NEAR_CALL", "BR_MISP_EXEC.NEAR_CALLS"],
    "mispredicts_return": ["BR_MISP_RETIRED.RET", "BR_MISP_EXEC.RETURN_NEAR", "BR_MISP_EXEC.TAKEN_RETURN_NEAR"],
    "baclears": ["BACLEARS.ANY", "BACLEAR.CLEAR"],
    "loads": ["MEM_INST_RETIRED.ALL_LOADS", "MEM_INST_RETIRED.LOADS"],
    "stores": ["MEM_INST_RETIRED.ALL_STORES", "MEM_INST_RETIRED.STORES",
               "MEM_TRANS_RETIRED.PRECISE_STORE"],
    # L1D_CACHE_LD and _ST: requests to the cache, in any state of their line. An alias of Linux for dTLB-loads.
    "load_uops": ["MEM_UOPS_RETIRED.ALL_LOADS", "L1D_CACHE_LD.MESI"],
    "store_uops": ["MEM_UOPS_RETIRED.ALL_STORES", "L1D_CACHE_ST.MESI"],
    "memory_instructions": ["MEM_INST_RETIRED.ANY"],
    "uncached_loads": ["MEM_UNCORE_RETIRED.UNCACHEABLE", "MEM_LOAD_MISC_RETIRED.UC"],
    "locked_loads": ["MEM_INST_RETIRED.LOCK_LOADS", "MEM_UOPS_RETIRED.LOCK_LOADS"],
    "split_loads": ["MEM_INST_RETIRED.SPLIT_LOADS", "MEM_UOPS_RETIRED.SPLIT_LOADS"],
    "split_stores": ["MEM_INST_RETIRED.SPLIT_STORES", "MEM_UOPS_RETIRED.SPLIT_STORES"],
    # Up to Westmere these are misses of the first level, whether the second one hits or not.
    "dtlb_miss_loads": ["MEM_LOAD_RETIRED.DTLB_MISS", "DTLB_LOAD_MISSES.ANY"],
    "dtlb_miss_stores": ["MEM_STORE_RETIRED.DTLB_MISS"],
    # Of loads and stores.
    "dtlb_misses": ["DTLB_MISSES.ANY"],
    "dtlb_stlb_hits": ["DTLB_MISSES.STLB_HIT"],
    "dtlb_walks": ["DTLB_MISSES.WALK_COMPLETED"],
    "dtlb_stlb_hit_loads": ["DTLB_LOAD_MISSES.STLB_HIT"],
    "dtlb_stlb_hit_stores": ["DTLB_STORE_MISSES.STLB_HIT"],
    # Nothing runs on a wrong path: each access that causes a page walk retires, and each walk completes.
    "stlb_miss_loads": ["MEM_INST_RETIRED.STLB_MISS_LOADS", "MEM_UOPS_RETIRED.STLB_MISS_LOADS", "DTLB_LOAD_MISSES.MISS_CAUSES_A_WALK",
                        "DTLB_LOAD_MISSES.WALK_COMPLETED", "DTLB_LOAD_MISSES.DEMAND_LD_WALK_COMPLETED"],
    "stlb_miss_stores": ["MEM_INST_RETIRED.STLB_MISS_STORES", "MEM_UOPS_RETIRED.STLB_MISS_STORES", "DTLB_STORE_MISSES.MISS_CAUSES_A_WALK",
                         "DTLB_STORE_MISSES.WALK_COMPLETED"],
    # Umask 02H is WALK_COMPLETED on Sandy and Ivy Bridge, WALK_COMPLETED_4K from Haswell on.
    "stlb_miss_loads_small": ["DTLB_LOAD_MISSES.WALK_COMPLETED_4K"],
    "stlb_miss_loads_large": ["DTLB_LOAD_MISSES.WALK_COMPLETED_2M_4M", "DTLB_LOAD_MISSES.LARGE_PAGE_WALK_COMPLETED",
                              "DTLB_LOAD_MISSES.LARGE_WALK_COMPLETED"],
    "stlb_miss_loads_huge": ["DTLB_LOAD_MISSES.WALK_COMPLETED_1G"],
    "stlb_miss_stores_small": ["DTLB_STORE_MISSES.WALK_COMPLETED_4K"],
    "stlb_miss_stores_large": ["DTLB_STORE_MISSES.WALK_COMPLETED_2M_4M"],
    "stlb_miss_stores_huge": ["DTLB_STORE_MISSES.WALK_COMPLETED_1G"],
    "dtlb_walks_large": ["DTLB_MISSES.LARGE_WALK_COMPLETED"],
    "dtlb_stlb_hit_loads_small": ["DTLB_LOAD_MISSES.STLB_HIT_4K"],
    "dtlb_stlb_hit_loads_large": ["DTLB_LOAD_MISSES.STLB_HIT_2M"],
    "dtlb_stlb_hit_stores_small": ["DTLB_STORE_MISSES.STLB_HIT_4K"],
    "dtlb_stlb_hit_stores_large": ["DTLB_STORE_MISSES.STLB_HIT_2M"],
    "l1_hit": ["MEM_LOAD_RETIRED.L1_HIT", "MEM_LOAD_UOPS_RETIRED.L1_HIT", "MEM_LOAD_RETIRED.L1D_HIT"],
    "l1_miss": ["MEM_LOAD_RETIRED.L1_MISS", "MEM_LOAD_UOPS_RETIRED.L1_MISS"],
    "lfb_hit": ["MEM_LOAD_RETIRED.FB_HIT", "MEM_LOAD_UOPS_RETIRED.HIT_LFB", "MEM_LOAD_RETIRED.HIT_LFB"],
    "l2_hit": ["MEM_LOAD_RETIRED.L2_HIT", "MEM_LOAD_UOPS_RETIRED.L2_HIT"],
    "l2_miss": ["MEM_LOAD_RETIRED.L2_MISS", "MEM_LOAD_UOPS_RETIRED.L2_MISS"],
    "l3_hit": ["MEM_LOAD_RETIRED.L3_HIT", "MEM_LOAD_UOPS_RETIRED.L3_HIT"],
    "l3_hit_unshared": ["MEM_LOAD_RETIRED.LLC_UNSHARED_HIT", "MEM_LOAD_UOPS_RETIRED.LLC_HIT", "MEM_LOAD_UOPS_LLC_HIT_RETIRED.XSNP_NONE",
                        "MEM_LOAD_UOPS_L3_HIT_RETIRED.XSNP_NONE", "MEM_LOAD_L3_HIT_RETIRED.XSNP_NONE"],
    "l3_hit_shared": ["MEM_LOAD_UOPS_LLC_HIT_RETIRED.XSNP_HIT", "MEM_LOAD_UOPS_L3_HIT_RETIRED.XSNP_HIT", "MEM_LOAD_L3_HIT_RETIRED.XSNP_HIT"],
    "l3_hit_modified": ["MEM_LOAD_UOPS_LLC_HIT_RETIRED.XSNP_HITM", "MEM_LOAD_UOPS_L3_HIT_RETIRED.XSNP_HITM",
                        "MEM_LOAD_L3_HIT_RETIRED.XSNP_HITM", "MEM_UNCORE_RETIRED.OTHER_CORE_L2_HITM", "MEM_UNCORE_RETIRED.LOCAL_HITM"],
    "l3_hit_other_core": ["MEM_LOAD_RETIRED.OTHER_CORE_L2_HIT_HITM"],
    # There is one package: what misses its L3 comes from its memory.
    "l3_miss": ["MEM_LOAD_RETIRED.L3_MISS", "MEM_LOAD_UOPS_RETIRED.L3_MISS", "MEM_LOAD_UOPS_RETIRED.LLC_MISS",
                "MEM_LOAD_RETIRED.LLC_MISS", "MEM_LOAD_UOPS_MISC_RETIRED.LLC_MISS", "MEM_UNCORE_RETIRED.LOCAL_DRAM",
                "MEM_UNCORE_RETIRED.LOCAL_DRAM_AND_REMOTE_CACHE_HIT", "MEM_LOAD_UOPS_LLC_MISS_RETIRED.LOCAL_DRAM",
                "MEM_LOAD_UOPS_L3_MISS_RETIRED.LOCAL_DRAM", "MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM"],
    "llc_references": ["LONGEST_LAT_CACHE.REFERENCE"],
    "llc_misses": ["LONGEST_LAT_CACHE.MISS"],
    "l1d_fills": ["L1D.REPLACEMENT", "L1D.REPL"],
    "l1i_misses": ["ICACHE.MISSES", "L1I.MISSES", "ICACHE_64B.IFTAG_MISS"],
    "l1i_hits": ["ICACHE.HIT", "L1I.HITS", "ICACHE_64B.IFTAG_HIT"],
    "l1i_reads": ["L1I.READS"],
    "itlb_stlb_hits": ["ITLB_MISSES.STLB_HIT"],
    "itlb_walks": ["ITLB_MISSES.MISS_CAUSES_A_WALK", "ITLB_MISSES.WALK_COMPLETED"],
    "itlb_walks_small": ["ITLB_MISSES.WALK_COMPLETED_4K"],
    "itlb_walks_large": ["ITLB_MISSES.WALK_COMPLETED_2M_4M", "ITLB_MISSES.LARGE_PAGE_WALK_COMPLETED", "ITLB_MISSES.LARGE_WALK_COMPLETED"],
    "itlb_walks_huge": ["ITLB_MISSES.WALK_COMPLETED_1G"],
    "itlb_stlb_hits_small": ["ITLB_MISSES.STLB_HIT_4K"],
    "itlb_stlb_hits_large": ["ITLB_MISSES.STLB_HIT_2M"],
    "itlb_any_misses": ["ITLB_MISSES.ANY"],
    "itlb_misses": ["ITLB_MISS_RETIRED"],
    # L2_TRANS and L2_TRANSACTIONS count the same accesses by who makes them.
    "l2_data_reads": ["L2_RQSTS.ALL_DEMAND_DATA_RD", "L2_RQSTS.LOADS", "L2_TRANS.DEMAND_DATA_RD", "L2_TRANSACTIONS.LOAD", "L2_DATA_RQSTS.DEMAND.MESI"],
    "l2_data_read_hits": ["L2_RQSTS.DEMAND_DATA_RD_HIT", "L2_RQSTS.LD_HIT"],
    "l2_data_read_misses": ["L2_RQSTS.DEMAND_DATA_RD_MISS", "L2_RQSTS.LD_MISS", "L2_DATA_RQSTS.DEMAND.I_STATE", "OFFCORE_REQUESTS.DEMAND_DATA_RD",
                            "OFFCORE_REQUESTS.DEMAND.READ_DATA"],
    "l2_rfos": ["L2_RQSTS.ALL_RFO", "L2_RQSTS.RFOS", "L2_TRANS.RFO", "L2_TRANSACTIONS.RFO", "L2_STORE_LOCK_RQSTS.ALL", "L2_WRITE.RFO.MESI"],
    "l2_rfo_hits": ["L2_RQSTS.RFO_HIT", "L2_WRITE.RFO.HIT"],
    "l2_rfo_misses": ["L2_RQSTS.RFO_MISS", "L2_STORE_LOCK_RQSTS.MISS", "L2_WRITE.RFO.I_STATE", "OFFCORE_REQUESTS.DEMAND_RFO", "OFFCORE_REQUESTS.DEMAND.RFO",
                      "OFFCORE_REQUESTS.ANY.RFO"],
    "l2_code_reads": ["L2_RQSTS.ALL_CODE_RD", "L2_RQSTS.IFETCHES", "L2_TRANS.CODE_RD", "L2_TRANSACTIONS.IFETCH"],
    "l2_code_read_hits": ["L2_RQSTS.CODE_RD_HIT", "L2_RQSTS.IFETCH_HIT"],
    "l2_code_read_misses": ["L2_RQSTS.CODE_RD_MISS", "L2_RQSTS.IFETCH_MISS", "OFFCORE_REQUESTS.DEMAND_CODE_RD", "OFFCORE_REQUESTS.DEMAND.READ_CODE"],
    "l2_demands": ["L2_RQSTS.ALL_DEMAND_REFERENCES"],
    "l2_demand_misses": ["L2_RQSTS.ALL_DEMAND_MISS"],
    "l2_prefetches": ["L2_RQSTS.ALL_PF", "L2_RQSTS.PREFETCHES", "L2_TRANS.ALL_PF", "L2_TRANSACTIONS.PREFETCH", "L2_DATA_RQSTS.PREFETCH.MESI"],
    "l2_prefetch_hits": ["L2_RQSTS.PF_HIT", "L2_RQSTS.L2_PF_HIT", "L2_RQSTS.PREFETCH_HIT"],
    "l2_prefetch_misses": ["L2_RQSTS.PF_MISS", "L2_RQSTS.L2_PF_MISS", "L2_RQSTS.PREFETCH_MISS", "L2_DATA_RQSTS.PREFETCH.I_STATE"],
    "l2_data_requests": ["L2_DATA_RQSTS.ANY"],
    "l2_references": ["L2_RQSTS.REFERENCES"],
    "l2_misses": ["L2_RQSTS.MISS"],
    "l2_fills": ["L2_LINES_IN.ALL", "L2_LINES_IN.ANY", "L2_TRANS.L2_FILL", "L2_TRANSACTIONS.FILL"],
    "reads_off_core": ["OFFCORE_REQUESTS.ALL_DATA_RD"],
    "any_reads_off_core": ["OFFCORE_REQUESTS.ANY.READ"],
    "l1d_prefetches": ["L1D_PREFETCH.REQUESTS"],
    "l1d_prefetch_misses": ["L1D_PREFETCH.MISS", "HW_PRE_REQ.DL1_MISS"],
    "data_walk_l1d": ["PAGE_WALKER_LOADS.DTLB_L1"],
    "data_walk_l2": ["PAGE_WALKER_LOADS.DTLB_L2"],
    "data_walk_l3": ["PAGE_WALKER_LOADS.DTLB_L3"],
    "data_walk_memory": ["PAGE_WALKER_LOADS.DTLB_MEMORY"],
    "code_walk_l1d": ["PAGE_WALKER_LOADS.ITLB_L1"],
    "code_walk_l2": ["PAGE_WALKER_LOADS.ITLB_L2"],
    "code_walk_l3": ["PAGE_WALKER_LOADS.ITLB_L3"],
    "code_walk_memory": ["PAGE_WALKER_LOADS.ITLB_MEMORY"],
    "nops": ["INST_RETIRED.NOP"],
    "x87_operations": ["INST_RETIRED.X87"],
    "mmx": ["INST_RETIRED.MMX"],
    "sse_packed_single": ["SSEX_UOPS_RETIRED.PACKED_SINGLE"],
    "sse_scalar_single": ["SSEX_UOPS_RETIRED.SCALAR_SINGLE"],
    "sse_packed_double": ["SSEX_UOPS_RETIRED.PACKED_DOUBLE"],
    "sse_scalar_double": ["SSEX_UOPS_RETIRED.SCALAR_DOUBLE"],
    "sse_integer": ["SSEX_UOPS_RETIRED.VECTOR_INTEGER"],
    "prefetches_nta": ["SW_PREFETCH_ACCESS.NTA"],
    "prefetches_t0": ["SW_PREFETCH_ACCESS.T0"],
    "prefetches_t1_t2": ["SW_PREFETCH_ACCESS.T1_T2"],
    "prefetches_w": ["SW_PREFETCH_ACCESS.PREFETCHW"],
    "prefetches": ["SW_PREFETCH_ACCESS.ANY"],
    "loads_met_prefetch": ["LOAD_HIT_PRE.SW_PF"],
    "loads_met_hardware_prefetch": ["LOAD_HIT_PRE.HW_PF"],
    "x87_uops": ["UOPS_EXECUTED.X87"],
    "avx_256": ["AVX_INSTS.ALL"],
    "fp_x87": ["FP_COMP_OPS_EXE.X87"],
    # Each fused or dot product is two, up to Ivy Bridge's dot products, too.
    "fp_scalar_single": ["FP_ARITH_INST_RETIRED.SCALAR_SINGLE", "FP_COMP_OPS_EXE.SSE_SCALAR_SINGLE"],
    "fp_scalar_double": ["FP_ARITH_INST_RETIRED.SCALAR_DOUBLE", "FP_COMP_OPS_EXE.SSE_SCALAR_DOUBLE"],
    "fp_128_single": ["FP_ARITH_INST_RETIRED.128B_PACKED_SINGLE", "FP_COMP_OPS_EXE.SSE_PACKED_SINGLE"],
    "fp_128_double": ["FP_ARITH_INST_RETIRED.128B_PACKED_DOUBLE", "FP_COMP_OPS_EXE.SSE_PACKED_DOUBLE"],
    "fp_256_single": ["FP_ARITH_INST_RETIRED.256B_PACKED_SINGLE", "SIMD_FP_256.PACKED_SINGLE"],
    "fp_256_double": ["FP_ARITH_INST_RETIRED.256B_PACKED_DOUBLE", "SIMD_FP_256.PACKED_DOUBLE"],
    "fp_scalar": ["FP_ARITH_INST_RETIRED.SCALAR", "FP_COMP_OPS_EXE.SSE_FP_SCALAR"],
    "fp_packed": ["FP_ARITH_INST_RETIRED.PACKED", "FP_ARITH_INST_RETIRED.VECTOR", "FP_COMP_OPS_EXE.SSE_FP_PACKED"],
    "fp_4_flops": ["FP_ARITH_INST_RETIRED.4_FLOPS"],
    "fp_single": ["FP_ARITH_INST_RETIRED.SINGLE", "FP_COMP_OPS_EXE.SSE_SINGLE_PRECISION"],
    "fp_double": ["FP_ARITH_INST_RETIRED.DOUBLE", "FP_COMP_OPS_EXE.SSE_DOUBLE_PRECISION"],
    "fp_any": ["FP_COMP_OPS_EXE.SSE_FP"],
    "mmx_operations": ["FP_COMP_OPS_EXE.MMX"],
    "mmx_multiply": ["SIMD_INT_64.PACKED_MPY"],
    "mmx_shift": ["SIMD_INT_64.PACKED_SHIFT"],
    "mmx_pack": ["SIMD_INT_64.PACK"],
    "mmx_unpack": ["SIMD_INT_64.UNPACK"],
    "mmx_logical": ["SIMD_INT_64.PACKED_LOGICAL"],
    "mmx_arithmetic": ["SIMD_INT_64.PACKED_ARITH"],
    "mmx_shuffle": ["SIMD_INT_64.SHUFFLE_MOVE"],
    "sse_integer_operations": ["FP_COMP_OPS_EXE.SSE2_INTEGER"],
    "sse_integer_multiply": ["SIMD_INT_128.PACKED_MPY"],
    "sse_integer_shift": ["SIMD_INT_128.PACKED_SHIFT"],
    "sse_integer_pack": ["SIMD_INT_128.PACK"],
    "sse_integer_unpack": ["SIMD_INT_128.UNPACK"],
    "sse_integer_logical": ["SIMD_INT_128.PACKED_LOGICAL"],
    "sse_integer_arithmetic": ["SIMD_INT_128.PACKED_ARITH"],
    "sse_integer_shuffle": ["SIMD_INT_128.SHUFFLE_MOVE"],
    "macro_fused": ["UOPS_RETIRED.MACRO_FUSED"],
    # What only a model of the pipeline tells.
    **{f"uops_on_port_{n}": [f"UOPS_DISPATCHED_PORT.PORT_{n}", f"UOPS_EXECUTED_PORT.PORT_{n}", f"UOPS_EXECUTED.PORT{n}", f"UOPS_EXECUTED.PORT{n}_CORE"]
       for n in range(8)},
    "slots_not_delivered": ["IDQ_UOPS_NOT_DELIVERED.CORE"],
    "uops_from_dsb": ["IDQ.DSB_UOPS"],
    "uops_from_mite": ["IDQ.MITE_UOPS"],
    # Up to Westmere only the cycles with such micro-operations have a name.
    "uops_from_lsd": ["LSD.UOPS", "LSD.ACTIVE"],
    "microcode_from_dsb": ["IDQ.MS_DSB_UOPS", "IDQ.MS_DSB_CYCLES"],
    "microcode_from_mite": ["IDQ.MS_MITE_UOPS"],
    "microcode": ["IDQ.MS_UOPS"],
    "all_uops_from_dsb": ["IDQ.ALL_DSB_CYCLES_ANY_UOPS"],
    "all_uops_from_mite": ["IDQ.ALL_MITE_CYCLES_ANY_UOPS"],
    # From any path, in spite of its name: its umask is that of all of these. SDM 3B table 19-9.
    "uops_delivered": ["IDQ.MITE_ALL_UOPS"],
    "dsb_to_mite_cycles": ["DSB2MITE_SWITCHES.PENALTY_CYCLES"],
    "prefix_stall_cycles": ["ILD_STALL.LCP"],
    "recovery_cycles": ["INT_MISC.RECOVERY_CYCLES"],
    "resteer_cycles": ["INT_MISC.CLEAR_RESTEER_CYCLES"],
    "resource_stall_cycles": ["RESOURCE_STALLS.ANY"],
    "scheduler_full_cycles": ["RESOURCE_STALLS.RS", "RESOURCE_STALLS.RS_FULL"],
    "reorder_full_cycles": ["RESOURCE_STALLS.ROB", "RESOURCE_STALLS.ROB_FULL"],
    "store_queue_full_cycles": ["RESOURCE_STALLS.SB", "RESOURCE_STALLS.STORE"],
    "scheduler_empty_cycles": ["RS_EVENTS.EMPTY_CYCLES"],
    "scheduler_waits_cycles": ["EXE_ACTIVITY.EXE_BOUND_0_PORTS"],
    "stores_hold_up_cycles": ["EXE_ACTIVITY.BOUND_ON_STORES"],
    # Ivy Bridge's divisions are the beginnings of these cycles under a umask of their own.
    "dividing_cycles": ["ARITH.FPU_DIV_ACTIVE", "ARITH.DIVIDER_ACTIVE", "ARITH.CYCLES_DIV_BUSY", "ARITH.FPU_DIV"],
    "divider_uops": ["ARITH.DIVIDER_UOPS"],
    "blocked_forwards": ["LD_BLOCKS.STORE_FORWARD"],
    "aliased_loads": ["LD_BLOCKS_PARTIAL.ADDRESS_ALIAS", "PARTIAL_ADDRESS_ALIAS"],
    "machine_clear_cycles": ["MACHINE_CLEARS.CYCLES", "MACHINE_CLEARS.COUNT"],
    "self_modifying_code": ["MACHINE_CLEARS.SMC"],
    "l1d_lines_pending": ["L1D_PEND_MISS.PENDING"],
    "fill_buffers_full_cycles": ["L1D_PEND_MISS.FB_FULL", "L1D_PEND_MISS.REQUEST_FB_FULL"],
    "demand_reads_outstanding": ["OFFCORE_REQUESTS_OUTSTANDING.DEMAND_DATA_RD", "OFFCORE_REQUESTS_OUTSTANDING.DEMAND.READ_DATA"],
    "memory_reads_outstanding": ["OFFCORE_REQUESTS_OUTSTANDING.L3_MISS_DEMAND_DATA_RD"],
    "reads_outstanding": ["OFFCORE_REQUESTS_OUTSTANDING.ALL_DATA_RD"],
    "rfos_outstanding": ["OFFCORE_REQUESTS_OUTSTANDING.DEMAND_RFO", "OFFCORE_REQUESTS_OUTSTANDING.DEMAND.RFO"],
    "code_reads_outstanding": ["OFFCORE_REQUESTS_OUTSTANDING.DEMAND_CODE_RD", "OFFCORE_REQUESTS_OUTSTANDING.DEMAND.READ_CODE"],
    # Up to Westmere of loads and stores.
    "load_walk_cycles": ["DTLB_LOAD_MISSES.WALK_CYCLES", "DTLB_LOAD_MISSES.WALK_DURATION", "DTLB_LOAD_MISSES.DEMAND_LD_WALK_DURATION",
                         "DTLB_LOAD_MISSES.WALK_PENDING"],
    "store_walk_cycles": ["DTLB_STORE_MISSES.WALK_DURATION", "DTLB_STORE_MISSES.WALK_PENDING"],
    "data_walk_cycles": ["DTLB_MISSES.WALK_CYCLES"],
    "code_walk_cycles": ["ITLB_MISSES.WALK_CYCLES", "ITLB_MISSES.WALK_DURATION", "ITLB_MISSES.WALK_PENDING"],
    "one_uop_cycles": ["EXE_ACTIVITY.1_PORTS_UTIL"],
    "two_uop_cycles": ["EXE_ACTIVITY.2_PORTS_UTIL"],
    "three_uop_cycles": ["EXE_ACTIVITY.3_PORTS_UTIL"],
    "four_uop_cycles": ["EXE_ACTIVITY.4_PORTS_UTIL"],
    "stall_cycles": ["CYCLE_ACTIVITY.STALLS_TOTAL", "CYCLE_ACTIVITY.CYCLES_NO_EXECUTE", "CYCLE_ACTIVITY.CYCLES_NO_DISPATCH"],
    "load_cycles": ["CYCLE_ACTIVITY.CYCLES_MEM_ANY", "CYCLE_ACTIVITY.CYCLES_LDM_PENDING"],
    "l1d_miss_cycles": ["CYCLE_ACTIVITY.CYCLES_L1D_MISS", "CYCLE_ACTIVITY.CYCLES_L1D_PENDING"],
    "l2_miss_cycles": ["CYCLE_ACTIVITY.CYCLES_L2_MISS", "CYCLE_ACTIVITY.CYCLES_L2_PENDING"],
    "l3_miss_cycles": ["CYCLE_ACTIVITY.CYCLES_L3_MISS"],
    "load_stall_cycles": ["CYCLE_ACTIVITY.STALLS_MEM_ANY", "CYCLE_ACTIVITY.STALLS_LDM_PENDING"],
    "l1d_miss_stall_cycles": ["CYCLE_ACTIVITY.STALLS_L1D_MISS", "CYCLE_ACTIVITY.STALLS_L1D_PENDING"],
    "l2_miss_stall_cycles": ["CYCLE_ACTIVITY.STALLS_L2_MISS", "CYCLE_ACTIVITY.STALLS_L2_PENDING"],
    "l3_miss_stall_cycles": ["CYCLE_ACTIVITY.STALLS_L3_MISS"],
    "never": ["MEM_UNCORE_RETIRED.REMOTE_CACHE_LOCAL_HOME_HIT", "MEM_UNCORE_RETIRED.REMOTE_DRAM", "MEM_UNCORE_RETIRED.REMOTE_HITM"],
    "load_latency": ["MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", "MEM_INST_RETIRED.LATENCY_ABOVE_THRESHOLD_0"],
    "frontend": ["FRONTEND_RETIRED.DSB_MISS"],
}

# Families that count what cannot happen: no model reports TSX or AVX-512, and each has one package.
NEVER = ("FP_ARITH_INST_RETIRED.512B_", "HLE_RETIRED.", "RTM_RETIRED.", "TX_MEM.", "MEM_LOAD_UOPS_LLC_MISS_RETIRED.REMOTE_", "MEM_LOAD_UOPS_L3_MISS_RETIRED.REMOTE_",
         "MEM_LOAD_L3_MISS_RETIRED.REMOTE_")

# Names that count something else on some generations. By the generations' names, which may end in "*".
COUNTS_BY_GENERATION = {
    "broadwell*": [("MEM_LOAD_UOPS_RETIRED.L3_HIT", "l3_hit_unshared")],  # without a snoop, as on Sandy Bridge
}

# The architectural events (SDM 3B table 18-1); a list that lacks one gets a row.
ARCHITECTURAL = {
    (0x3C, 0x00): "UNHALTED_CORE_CYCLES", (0xC0, 0x00): "INSTRUCTIONS_RETIRED", (0x3C, 0x01): "UNHALTED_REFERENCE_CYCLES",
    (0x2E, 0x4F): "LLC_REFERENCES", (0x2E, 0x41): "LLC_MISSES", (0xC4, 0x00): "BRANCH_INSTRUCTIONS_RETIRED",
    (0xC5, 0x00): "BRANCH_MISSES_RETIRED",
}

# Rows that Intel's lists call not precise, and libpfm4's tables or Linux call precise: those may be precise here, as a record that nobody
# expects harms less than one that never comes. Precise cycles is INST_RETIRED.ANY_P with INV=1 and CMASK=16 (rule P18); `perf record -e
# branches:pp` takes C4H/00H. By the generations' names, which may end in "*".
DISPUTED = {
    "*": {(0xC0, 0x00), (0xC4, 0x00), (0xC4, 0x10), (0xC4, 0x40), (0xC5, 0x00)},
    "sandy_bridge_ep": {(0xD1, 0x04), (0xD1, 0x20), (0xD2, 0x01), (0xD2, 0x02), (0xD2, 0x04), (0xD2, 0x08), (0xD3, 0x01), (0xD3, 0x04)},
    "ivy_bridge": {(0xD3, 0x01)},
    "ivy_bridge_ep": {(0xD3, 0x03), (0xD3, 0x0C), (0xD3, 0x10), (0xD3, 0x20)},
    "haswell*": {(0xC0, 0x02)},
    "skylake*": {(0xC2, 0x02)},
}
PEBS = ["no", "yes", "only", "disputed"]
NO, DISPUTED_PEBS = 0, 3

# Events that Intel's list of a generation leaves out, and libpfm4 has, where another generation's list has them and a source can count them:
# name, code, umask, the row that it is like, and whether it is precise.
ALSO_THERE = {
    "sandy_bridge_ep": [("MEM_LOAD_UOPS_MISC_RETIRED.LLC_MISS", 0xD4, 0x02, "MEM_LOAD_UOPS_RETIRED.LLC_MISS", DISPUTED_PEBS)],
    "nehalem*": [("L1D_CACHE_ST.MESI", 0x41, 0x0F, "L1D_CACHE_ST.M_STATE", NO)],
    "skylake": [("BR_MISP_RETIRED.RET", 0xC5, 0x08, "BR_MISP_RETIRED.NEAR_CALL", DISPUTED_PEBS),
                ("MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM", 0xD3, 0x01, "MEM_LOAD_RETIRED.L3_MISS", DISPUTED_PEBS)],
    "skylake*": [("UOPS_RETIRED.ALL", 0xC2, 0x01, "UOPS_RETIRED.RETIRE_SLOTS", DISPUTED_PEBS)],
}

# Event lists that have data addresses leave out one that the manual names. SDM 3B tables 18-46 and 18-57.
ALSO_WITH_ADDRESS = ["UOPS_RETIRED.ALL"]


def number(text):
    """The number in a cell, or the first of a pair of alternatives."""
    return int(text.split(";")[0], 0)


def counter_mask(text):
    """Bit i for PMCi, bit 8+n for fixed counter n."""
    return sum(1 << (8 + int(c[5:]) if c.startswith("fixed") else int(c)) for c in text.split(";"))


def parse(row):
    """One list line as a row without its `counts`."""
    event = {key: number(row[key]) for key in
             ("umask", "cmask", "inv", "edge", "any", "pebs", "data_la", "l1_hit_indication", "msr_index", "msr_value")}
    event["name"] = row["name"]
    event["code"] = number(row["event_code"])
    event["sample_after"] = number(row["sample_after_value"])
    event["counters"] = counter_mask(row["counters_ht_off"])
    return event


def of_generation(table, generation):
    """The entries of a table that mean this generation."""
    return [entry for pattern, entries in table.items() if fnmatch.fnmatchcase(generation, pattern) for entry in entries]


def also_there(events, generation):
    """Rows for the events that the list leaves out."""
    by_name = {event["name"]: event for event in events}
    return [{**by_name[like], "name": name, "code": code, "umask": umask, "pebs": pebs}
            for name, code, umask, like, pebs in of_generation(ALSO_THERE, generation)]


def select(event):
    """What PERFEVTSEL[15:0] holds; for a fixed counter's row, whose code is a placeholder, the counter."""
    return (0, event["counters"]) if event["code"] == 0 else (event["code"], event["umask"])


def key(event):
    """The order of the table."""
    return tuple(event[k] for k in ("code", "umask", "cmask", "inv", "edge", "any", "msr_value", "name"))


def second_offcore_code(lines, generation):
    """One row for the second code of an off-core pair, which all but Nehalem have; the values of its MSR are those of the first."""
    pairs = [line for line in lines if line["event_code"].startswith("0xB7")]
    if not pairs or generation.startswith("nehalem"):
        return []
    return [parse({**pairs[0], "name": "OFFCORE_RESPONSE_1", "event_code": "0xBB", "msr_index": "0", "msr_value": "0"})]


def missing_architectural(events):
    """Rows for the architectural events that the list does not have."""
    present = {select(event) for event in events}
    pattern = next(event for event in events if event["name"] == "CPU_CLK_UNHALTED.THREAD_P")
    return [{**pattern, "name": name, "code": code, "umask": umask}
            for (code, umask), name in ARCHITECTURAL.items() if (code, umask) not in present]


def counts_by_select(events, generation):
    """What each (code, umask) counts; refuses a table in which two rows disagree."""
    by_name = {name: counts for counts, names in COUNTS.items() for name in names}
    by_name.update(of_generation(COUNTS_BY_GENERATION, generation))
    result = {}
    for event in events:
        counts = "never" if event["name"].startswith(NEVER) else by_name.get(event["name"])
        if counts and result.setdefault(select(event), counts) != counts:
            sys.exit(f"make_events: {event['name']} is {counts}, another row of its code and umask is {result[select(event)]}")
    result[(0xB7, 0x01)], result[(0xBB, 0x01)] = "offcore", "offcore_1"
    return result


def format_row(event, counts):
    """One row of the C++ table."""
    flags = {k: "true" if event[k] else "false" for k in ("inv", "edge", "any", "data_la", "l1_hit_indication")}
    return (f'  {{"{event["name"]}", 0x{event["code"]:02X}, 0x{event["umask"]:02X}, {event["cmask"]}, {flags["inv"]}, {flags["edge"]}, '
            f'{flags["any"]}, 0x{event["counters"]:X}, PebsAbility::{PEBS[event["pebs"]]}, {flags["data_la"]}, '
            f'{flags["l1_hit_indication"]}, 0x{event["msr_index"]:X}, 0x{event["msr_value"]:X}, {event["sample_after"]}, '
            f'Counts::{counts}}},')


def table(path):
    """The C++ table of one list."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    events = [parse(line) for line in lines] + second_offcore_code(lines, path.stem)
    events += missing_architectural(events)
    names = [event["name"] for event in events]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        sys.exit(f"make_events: {path}: repeated names: {', '.join(sorted(repeated))}")
    events += also_there(events, path.stem)
    if any(event["data_la"] for event in events):
        for event in events:
            event["data_la"] |= event["name"] in ALSO_WITH_ADDRESS
    events.sort(key=key)
    disputed = set(of_generation(DISPUTED, path.stem))
    for event in events:
        if event["pebs"] == NO and select(event) in disputed:
            event["pebs"] = DISPUTED_PEBS
    counts = counts_by_select(events, path.stem)
    rows = [format_row(event, counts.get(select(event), "unmodelled")) for event in events]
    return HEADER.format(count=len(rows), generation=path.stem, rows="\n".join(rows))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[2]).write_text(table(pathlib.Path(sys.argv[1])), encoding="ascii")


if __name__ == "__main__":
    main()
