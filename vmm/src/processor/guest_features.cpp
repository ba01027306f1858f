#include "processor/guest_features.hpp"

#include <array>

#include "exec/vector_state.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;
using vpmu::exec::CpuFeature;

/// CR4 bits TSD, DE, PSE, PAE, PGE, PCE, OSFXSR and OSXMMEXCPT. CPUID of these guests has no VME and MCE.
constexpr std::uint64_t cr4_always = 0x7BC;
constexpr std::uint64_t cr4_fsgsbase = bit(16), cr4_osxsave = bit(18), cr4_smep = bit(20), cr4_smap = bit(21);
constexpr std::uint32_t leaf_7_smep = 1U << 7U;

/// Who implements the feature.
enum class By : std::uint8_t {
  own,    ///< The engine, SystemUnit and the devices of this VMM.
  host,   ///< The host's CPU, if it has the feature.
  hidden  ///< Nobody: the guest does not see it.
};
/// Where CPUID reports a feature, with its name in Linux. SDM 2A tables 3-8, 3-10, 3-11.
struct Row {
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
constexpr std::array rows{
    Row{"pni", 1, 0, ecx, 0, host, CpuFeature::sse3},
    Row{"pclmulqdq", 1, 0, ecx, 1, host, CpuFeature::pclmulqdq},
    Row{"ssse3", 1, 0, ecx, 9, host, CpuFeature::ssse3},
    Row{"fma", 1, 0, ecx, 12, host, CpuFeature::fma},
    Row{"cx16", 1, 0, ecx, 13, own},
    Row{"pcid", 1, 0, ecx, 17, hidden},
    Row{"sse4_1", 1, 0, ecx, 19, host, CpuFeature::sse41},
    Row{"sse4_2", 1, 0, ecx, 20, host, CpuFeature::sse42},
    Row{"x2apic", 1, 0, ecx, 21, own},
    Row{"movbe", 1, 0, ecx, 22, host, CpuFeature::movbe},
    Row{"popcnt", 1, 0, ecx, 23, own},
    Row{"tsc_deadline_timer", 1, 0, ecx, 24, own},
    Row{"aes", 1, 0, ecx, 25, host, CpuFeature::aes},
    Row{"xsave", 1, 0, ecx, 26, own, CpuFeature::xsave},
    Row{"avx", 1, 0, ecx, 28, host, CpuFeature::avx},
    Row{"f16c", 1, 0, ecx, 29, host, CpuFeature::f16c},
    Row{"rdrand", 1, 0, ecx, 30, own, CpuFeature::rdrand},
    Row{"fpu", 1, 0, edx, 0, own},
    Row{"vme", 1, 0, edx, 1, hidden},
    Row{"de", 1, 0, edx, 2, own},
    Row{"pse", 1, 0, edx, 3, own},
    Row{"tsc", 1, 0, edx, 4, own},
    Row{"msr", 1, 0, edx, 5, own},
    Row{"pae", 1, 0, edx, 6, own},
    Row{"mce", 1, 0, edx, 7, hidden},
    Row{"cx8", 1, 0, edx, 8, own},
    Row{"apic", 1, 0, edx, 9, own},
    Row{"sep", 1, 0, edx, 11, own},
    Row{"mtrr", 1, 0, edx, 12, own},
    Row{"pge", 1, 0, edx, 13, own},
    Row{"mca", 1, 0, edx, 14, hidden},
    Row{"cmov", 1, 0, edx, 15, own},
    Row{"pat", 1, 0, edx, 16, own},
    Row{"pse36", 1, 0, edx, 17, hidden},
    Row{"clflush", 1, 0, edx, 19, own},
    Row{"mmx", 1, 0, edx, 23, own},
    Row{"fxsr", 1, 0, edx, 24, own},
    Row{"sse", 1, 0, edx, 25, own},
    Row{"sse2", 1, 0, edx, 26, own},
    Row{"ss", 1, 0, edx, 27, hidden},
    Row{"ht", 1, 0, edx, 28, own},
    Row{"fsgsbase", 7, 0, ebx, 0, own, CpuFeature::fsgsbase},
    Row{"tsc_adjust", 7, 0, ebx, 1, own},
    Row{"bmi1", 7, 0, ebx, 3, host, CpuFeature::bmi1},
    Row{"avx2", 7, 0, ebx, 5, host, CpuFeature::avx2},
    Row{"smep", 7, 0, ebx, 7, own},
    Row{"bmi2", 7, 0, ebx, 8, host, CpuFeature::bmi2},
    Row{"erms", 7, 0, ebx, 9, own},
    Row{"invpcid", 7, 0, ebx, 10, hidden},
    Row{"zero_fcs_fds", 7, 0, ebx, 13, own},
    Row{"rdseed", 7, 0, ebx, 18, own, CpuFeature::rdseed},
    Row{"adx", 7, 0, ebx, 19, host, CpuFeature::adx},
    Row{"smap", 7, 0, ebx, 20, own, CpuFeature::smap},
    Row{"clflushopt", 7, 0, ebx, 23, own, CpuFeature::clflushopt},
    Row{"vaes", 7, 0, ecx, 9, host, CpuFeature::vaes},
    Row{"vpclmulqdq", 7, 0, ecx, 10, host, CpuFeature::vpclmulqdq},
    Row{"md_clear", 7, 0, edx, 10, hidden},
    Row{"spec_ctrl", 7, 0, edx, 26, hidden},
    Row{"stibp", 7, 0, edx, 27, hidden},
    Row{"flush_l1d", 7, 0, edx, 28, hidden},
    Row{"ssbd", 7, 0, edx, 31, hidden},
    Row{"xsaveopt", 0xD, 1, eax, 0, own, CpuFeature::xsaveopt},
    Row{"xsavec", 0xD, 1, eax, 1, own, CpuFeature::xsavec},
    Row{"xgetbv1", 0xD, 1, eax, 2, own, CpuFeature::xgetbv_ecx1},
    Row{"xsaves", 0xD, 1, eax, 3, own, CpuFeature::xsaves},
    Row{"lahf_lm", extended, 0, ecx, 0, own},
    Row{"abm", extended, 0, ecx, 5, own, CpuFeature::lzcnt},
    Row{"3dnowprefetch", extended, 0, ecx, 8, own},
    Row{"syscall", extended, 0, edx, 11, own},
    Row{"nx", extended, 0, edx, 20, own},
    Row{"pdpe1gb", extended, 0, edx, 26, own},
    Row{"rdtscp", extended, 0, edx, 27, own, CpuFeature::rdtscp},
    Row{"lm", extended, 0, edx, 29, own},
};

bool tells(const CpuidTable& cpuid, const Row& row) {
  return (cpuid.get(row.leaf, row.subleaf).*row.word >> row.number & 1U) != 0;
}

}  // namespace

CpuidTable supported_features() {
  constexpr std::uint32_t components = 7, upper_bytes = 256, upper_at = 576;  // x87, SSE, AVX. SDM 1 13.5
  CpuidRegisters leaf_1, leaf_7, leaf_d_1, leaf_extended;
  for (const Row& row : rows) {
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
  for (const Row& row : rows)
    if (tells(cpuid, row)) has_ |= bit_of(row.feature);
  if (has(CpuFeature::avx) && has(CpuFeature::aes)) has_ |= bit_of(CpuFeature::vex_aes);
  if (has(CpuFeature::avx) && has(CpuFeature::pclmulqdq)) has_ |= bit_of(CpuFeature::vex_pclmulqdq);
  cr4_ = cr4_always;
  if (has(CpuFeature::fsgsbase)) cr4_ |= cr4_fsgsbase;
  if (has(CpuFeature::xsave)) cr4_ |= cr4_osxsave;
  if ((cpuid.get(7).ebx & leaf_7_smep) != 0) cr4_ |= cr4_smep;
  if (has(CpuFeature::smap)) cr4_ |= cr4_smap;
  xcr0_ = cpuid.get(0xD).eax;
}

bool GuestFeatures::may_enable(std::uint64_t components) const {
  using vpmu::exec::VectorState;
  const bool avx_alone = (components & (VectorState::sse | VectorState::avx)) == VectorState::avx;
  return (components & ~(xcr0_ | VectorState::x87)) == 0 && (components & VectorState::x87) != 0 && !avx_alone;
}

std::vector<std::string_view> feature_names(const CpuidTable& cpuid) {
  std::vector<std::string_view> names;
  for (const Row& row : rows)
    if (tells(cpuid, row)) names.push_back(row.name);
  return names;
}

std::vector<std::string_view> feature_names(std::uint64_t features) {
  std::vector<std::string_view> names;
  for (const Row& row : rows)
    if (row.feature != CpuFeature::baseline && (features & bit(static_cast<unsigned>(row.feature))) != 0)
      names.push_back(row.name);
  return names;
}

std::vector<std::string_view> lost_features(const CpuidTable& wanted) {
  std::vector<std::string_view> lost;
  for (const Row& row : rows)
    if (row.by == host && tells(wanted, row) && !host_has(row.feature)) lost.push_back(row.name);
  return lost;
}
std::vector<std::string_view> hidden_features(const CpuidTable& wanted) {
  std::vector<std::string_view> names;
  for (const Row& row : rows)
    if (row.by == hidden && tells(wanted, row)) names.push_back(row.name);
  return names;
}

}  // namespace vmm
