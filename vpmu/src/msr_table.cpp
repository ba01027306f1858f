#include "msr_table.hpp"

#include <algorithm>
#include <array>

#include "vpmu/registers.hpp"
#include "vpmu/uncore.hpp"

namespace vpmu {
namespace {

using Desc = GenerationDesc;
namespace st = reg::global_status;

// Existence, by generation.
bool always(const Desc&) { return true; }
bool has_full_width(const Desc& d) { return d.features.full_width_write; }
bool has_status_set(const Desc& d) { return d.features.global_status_set; }
bool has_load_latency(const Desc& d) { return d.features.load_latency; }
bool has_frontend(const Desc& d) { return d.features.frontend; }
bool has_lbr_info(const Desc& d) { return d.features.lbr_info; }

// How many of a row's addresses exist.
unsigned one(const Pmu&) { return 1; }
unsigned gp_count(const Pmu& p) { return p.gp_counters(); }
unsigned fixed_count(const Pmu& p) { return p.generation().fixed_counters; }
unsigned offcore_count(const Pmu& p) { return p.generation().offcore_rsp_msrs; }
unsigned lbr_depth(const Pmu& p) { return p.generation().lbr_depth; }
unsigned lbr_control(const Pmu& p) { return lbr_depth(p) != 0 ? 1 : 0; }
unsigned full_width_count(const Pmu& p) {
  return reg::perf_capabilities::FW_WRITE::test(p.perf_capabilities()) ? gp_count(p) : 0;
}
// SDM 3B 18.2.2 and 18.2.4: since versions 2 and 4.
unsigned global_one(const Pmu& p) { return MsrTable::has_global_registers(p) ? 1 : 0; }
unsigned status_set_one(const Pmu& p) { return p.generation().perfmon_version >= 4 ? 1 : 0; }

// Bits that may be set.
std::uint64_t any_bit(const Pmu&) { return ~0ULL; }
std::uint64_t counter_bits(const Pmu& p) { return low_bits(p.generation().counter_width); }
// SDM 3B 18.11.5: IN_TX and IN_TXCP are reserved without HLE and RTM, and neither is reported (rule T5).
// SDM 3B 18.2.3: AnyThread since version 3.
bool has_any_thread(const Pmu& p) { return p.generation().perfmon_version >= 3; }
std::uint64_t perfevtsel_bits(const Pmu& p) {
  return low_bits(32) & ~(has_any_thread(p) ? 0 : reg::perfevtsel::ANY::mask);
}
std::uint64_t offcore_bits(const Pmu& p) { return p.generation().offcore_rsp_mask; }
std::uint64_t prefetcher_bits(const Pmu&) { return reg::misc_feature_control::writable; }
std::uint64_t lbr_select_bits(const Pmu& p) { return p.generation().lbr_select_mask; }
std::uint64_t lbr_tos_bits(const Pmu& p) { return std::max(lbr_depth(p), 1U) - 1ULL; }
// SDM 3B figure 17-11; RTM_DEBUG needs RTM, and the freeze bits need version 2 (18.2.2).
std::uint64_t debugctl_bits(const Pmu& p) {
  constexpr std::uint64_t freeze = reg::debugctl::FREEZE_LBRS_ON_PMI::mask | reg::debugctl::FREEZE_PERFMON_ON_PMI::mask;
  return 0x7FC3 & ~(MsrTable::has_global_registers(p) ? 0 : freeze);
}
std::uint64_t fixed_ctr_ctrl_bits(const Pmu& p) {
  std::uint64_t any = 0;
  for (unsigned n = 0; n < fixed_count(p) && !has_any_thread(p); ++n)
    any |= reg::fixed_ctr_ctrl::ANY::mask << (n * reg::fixed_ctr_ctrl::bits_per_counter);
  return low_bits(fixed_count(p) * reg::fixed_ctr_ctrl::bits_per_counter) & ~any;
}
std::uint64_t global_ctrl_bits(const Pmu& p) { return MsrTable::global_ctrl_bits(p); }
std::uint64_t global_ovf_bits(const Pmu& p) { return MsrTable::global_status_bits(p); }
// Figure 18-12 shows bit 63 as settable, table 35-37 reserves it: reserved.
std::uint64_t global_set_bits(const Pmu& p) { return global_ovf_bits(p) & ~st::CondChgd::mask; }
std::uint64_t pebs_enable_bits(const Pmu& p) {
  const std::uint64_t counters = low_bits(p.generation().pebs_counters);
  const std::uint64_t latency = p.generation().features.load_latency ? counters << reg::pebs_enable::ll_shift : 0;
  return counters | latency | (p.generation().features.precise_store ? reg::pebs_enable::PS_EN::mask : 0);
}
std::uint64_t ld_lat_bits(const Pmu&) { return reg::pebs_ld_lat::THRESHOLD::mask; }
std::uint64_t frontend_bits(const Pmu& p) { return p.generation().frontend_mask; }

// Values that a mask cannot judge.
bool canonical(const Pmu&, std::uint64_t v) { return is_canonical(v, 48); }
// The top bits are flags in some formats. SDM 3B tables 17-8, 17-14.
bool lbr_from(const Pmu& p, std::uint64_t v) {
  constexpr unsigned address_bits = 48;
  const LbrFormat format = p.generation().lbr_format;
  const unsigned flags = format == LbrFormat::eip_with_info ? 0 : format == LbrFormat::eip_flags_tsx ? 3 : 1;
  const auto extended = static_cast<std::int64_t>(v << flags) >> flags;
  return is_canonical(static_cast<std::uint64_t>(extended), address_bits);
}
// BTS_UNAVAILABLE and PEBS_UNAVAILABLE are read only: changing them raises #GP. SDM 3C table 35-2.
bool keeps_unavailable_bits(const Pmu& p, std::uint64_t v) {
  constexpr std::uint64_t fixed = reg::misc_enable::BTS_UNAVAILABLE::mask | reg::misc_enable::PEBS_UNAVAILABLE::mask;
  return ((v ^ p.state().misc_enable) & fixed) == 0;
}

// Reads.
/// A register that is a member of the state, or of an array of them the one at the address.
template <auto Member>
std::uint64_t read(const Pmu& p, unsigned i) {
  return element_of(p.state().*Member, i);
}
std::uint64_t read_perf_capabilities(const Pmu& p, unsigned) { return p.perf_capabilities(); }
std::uint64_t read_zero(const Pmu&, unsigned) { return 0; }

// SDM 3B 18.2.4.3: which counters are in use, and whether the PMI is; computed from the other registers.
std::uint64_t read_global_inuse(const Pmu& p, unsigned) {
  const PmuState& s = p.state();
  std::uint64_t inuse = 0;
  bool pmi = (s.pebs_enable & reg::pebs_enable::PEBS_EN::mask) != 0;
  for (unsigned i = 0; i < p.gp_counters(); ++i) {
    if (reg::perfevtsel::EVENT::test(s.perfevtsel[i])) inuse |= bit(i);
    pmi = pmi || reg::perfevtsel::INT::test(s.perfevtsel[i]);
  }
  for (unsigned n = 0; n < p.generation().fixed_counters; ++n) {
    const std::uint64_t control = s.fixed_ctr_ctrl >> (n * reg::fixed_ctr_ctrl::bits_per_counter);
    if (((control & (reg::fixed_ctr_ctrl::EN_OS::mask | reg::fixed_ctr_ctrl::EN_USR::mask)) != 0))
      inuse |= bit(st::fixed_shift + n);
    pmi = pmi || reg::fixed_ctr_ctrl::PMI::test(control);
  }
  return inuse | (pmi ? reg::global_inuse::PMI::mask : 0);
}

using E = MsrEffects;
using S = PmuState;
// clang-format off
// Ascending. Columns: first address, addresses, name, generation has it, how many exist, bits WRMSR may set, read, write, further test.
constexpr std::array msr_rows{
  MsrRow{msr::IA32_PMC0,                   8,  "IA32_PMC0",                   always,           gp_count,         any_bit,             read<&S::pmc>,                   E::write_pmc_sign_extended,          nullptr},
  MsrRow{msr::IA32_PERFEVTSEL0,            8,  "IA32_PERFEVTSEL0",            always,           gp_count,         perfevtsel_bits,     read<&S::perfevtsel>,            E::write_perfevtsel,                 nullptr},
  MsrRow{msr::IA32_MISC_ENABLE,            1,  "IA32_MISC_ENABLE",            always,           one,              any_bit,             read<&S::misc_enable>,           E::write_misc_enable,                keeps_unavailable_bits},
  MsrRow{msr::MSR_MISC_FEATURE_CONTROL,    1,  "MSR_MISC_FEATURE_CONTROL",    always,           one,              prefetcher_bits,     read<&S::misc_feature_control>,  E::write<&S::misc_feature_control>,  nullptr},
  MsrRow{msr::MSR_OFFCORE_RSP_0,           2,  "MSR_OFFCORE_RSP_0",           always,           offcore_count,    offcore_bits,        read<&S::offcore_rsp>,           E::write<&S::offcore_rsp>,           nullptr},
  MsrRow{msr::MSR_LBR_SELECT,              1,  "MSR_LBR_SELECT",              always,           lbr_control,      lbr_select_bits,     read<&S::lbr_select>,            E::write<&S::lbr_select>,            nullptr},
  MsrRow{msr::MSR_LASTBRANCH_TOS,          1,  "MSR_LASTBRANCH_TOS",          always,           lbr_control,      lbr_tos_bits,        read<&S::lbr_tos>,               E::write<&S::lbr_tos>,               nullptr},
  MsrRow{msr::IA32_DEBUGCTL,               1,  "IA32_DEBUGCTL",               always,           one,              debugctl_bits,       read<&S::debugctl>,              E::write<&S::debugctl>,              nullptr},
  MsrRow{msr::MSR_LER_FROM_LIP,            1,  "MSR_LER_FROM_LIP",            always,           one,              any_bit,             read<&S::ler_from>,              nullptr,                             nullptr},
  MsrRow{msr::MSR_LER_TO_LIP,              1,  "MSR_LER_TO_LIP",              always,           one,              any_bit,             read<&S::ler_to>,                nullptr,                             nullptr},
  MsrRow{msr::IA32_FIXED_CTR0,             3,  "IA32_FIXED_CTR0",             always,           fixed_count,      counter_bits,        read<&S::fixed_ctr>,             E::write_fixed_ctr,                  nullptr},
  MsrRow{msr::IA32_PERF_CAPABILITIES,      1,  "IA32_PERF_CAPABILITIES",      always,           one,              any_bit,             read_perf_capabilities,          nullptr,                             nullptr},
  MsrRow{msr::IA32_FIXED_CTR_CTRL,         1,  "IA32_FIXED_CTR_CTRL",         always,           global_one,       fixed_ctr_ctrl_bits, read<&S::fixed_ctr_ctrl>,        E::write<&S::fixed_ctr_ctrl>,        nullptr},
  MsrRow{msr::IA32_PERF_GLOBAL_STATUS,     1,  "IA32_PERF_GLOBAL_STATUS",     always,           global_one,       any_bit,             read<&S::global_status>,         nullptr,                             nullptr},
  MsrRow{msr::IA32_PERF_GLOBAL_CTRL,       1,  "IA32_PERF_GLOBAL_CTRL",       always,           global_one,       global_ctrl_bits,    read<&S::global_ctrl>,           E::write<&S::global_ctrl>,           nullptr},
  MsrRow{msr::IA32_PERF_GLOBAL_OVF_CTRL,   1,  "IA32_PERF_GLOBAL_OVF_CTRL",   always,           global_one,       global_ovf_bits,     read_zero,                       E::write_global_ovf_ctrl,            nullptr},
  MsrRow{msr::IA32_PERF_GLOBAL_STATUS_SET, 1,  "IA32_PERF_GLOBAL_STATUS_SET", has_status_set,   status_set_one,   global_set_bits,     read_zero,                       E::write_global_status_set,          nullptr},
  MsrRow{msr::IA32_PERF_GLOBAL_INUSE,      1,  "IA32_PERF_GLOBAL_INUSE",      has_status_set,   status_set_one,   any_bit,             read_global_inuse,               nullptr,                             nullptr},
  MsrRow{msr::IA32_PEBS_ENABLE,            1,  "IA32_PEBS_ENABLE",            always,           one,              pebs_enable_bits,    read<&S::pebs_enable>,           E::write<&S::pebs_enable>,           nullptr},
  MsrRow{msr::MSR_PEBS_LD_LAT_THRESHOLD,   1,  "MSR_PEBS_LD_LAT_THRESHOLD",   has_load_latency, one,              ld_lat_bits,         read<&S::pebs_ld_lat_threshold>, E::write<&S::pebs_ld_lat_threshold>, nullptr},
  MsrRow{msr::MSR_PEBS_FRONTEND,           1,  "MSR_PEBS_FRONTEND",           has_frontend,     one,              frontend_bits,       read<&S::pebs_frontend>,         E::write<&S::pebs_frontend>,         nullptr},
  MsrRow{msr::IA32_A_PMC0,                 8,  "IA32_A_PMC0",                 has_full_width,   full_width_count, counter_bits,        read<&S::pmc>,                   E::write_pmc_full,                   nullptr},
  MsrRow{msr::IA32_DS_AREA,                1,  "IA32_DS_AREA",                always,           one,              any_bit,             read<&S::ds_area>,               E::write<&S::ds_area>,               canonical},
  MsrRow{msr::MSR_LASTBRANCH_0_FROM_IP,    32, "MSR_LASTBRANCH_0_FROM_IP",    always,           lbr_depth,        any_bit,             read<&S::lbr_from>,              E::write<&S::lbr_from>,              lbr_from},
  MsrRow{msr::MSR_LASTBRANCH_0_TO_IP,      32, "MSR_LASTBRANCH_0_TO_IP",      always,           lbr_depth,        any_bit,             read<&S::lbr_to>,                E::write<&S::lbr_to>,                canonical},
  MsrRow{msr::MSR_LBR_INFO_0,              32, "MSR_LBR_INFO_0",              has_lbr_info,     lbr_depth,        any_bit,             read<&S::lbr_info>,              E::write_lbr_info,                   nullptr},
};
// clang-format on

constexpr bool ascending() {
  for (std::size_t i = 1; i < msr_rows.size(); ++i)
    if (msr_rows[i - 1].first.value() + msr_rows[i - 1].span > msr_rows[i].first.value()) return false;
  return true;
}
static_assert(ascending(), "find() searches the table by halves");
static_assert(msr_rows.size() <= MsrSpans::max_core_kinds);

}  // namespace

std::span<const MsrRow> MsrTable::rows() { return msr_rows; }

const MsrRow* MsrTable::find(const GenerationDesc& generation, MsrIndex index) {
  const auto* const after = std::ranges::upper_bound(msr_rows, index, {}, &MsrRow::first);
  if (after == msr_rows.begin()) return nullptr;
  const MsrRow& row = *std::prev(after);
  const bool inside = index.value() - row.first.value() < row.span;
  return inside && row.exists(generation) ? &row : nullptr;
}

bool MsrTable::legal(const MsrRow& row, const Pmu& pmu, std::uint64_t value) {
  if (row.write == nullptr || (value & ~row.legal(pmu)) != 0) return false;
  return row.accepts == nullptr || row.accepts(pmu, value);
}

bool MsrTable::has_global_registers(const Pmu& pmu) { return pmu.generation().perfmon_version >= 2; }

std::uint64_t MsrTable::global_ctrl_bits(const Pmu& pmu) {
  return low_bits(pmu.gp_counters()) | (low_bits(pmu.generation().fixed_counters) << st::fixed_shift);
}

// Table 35-37: bit 55 needs PT and bit 60 SGX, neither is reported; CTR_FRZ and LBR_FRZ from version 4 on.
std::uint64_t MsrTable::global_status_bits(const Pmu& p) {
  const std::uint64_t freeze =
      p.generation().freeze == FreezeKind::streamlined ? st::LBR_FRZ::mask | st::CTR_FRZ::mask : 0;
  return global_ctrl_bits(p) | freeze | st::OVF_UNCORE::mask | st::OVF_DSBuffer::mask | st::CondChgd::mask;
}

void MsrSpans::sort() { std::ranges::sort(std::span{spans_}.first(size_), {}, &MsrSpan::first); }

MsrSpans trap_ranges(const GenerationDesc& generation) {
  MsrSpans spans;
  for (const MsrRow& row : msr_rows)
    if (row.exists(generation)) spans.add({.first = row.first, .count = row.span, .name = row.name});
  for (const UncoreMsr& row : generation.uncore->msrs)
    spans.add({.first = row.first, .count = row.count, .name = row.name});
  spans.sort();
  return spans;
}

}  // namespace vpmu
