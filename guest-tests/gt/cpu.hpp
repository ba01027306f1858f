#pragma once
#include <cstdint>

#include "gt/pmu.hpp"
#include "vpmu/pebs.hpp"

/// What the manual says about the processor that this runs on, put together here row by row; the virtual PMU has its
/// own tables.
namespace gt::cpu {

/// By CPUID.01H display family and model. SDM 3C table 35-1.
enum class Microarchitecture : std::uint8_t {
  nehalem,
  westmere,
  sandy_bridge,
  ivy_bridge,
  haswell,
  broadwell,
  skylake
};

/// An event that the processor does not have.
inline constexpr pmu::Event no_event{0x00, 0x00};
constexpr bool exists(pmu::Event event) { return event.code != 0; }

struct Facts {
  Microarchitecture microarchitecture;
  unsigned version;                 ///< CPUID.0AH:EAX[7:0].
  std::uint64_t perf_capabilities;  ///< IA32_PERF_CAPABILITIES. SDM 3B 18.18.
  bool precise_store;               ///< SDM 3B 18.9.4.3.
  bool data_la;                     ///< Data address profiling. SDM 3B 18.11.3.
  bool pdir;                        ///< SDM 3B 18.9.4.4.
  bool data_source_tlb;             ///< A0H has bits 4 and 5. SDM 3B table 18-33.
  unsigned lbr_depth;
  std::uint64_t lbr_select;       ///< Bits of MSR_LBR_SELECT. SDM 3B tables 17-11 to 17-13.
  unsigned offcore_registers;     ///< MSR_OFFCORE_RSP_0, or that and _1.
  std::uint64_t offcore_bits;     ///< Their bits. SDM 3B tables 18-26, 18-38, 18-47.
  unsigned load_latency_counter;  ///< A PMC that load latency works on. SDM 3B 18.8.1.2, 18.9.4.2.
  std::uint64_t memory_source;    ///< Data source of a load from local memory, cached nowhere else. SDM 3B table 18-24.
  pmu::Event loads, stores, load_latency, near_returns, taken_branches, conditional_mispredicts, precise_mispredicts;
  pmu::Event precise_cycles;  ///< Rule P18.
  pmu::Event l1_hit, fill_buffer_hit, l2_hit, l3_hit, l1_miss, l2_miss, l3_miss, stlb_miss_loads;
};

/// The display model of family 6. SDM 2A CPUID.
unsigned model();

/// The facts of this processor; ends the test as failed on one that the tests do not know.
const Facts& facts();

/// From IA32_PERF_CAPABILITIES and CPUID.0AH. The MSR is read only once: an access between two records would shift
/// where an estimating source takes the second.
std::uint64_t perf_capabilities();
vpmu::PebsFormat pebs_format();
bool has_full_width_writes();
bool has_streamlined_freeze();
bool has_eventing_ip();
bool has_record_tsc();
/// A full PEBS buffer sets OVF_DSBuffer. SDM 3B 18.9.1; 18.8.1.1 says that it does not.
bool signals_full_buffer();

}  // namespace gt::cpu
