#include "pmu/power_msrs.hpp"

#include <algorithm>
#include <array>

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::Generation;
using vpmu::MsrStatus;

bool is_server(Generation g) {
  return g == Generation::nehalem_ex || g == Generation::westmere_ep || g == Generation::westmere_ex ||
         g == Generation::sandy_bridge_ep || g == Generation::ivy_bridge_ep || g == Generation::haswell_ep ||
         g == Generation::broadwell_de || g == Generation::broadwell_ep || g == Generation::skylake_sp;
}
bool any(Generation) { return true; }
bool since_sandy_bridge(Generation g) { return g >= Generation::sandy_bridge; }
bool since_ivy_bridge(Generation g) { return g >= Generation::ivy_bridge; }
bool clients_since_sandy_bridge(Generation g) { return g >= Generation::sandy_bridge && !is_server(g); }
bool clients_since_haswell(Generation g) { return g >= Generation::haswell && !is_server(g); }
bool with_core_energy(Generation g) {
  return g >= Generation::sandy_bridge && (!is_server(g) || g < Generation::haswell);
}
bool with_memory_energy(Generation g) {
  return g >= Generation::sandy_bridge && (is_server(g) || g >= Generation::haswell);
}
bool skylake_clients(Generation g) { return g == Generation::skylake; }

/// 2^-n joules are a unit of energy. SDM 3B 14.9.1; memory of servers since Haswell has one of its own.
unsigned energy_unit(Generation g) { return g >= Generation::haswell ? 14 : 16; }
unsigned memory_unit(Generation g) { return is_server(g) ? 16 : energy_unit(g); }

std::uint64_t energy(PowerDomain domain, const PowerState& now, unsigned unit) {
  if (now.tsc_khz == 0) return 0;
  __extension__ using wide = unsigned __int128;
  // mW / kHz are microjoules for a tick.
  const wide microjoules = wide{now.tsc} * power_of(domain) / now.tsc_khz;
  return static_cast<std::uint64_t>((microjoules << unit) / 1'000'000) & vpmu::low_bits(32);
}

std::uint64_t ratio_of(Generation g, std::uint64_t khz) {
  const vpmu::Frequency base = vpmu::describe(g).base_clock;
  return std::min<std::uint64_t>((khz * base.of + base.khz / 2) / base.khz, 0xFF);
}
/// The nominal ratio, MSR_PLATFORM_INFO[15:8].
std::uint64_t ratio(Generation g, const PowerState& now) { return ratio_of(g, now.tsc_khz); }
/// That at which the cores run.
std::uint64_t core_ratio(Generation g, const PowerState& now) {
  return ratio_of(g, now.core_khz == 0 ? now.tsc_khz : now.core_khz);
}

struct PowerMsrRow {
  std::uint32_t first, count;
  bool (*has)(Generation);
  std::uint64_t (*value)(Generation, const PowerState&);
  bool writable{};
};
std::uint64_t zero(Generation, const PowerState&) { return 0; }

constexpr std::array power_msr_rows{
    PowerMsrRow{0x34, 1, any, zero},  // MSR_SMI_COUNT
    PowerMsrRow{0xE2, 1, any, [](Generation, const PowerState&) { return vpmu::bit(15); },
                true},  // PKG_CST_CONFIG_CONTROL: locked
    PowerMsrRow{0x198, 1, any,
                [](Generation g, const PowerState& s) { return core_ratio(g, s) << 8U; }},  // IA32_PERF_STATUS
    PowerMsrRow{0x1A2, 1, any,
                [](Generation, const PowerState&) -> std::uint64_t { return 100U << 16U; }},  // TEMPERATURE_TARGET
    PowerMsrRow{0x1AA, 1, any, zero, true},                                                   // MSR_MISC_PWR_MGMT
    PowerMsrRow{0x1AD, 1, any,
                [](Generation g, const PowerState& s) {
                  return std::max(ratio(g, s), core_ratio(g, s)) * 0x0101'0101U;
                }},                                   // TURBO_RATIO_LIMIT
    PowerMsrRow{0x3F8, 3, any, zero},                 // MSR_PKG_C3, C6, C7_RESIDENCY
    PowerMsrRow{0x3FC, 2, any, zero},                 // MSR_CORE_C3, C6_RESIDENCY
    PowerMsrRow{0x3FE, 1, since_sandy_bridge, zero},  // MSR_CORE_C7_RESIDENCY
    PowerMsrRow{0x606, 1, since_sandy_bridge,
                [](Generation g, const PowerState&) -> std::uint64_t { return 0xA'0003U | energy_unit(g) << 8U; }},
    PowerMsrRow{0x60D, 1, since_sandy_bridge, zero},        // MSR_PKG_C2_RESIDENCY
    PowerMsrRow{0x610, 1, since_sandy_bridge, zero, true},  // MSR_PKG_POWER_LIMIT: none
    PowerMsrRow{0x611, 1, since_sandy_bridge,
                [](Generation g, const PowerState& s) { return energy(PowerDomain::package, s, energy_unit(g)); }},
    PowerMsrRow{0x613, 2, since_sandy_bridge, zero},        // MSR_PKG_PERF_STATUS, MSR_PKG_POWER_INFO: not told
    PowerMsrRow{0x618, 1, with_memory_energy, zero, true},  // MSR_DRAM_POWER_LIMIT
    PowerMsrRow{0x619, 1, with_memory_energy,
                [](Generation g, const PowerState& s) { return energy(PowerDomain::memory, s, memory_unit(g)); }},
    PowerMsrRow{0x61B, 2, with_memory_energy, zero},      // MSR_DRAM_PERF_STATUS, MSR_DRAM_POWER_INFO
    PowerMsrRow{0x630, 3, clients_since_haswell, zero},   // MSR_PKG_C8, C9, C10_RESIDENCY
    PowerMsrRow{0x638, 1, with_core_energy, zero, true},  // MSR_PP0_POWER_LIMIT
    PowerMsrRow{0x639, 1, with_core_energy,
                [](Generation g, const PowerState& s) { return energy(PowerDomain::cores, s, energy_unit(g)); }},
    PowerMsrRow{0x63A, 1, with_core_energy, zero, true},            // MSR_PP0_POLICY
    PowerMsrRow{0x640, 1, clients_since_sandy_bridge, zero, true},  // MSR_PP1_POWER_LIMIT
    PowerMsrRow{0x641, 1, clients_since_sandy_bridge,
                [](Generation g, const PowerState& s) { return energy(PowerDomain::graphics, s, energy_unit(g)); }},
    PowerMsrRow{0x642, 1, clients_since_sandy_bridge, zero, true},  // MSR_PP1_POLICY
    PowerMsrRow{0x648, 1, since_ivy_bridge, ratio},                 // MSR_CONFIG_TDP_NOMINAL
    PowerMsrRow{0x649, 2, since_ivy_bridge, zero},                  // MSR_CONFIG_TDP_LEVEL1, 2: there are none
    PowerMsrRow{0x64B, 2, since_ivy_bridge, zero, true},  // MSR_CONFIG_TDP_CONTROL, MSR_TURBO_ACTIVATION_RATIO
    PowerMsrRow{0x64D, 1, skylake_clients,
                [](Generation g, const PowerState& s) { return energy(PowerDomain::platform, s, energy_unit(g)); }},
    // MSR_WEIGHTED_CORE_C0_RES, MSR_ANY_CORE_C0_RES: as the other states have 0. SDM 3C table 35-38.
    PowerMsrRow{0x658, 2, skylake_clients, [](Generation, const PowerState& s) { return s.tsc; }},
    PowerMsrRow{0x65A, 2, skylake_clients, zero},  // MSR_ANY_GFXE_C0_RES, MSR_CORE_GFXE_OVERLAP_C0_RES
};

const PowerMsrRow* find(Generation generation, std::uint32_t index) {
  const auto* const row = std::ranges::find_if(
      power_msr_rows, [&](const PowerMsrRow& r) { return index - r.first < r.count && r.has(generation); });
  return row == power_msr_rows.end() ? nullptr : row;
}

}  // namespace

vpmu::MsrReadResult read_power_msr(Generation generation, std::uint32_t index, const PowerState& now) {
  const PowerMsrRow* const row = find(generation, index);
  if (row == nullptr) return {};
  return {.status = MsrStatus::ok, .value = row->value(generation, now)};
}

vpmu::MsrStatus write_power_msr(Generation generation, std::uint32_t index) {
  const PowerMsrRow* const row = find(generation, index);
  if (row == nullptr) return MsrStatus::unknown;
  return row->writable ? MsrStatus::ok : MsrStatus::gp;
}

}  // namespace vmm
