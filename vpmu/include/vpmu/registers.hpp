#pragma once
#include "vpmu/bits.hpp"

/// Field layouts of the PMU, DS and LBR registers, one namespace each, in the manual's names. SDM volume 3.
namespace vpmu::reg {

/// IA32_PERFEVTSELx. SDM 3B figures 18-6 and 18-40.
namespace perfevtsel {
using EVENT = Bits<7, 0>;
using UMASK = Bits<15, 8>;
using USR = Bits<16>;
using OS = Bits<17>;
using E = Bits<18>;
using PC = Bits<19>;
using INT = Bits<20>;
using ANY = Bits<21>;
using EN = Bits<22>;
using INV = Bits<23>;
using CMASK = Bits<31, 24>;
using IN_TX = Bits<32>;
using IN_TXCP = Bits<33>;
}  // namespace perfevtsel

/// One counter's four bits of IA32_FIXED_CTR_CTRL. SDM 3B figure 18-7.
namespace fixed_ctr_ctrl {
/// Distance between the fields of neighbouring counters.
inline constexpr unsigned bits_per_counter = 4;
using EN_OS = Bits<0>;
using EN_USR = Bits<1>;
using ANY = Bits<2>;
using PMI = Bits<3>;
}  // namespace fixed_ctr_ctrl

/// IA32_PERF_GLOBAL_STATUS, and the bits of GLOBAL_OVF_CTRL (GLOBAL_STATUS_RESET) and GLOBAL_STATUS_SET. SDM 3B figure
/// 18-11, 18-41.
namespace global_status {
using OVF_PMC = Bits<7, 0>;
using OVF_FIXED = Bits<34, 32>;
using Trace_ToPA_PMI = Bits<55>;
using LBR_FRZ = Bits<58>;
using CTR_FRZ = Bits<59>;
using ASCI = Bits<60>;
using OVF_UNCORE = Bits<61>;
using OVF_DSBuffer = Bits<62>;
using CondChgd = Bits<63>;
/// Bit position of the first fixed counter.
inline constexpr unsigned fixed_shift = 32;
}  // namespace global_status

/// IA32_PERF_GLOBAL_INUSE. SDM 3B 18.2.4.3.
namespace global_inuse {
using PMI = Bits<63>;
}

/// IA32_DEBUGCTL. SDM 3B figures 17-3 and 17-11, table 35-2.
namespace debugctl {
using LBR = Bits<0>;
using BTF = Bits<1>;
using TR = Bits<6>;
using BTS = Bits<7>;
using BTINT = Bits<8>;
using BTS_OFF_OS = Bits<9>;
using BTS_OFF_USR = Bits<10>;
using FREEZE_LBRS_ON_PMI = Bits<11>;
using FREEZE_PERFMON_ON_PMI = Bits<12>;
using ENABLE_UNCORE_PMI = Bits<13>;
using FREEZE_WHILE_SMM = Bits<14>;
using RTM_DEBUG = Bits<15>;
}  // namespace debugctl

/// IA32_PEBS_ENABLE. SDM 3B figures 18-21 and 18-35.
namespace pebs_enable {
using PEBS_EN = Bits<3, 0>;
using LL_EN = Bits<35, 32>;
using PS_EN = Bits<63>;
/// Bit position of LL_EN for PMC0.
inline constexpr unsigned ll_shift = 32;
}  // namespace pebs_enable

/// IA32_PERF_CAPABILITIES. SDM 3B 18.18.
namespace perf_capabilities {
using LBR_FMT = Bits<5, 0>;
using PEBSTrap = Bits<6>;
using PEBSSaveArchRegs = Bits<7>;
using PEBS_FMT = Bits<11, 8>;
using SMM_FREEZE = Bits<12>;
using FW_WRITE = Bits<13>;
}  // namespace perf_capabilities

/// IA32_MISC_ENABLE. SDM 3C table 35-2.
namespace misc_enable {
using FAST_STRING = Bits<0>;
using PERFMON_AVAILABLE = Bits<7>;
using BTS_UNAVAILABLE = Bits<11>;
using PEBS_UNAVAILABLE = Bits<12>;
using MWAIT = Bits<18>;
/// What a guest may change; the other bits ignore writes.
inline constexpr std::uint64_t writable = 0x44'00C5'0009;
}  // namespace misc_enable

/// MSR_MISC_FEATURE_CONTROL: 1 turns a hardware prefetcher off. Intel, "Disclosure of Hardware Prefetcher Control on
/// Some Intel Processors" (2014), Nehalem to Broadwell; Skylake is taken to be as these. The other bits are reserved.
namespace misc_feature_control {
using L2_STREAMER = Bits<0>;
using L2_ADJACENT_LINE = Bits<1>;
using DCU_NEXT_LINE = Bits<2>;
using DCU_IP = Bits<3>;
inline constexpr std::uint64_t writable = 0xF;
}  // namespace misc_feature_control

/// MSR_PEBS_LD_LAT_THRESHOLD. SDM 3B figure 18-23.
namespace pebs_ld_lat {
using THRESHOLD = Bits<15, 0>;
}

/// MSR_PEBS_FRONTEND. SDM 3B table 18-59.
namespace pebs_frontend {
using EVTSEL_LOW = Bits<2, 0>;
using EVTSEL_HIGH = Bits<4>;
using IDQ_Bubble_Length = Bits<19, 8>;
using IDQ_Bubble_Width = Bits<22, 20>;
}  // namespace pebs_frontend

/// MSR_LBR_SELECT: 1 = do not capture. SDM 3B tables 17-11 to 17-13.
namespace lbr_select {
using CPL_EQ_0 = Bits<0>;
using CPL_NEQ_0 = Bits<1>;
using JCC = Bits<2>;
using NEAR_REL_CALL = Bits<3>;
using NEAR_IND_CALL = Bits<4>;
using NEAR_RET = Bits<5>;
using NEAR_IND_JMP = Bits<6>;
using NEAR_REL_JMP = Bits<7>;
using FAR_BRANCH = Bits<8>;
using EN_CALLSTACK = Bits<9>;
}  // namespace lbr_select

/// MSR_LBR_INFO_i. SDM 3B table 17-16.
namespace lbr_info {
using CYCLES = Bits<15, 0>;
using TSX_ABORT = Bits<61>;
using IN_TSX = Bits<62>;
using MISPRED = Bits<63>;
}  // namespace lbr_info

/// The data source field of a load latency record (A0H). SDM 3B table 18-24, 18-33.
namespace data_source {
using CODE = Bits<3, 0>;
using STLB_MISS = Bits<4>;
using LOCK = Bits<5>;
/// For a store event with data address profiling: the store hit the L1D. SDM 3B table 18-46.
using DCU_HIT = Bits<0>;
}  // namespace data_source

}  // namespace vpmu::reg
