#include "processor/guest_features.hpp"

#include <algorithm>
#include <array>

#include "exec/state/vector_state.hpp"
#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;
using vpmu::exec::CpuFeature;

/// CPUID of these guests has no VME and MCE.
constexpr std::uint64_t cr4_always = x86::cr4::TSD::mask | x86::cr4::DE::mask | x86::cr4::PSE::mask |
                                     x86::cr4::PAE::mask | x86::cr4::PGE::mask | x86::cr4::PCE::mask |
                                     x86::cr4::OSFXSR::mask | x86::cr4::OSXMMEXCPT::mask;
constexpr std::uint32_t leaf_1_pcid = 1U << 17U, leaf_7_smep = 1U << 7U, leaf_7_invpcid = 1U << 10U,
                        extended_pdpe1gb = 1U << 26U;

/// Who implements the feature.
enum class By : std::uint8_t {
  own,    ///< The engine, SystemUnit and the devices of this VMM.
  host,   ///< The host's CPU, if it has the feature.
  hidden  ///< Nobody: the guest does not see it.
};
/// Where CPUID reports a feature, with its name in Linux. SDM 2A tables 3-8, 3-10, 3-11.
struct FeatureRow {
  std::string_view name;
  std::uint32_t leaf, subleaf;
  std::uint32_t CpuidRegisters::* word;
  unsigned number;
  By by;
  CpuFeature feature{CpuFeature::baseline};  ///< Decides whether its instructions are decoded.
};
constexpr auto eax = &CpuidRegisters::eax, ebx = &CpuidRegisters::ebx, ecx = &CpuidRegisters::ecx,
               edx = &CpuidRegisters::edx;
constexpr std::uint32_t extended = 0x8000'0001;
using enum By;
constexpr std::array feature_rows{
    FeatureRow{"pni", 1, 0, ecx, 0, host, CpuFeature::sse3},
    FeatureRow{"pclmulqdq", 1, 0, ecx, 1, host, CpuFeature::pclmulqdq},
    FeatureRow{"ssse3", 1, 0, ecx, 9, host, CpuFeature::ssse3},
    FeatureRow{"fma", 1, 0, ecx, 12, host, CpuFeature::fma},
    FeatureRow{"cx16", 1, 0, ecx, 13, own},
    FeatureRow{"pcid", 1, 0, ecx, 17, own},
    FeatureRow{"sse4_1", 1, 0, ecx, 19, host, CpuFeature::sse41},
    FeatureRow{"sse4_2", 1, 0, ecx, 20, host, CpuFeature::sse42},
    FeatureRow{"x2apic", 1, 0, ecx, 21, own},
    FeatureRow{"movbe", 1, 0, ecx, 22, host, CpuFeature::movbe},
    FeatureRow{"popcnt", 1, 0, ecx, 23, own},
    FeatureRow{"tsc_deadline_timer", 1, 0, ecx, 24, own},
    FeatureRow{"aes", 1, 0, ecx, 25, host, CpuFeature::aes},
    FeatureRow{"xsave", 1, 0, ecx, 26, own, CpuFeature::xsave},
    FeatureRow{"avx", 1, 0, ecx, 28, host, CpuFeature::avx},
    FeatureRow{"f16c", 1, 0, ecx, 29, host, CpuFeature::f16c},
    FeatureRow{"rdrand", 1, 0, ecx, 30, own, CpuFeature::rdrand},
    FeatureRow{"fpu", 1, 0, edx, 0, own},
    FeatureRow{"vme", 1, 0, edx, 1, hidden},
    FeatureRow{"de", 1, 0, edx, 2, own},
    FeatureRow{"pse", 1, 0, edx, 3, own},
    FeatureRow{"tsc", 1, 0, edx, 4, own},
    FeatureRow{"msr", 1, 0, edx, 5, own},
    FeatureRow{"pae", 1, 0, edx, 6, own},
    FeatureRow{"mce", 1, 0, edx, 7, hidden},
    FeatureRow{"cx8", 1, 0, edx, 8, own},
    FeatureRow{"apic", 1, 0, edx, 9, own},
    FeatureRow{"sep", 1, 0, edx, 11, own},
    FeatureRow{"mtrr", 1, 0, edx, 12, own},
    FeatureRow{"pge", 1, 0, edx, 13, own},
    FeatureRow{"mca", 1, 0, edx, 14, hidden},
    FeatureRow{"cmov", 1, 0, edx, 15, own},
    FeatureRow{"pat", 1, 0, edx, 16, own},
    FeatureRow{"pse36", 1, 0, edx, 17, hidden},
    FeatureRow{"clflush", 1, 0, edx, 19, own},
    FeatureRow{"mmx", 1, 0, edx, 23, own},
    FeatureRow{"fxsr", 1, 0, edx, 24, own},
    FeatureRow{"sse", 1, 0, edx, 25, own},
    FeatureRow{"sse2", 1, 0, edx, 26, own},
    FeatureRow{"ss", 1, 0, edx, 27, hidden},
    FeatureRow{"ht", 1, 0, edx, 28, own},
    FeatureRow{"fsgsbase", 7, 0, ebx, 0, own, CpuFeature::fsgsbase},
    FeatureRow{"tsc_adjust", 7, 0, ebx, 1, own},
    FeatureRow{"bmi1", 7, 0, ebx, 3, host, CpuFeature::bmi1},
    FeatureRow{"avx2", 7, 0, ebx, 5, host, CpuFeature::avx2},
    FeatureRow{"smep", 7, 0, ebx, 7, own},
    FeatureRow{"bmi2", 7, 0, ebx, 8, host, CpuFeature::bmi2},
    FeatureRow{"erms", 7, 0, ebx, 9, own},
    FeatureRow{"invpcid", 7, 0, ebx, 10, own},
    FeatureRow{"zero_fcs_fds", 7, 0, ebx, 13, own},
    FeatureRow{"rdseed", 7, 0, ebx, 18, own, CpuFeature::rdseed},
    FeatureRow{"adx", 7, 0, ebx, 19, host, CpuFeature::adx},
    FeatureRow{"smap", 7, 0, ebx, 20, own, CpuFeature::smap},
    FeatureRow{"clflushopt", 7, 0, ebx, 23, own, CpuFeature::clflushopt},
    FeatureRow{"vaes", 7, 0, ecx, 9, host, CpuFeature::vaes},
    FeatureRow{"vpclmulqdq", 7, 0, ecx, 10, host, CpuFeature::vpclmulqdq},
    FeatureRow{"md_clear", 7, 0, edx, 10, hidden},
    FeatureRow{"spec_ctrl", 7, 0, edx, 26, hidden},
    FeatureRow{"stibp", 7, 0, edx, 27, hidden},
    FeatureRow{"flush_l1d", 7, 0, edx, 28, hidden},
    FeatureRow{"ssbd", 7, 0, edx, 31, hidden},
    FeatureRow{"xsaveopt", 0xD, 1, eax, 0, own, CpuFeature::xsaveopt},
    FeatureRow{"xsavec", 0xD, 1, eax, 1, own, CpuFeature::xsavec},
    FeatureRow{"xgetbv1", 0xD, 1, eax, 2, own, CpuFeature::xgetbv_ecx1},
    FeatureRow{"xsaves", 0xD, 1, eax, 3, own, CpuFeature::xsaves},
    FeatureRow{"lahf_lm", extended, 0, ecx, 0, own},
    FeatureRow{"abm", extended, 0, ecx, 5, own, CpuFeature::lzcnt},
    FeatureRow{"3dnowprefetch", extended, 0, ecx, 8, own},
    FeatureRow{"syscall", extended, 0, edx, 11, own},
    FeatureRow{"nx", extended, 0, edx, 20, own},
    FeatureRow{"pdpe1gb", extended, 0, edx, 26, own},
    FeatureRow{"rdtscp", extended, 0, edx, 27, own, CpuFeature::rdtscp},
    FeatureRow{"lm", extended, 0, edx, 29, own},
};

// SDM 3A 4.1.4: without the leaf it is 36, and all these guests have PAE.
std::uint8_t physical_width(const CpuidTable& cpuid) {
  constexpr std::uint8_t without_leaf = 36, max = 52;
  const auto width = static_cast<std::uint8_t>(cpuid.get(0x8000'0008).eax);
  return width == 0 ? without_leaf : std::min(width, max);
}

bool tells(const CpuidTable& cpuid, const FeatureRow& row) {
  return (cpuid.get(row.leaf, row.subleaf).*row.word >> row.number & 1U) != 0;
}

}  // namespace

CpuidTable supported_features() {
  constexpr std::uint32_t components = 7, upper_bytes = 256, upper_at = 576;  // x87, SSE, AVX. SDM 1 13.5
  CpuidRegisters leaf_1, leaf_7, leaf_d_1, leaf_extended;
  for (const FeatureRow& row : feature_rows) {
    if (row.by == hidden || (row.by == host && !host_has(row.feature))) continue;
    CpuidRegisters& to = row.leaf == 1 ? leaf_1 : row.leaf == 7 ? leaf_7 : row.leaf == 0xD ? leaf_d_1 : leaf_extended;
    to.*row.word |= 1U << row.number;
  }
  CpuidTable table;
  table.add(1, leaf_1);
  table.add_subleaf(7, 0, leaf_7);
  table.add_subleaf(0xD, 0, {.eax = components});
  table.add_subleaf(0xD, 1, leaf_d_1);
  table.add_subleaf(0xD, 2, {.eax = upper_bytes, .ebx = upper_at});
  table.add(extended, leaf_extended);
  return table;
}

GuestFeatures::GuestFeatures(const CpuidTable& cpuid) {
  const auto bit_of = [](CpuFeature f) { return bit(static_cast<unsigned>(f)); };
  has_ = bit_of(CpuFeature::baseline);
  for (const FeatureRow& row : feature_rows)
    if (tells(cpuid, row)) has_ |= bit_of(row.feature);
  if (has(CpuFeature::avx) && has(CpuFeature::aes)) has_ |= bit_of(CpuFeature::vex_aes);
  if (has(CpuFeature::avx) && has(CpuFeature::pclmulqdq)) has_ |= bit_of(CpuFeature::vex_pclmulqdq);
  cr4_ = cr4_always;
  if (has(CpuFeature::fsgsbase)) cr4_ |= x86::cr4::FSGSBASE::mask;
  if (has(CpuFeature::xsave)) cr4_ |= x86::cr4::OSXSAVE::mask;
  if ((cpuid.get(7).ebx & leaf_7_smep) != 0) cr4_ |= x86::cr4::SMEP::mask;
  if ((cpuid.get(1).ecx & leaf_1_pcid) != 0) cr4_ |= x86::cr4::PCIDE::mask;
  has_invpcid_ = (cpuid.get(7).ebx & leaf_7_invpcid) != 0;
  if (has(CpuFeature::smap)) cr4_ |= x86::cr4::SMAP::mask;
  xcr0_ = cpuid.get(0xD).eax;
  paging_.physical_width = physical_width(cpuid);
  paging_.gigabyte_pages = (cpuid.get(extended).edx & extended_pdpe1gb) != 0;
}

bool GuestFeatures::may_enable(std::uint64_t components) const {
  using vpmu::exec::VectorState;
  const bool avx_alone = (components & (x86::xcr0::SSE::mask | x86::xcr0::AVX::mask)) == x86::xcr0::AVX::mask;
  return (components & ~(xcr0_ | x86::xcr0::x87::mask)) == 0 && (components & x86::xcr0::x87::mask) != 0 && !avx_alone;
}

std::vector<std::string_view> feature_names(const CpuidTable& cpuid) {
  std::vector<std::string_view> names;
  for (const FeatureRow& row : feature_rows)
    if (tells(cpuid, row)) names.push_back(row.name);
  return names;
}

std::vector<std::string_view> feature_names(std::uint64_t features) {
  std::vector<std::string_view> names;
  for (const FeatureRow& row : feature_rows)
    if (row.feature != CpuFeature::baseline && (features & bit(static_cast<unsigned>(row.feature))) != 0)
      names.push_back(row.name);
  return names;
}

std::vector<std::string_view> lost_features(const CpuidTable& wanted) {
  std::vector<std::string_view> lost;
  for (const FeatureRow& row : feature_rows)
    if (row.by == host && tells(wanted, row) && !host_has(row.feature)) lost.push_back(row.name);
  return lost;
}
std::vector<std::string_view> hidden_features(const CpuidTable& wanted) {
  std::vector<std::string_view> names;
  for (const FeatureRow& row : feature_rows)
    if (row.by == hidden && tells(wanted, row)) names.push_back(row.name);
  return names;
}

}  // namespace vmm
