#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "vpmu/event.hpp"
#include "vpmu/offcore.hpp"
#include "vpmu/retirement.hpp"

namespace vpmu {

struct UncoreDesc;

/// The CPU models whose PMU can be given to a guest. One enumerator per description in src/generations/.
enum class Generation : std::uint8_t {
  nehalem,
  nehalem_ex,
  westmere,
  westmere_ep,
  westmere_ex,
  sandy_bridge,
  sandy_bridge_ep,
  ivy_bridge,
  ivy_bridge_ep,
  haswell,
  haswell_ep,
  broadwell,
  broadwell_de,
  broadwell_ep,
  skylake,
  skylake_sp,
};

/// How many there are, in the order of their enumerators.
inline constexpr std::size_t generation_count = static_cast<std::size_t>(Generation::skylake_sp) + 1;

/// What happens to the counters and the LBR when a PMI is asked for and DEBUGCTL says freeze. SDM 3B 17.4.7.
enum class FreezeKind : std::uint8_t {
  legacy,       ///< Versions 2 and 3: GLOBAL_CTRL is written to 0, DEBUGCTL.LBR is cleared (rules Z2, Z3).
  streamlined,  ///< Version 4: GLOBAL_STATUS.CTR_FRZ and LBR_FRZ are set (rule Z4).
};

/// How the LBR MSRs are laid out: IA32_PERF_CAPABILITIES[5:0]. SDM 3B 17.4.8.1.
enum class LbrFormat : std::uint8_t {
  eip_flags = 3,      ///< FROM[63] = mispredicted.
  eip_flags_tsx = 4,  ///< FROM[63:61] = mispredicted, IN_TSX, TSX_ABORT.
  eip_with_info = 5,  ///< Flags and cycles are in MSR_LBR_INFO_i.
};

/// The parts of a generation's PMU that exist or not. Each names what the manual or an erratum calls it.
struct GenerationFeatures {
  bool full_width_write;      ///< IA32_A_PMCi, PERF_CAPABILITIES[13]. SDM 3B 18.2.5.
  bool eventing_ip;           ///< PEBS record has EVENTING_IP. SDM 3B 18.11.3.1.
  bool load_latency;          ///< PEBS_ENABLE[35:32], MSR_PEBS_LD_LAT_THRESHOLD. SDM 3B 18.8.1.2.
  bool precise_store;         ///< PEBS_ENABLE[63]. SDM 3B 18.9.4.3.
  bool data_la;               ///< Data address profiling. SDM 3B 18.11.3.
  bool pdir;                  ///< INST_RETIRED.PREC_DIST on PMC1. SDM 3B 18.9.4.4.
  bool frontend;              ///< MSR_PEBS_FRONTEND. SDM 3B 18.13.1.4.
  bool global_status_set;     ///< STATUS_SET and INUSE at 391H/392H. SDM 3B 18.2.4.
  bool lbr_callstack;         ///< LBR_SELECT[9]. SDM 3B 17.9.
  bool data_source_tlb_lock;  ///< Data source bits 4 (STLB miss) and 5 (lock). SDM 3B table 18-33.
  bool lbr_info;              ///< MSR_LBR_INFO_i. SDM 3B 17.10.
  bool signals_full_buffer;   ///< A full PEBS buffer sets OVF_DSBuffer (rule F2). SDM 3B 18.9.1.
  bool qualifying_umasks;     ///< Of 88H, 89H and D0H: bits of the umask qualify others. SDM 3B table 19-13.
};

/// The rate of a clock: `khz` / `of` kHz, because 133.33 MHz is no whole number.
struct Frequency {
  std::uint32_t khz{};  ///< 0: there is no such clock.
  std::uint32_t of{1};  ///< Not 0.
  friend bool operator==(const Frequency&, const Frequency&) = default;
};

/// Everything that tells one generation's core PMU from another, as data. See src/generations/.
struct GenerationDesc {
  Generation generation;
  std::string_view name;            ///< As users type it: "skylake".
  std::uint8_t perfmon_version;     ///< CPUID.0AH:EAX[7:0].
  std::uint8_t unavailable_events;  ///< CPUID.0AH:EBX.
  std::uint8_t gp_counters;         ///< Per logical processor with SMT on.
  std::uint8_t gp_counters_no_smt;  ///< With SMT off.
  std::uint8_t fixed_counters;
  std::uint8_t counter_width;  ///< Bits, GP and fixed.
  std::uint8_t pebs_format;    ///< PERF_CAPABILITIES[11:8].
  std::uint8_t pebs_counters;  ///< PMC0 .. PMCn-1 can arm PEBS (rule O5).
  LbrFormat lbr_format;
  std::uint8_t lbr_depth;  ///< Entries.
  FreezeKind freeze;
  GenerationFeatures features;
  std::uint8_t offcore_rsp_msrs;                         ///< 1 (1A6H) or 2 (1A6H, 1A7H).
  std::uint64_t offcore_rsp_mask;                        ///< Bits that may be set.
  OffcoreLayout offcore;                                 ///< What they select.
  std::uint64_t frontend_mask;                           ///< Bits of MSR_PEBS_FRONTEND that may be set; 0 without it.
  std::uint64_t lbr_select_mask;                         ///< Bits of MSR_LBR_SELECT that may be set.
  std::uint64_t misc_enable_reset;                       ///< IA32_MISC_ENABLE at reset, with BTS and PEBS available.
  std::uint8_t load_latency_code, load_latency_umask;    ///< The load latency event (rule L1).
  std::uint8_t precise_store_code, precise_store_umask;  ///< The precise store event (rule S1); 0 without it.
  std::uint8_t load_latency_counters;                    ///< Bit i: the event may run on PMCi.
  Frequency bus_clock;   ///< The clock that bus_cycles counts; from Skylake on the core crystal clock. SDM 3B 18.17.4.
  Frequency base_clock;  ///< The clock of which MSR_PLATFORM_INFO[15:8] is a multiple. SDM 3C table 35-13.
  std::array<std::uint8_t, hit_level_count> data_source_code;  ///< A0H[3:0] by HitLevel. SDM 3B table 18-24.
  const UncoreDesc* uncore;                                    ///< The PMU beside the cores: uncore.hpp.
  std::span<const EventDesc> events;  ///< Sorted by (code, umask, cmask, inv, edge, any, msr_value).
};

/// The description of one generation; never fails, costs nothing.
const GenerationDesc& describe(Generation generation);

/// All descriptions, oldest first.
std::span<const GenerationDesc* const> all_generations();

/// Finds a generation by the name users type; empty when there is none.
std::optional<Generation> find_generation(std::string_view name);

}  // namespace vpmu
