#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "vpmu/strong.hpp"

namespace vpmu {

struct GenerationDesc;

/// The ECX of RDMSR and WRMSR.
struct MsrIndex : Strong<MsrIndex, std::uint32_t> {
  using Strong::Strong;
};
/// The n-th MSR after `m`.
[[nodiscard]] constexpr MsrIndex operator+(MsrIndex m, std::uint32_t n) { return MsrIndex{m.value() + n}; }

/// MSR addresses by the manual's names. SDM 3C chapter 35.
namespace msr {
inline constexpr MsrIndex IA32_TIME_STAMP_COUNTER{0x10};
inline constexpr MsrIndex IA32_APIC_BASE{0x1B};
inline constexpr MsrIndex IA32_TSC_ADJUST{0x3B};
inline constexpr MsrIndex IA32_BIOS_SIGN_ID{0x8B};
inline constexpr MsrIndex IA32_PMC0{0xC1};
inline constexpr MsrIndex MSR_PLATFORM_INFO{0xCE};
inline constexpr MsrIndex IA32_MPERF{0xE7};
inline constexpr MsrIndex IA32_APERF{0xE8};
inline constexpr MsrIndex IA32_SYSENTER_CS{0x174};
inline constexpr MsrIndex IA32_SYSENTER_ESP{0x175};
inline constexpr MsrIndex IA32_SYSENTER_EIP{0x176};
inline constexpr MsrIndex IA32_MCG_CAP{0x179};
inline constexpr MsrIndex IA32_MCG_STATUS{0x17A};
inline constexpr MsrIndex IA32_PERFEVTSEL0{0x186};
inline constexpr MsrIndex IA32_MISC_ENABLE{0x1A0};
inline constexpr MsrIndex MSR_MISC_FEATURE_CONTROL{0x1A4};
inline constexpr MsrIndex MSR_OFFCORE_RSP_0{0x1A6};
inline constexpr MsrIndex MSR_LBR_SELECT{0x1C8};
inline constexpr MsrIndex MSR_LASTBRANCH_TOS{0x1C9};
inline constexpr MsrIndex IA32_DEBUGCTL{0x1D9};
inline constexpr MsrIndex MSR_LER_FROM_LIP{0x1DD};
inline constexpr MsrIndex MSR_LER_TO_LIP{0x1DE};
inline constexpr MsrIndex IA32_PAT{0x277};
inline constexpr MsrIndex IA32_MTRR_DEF_TYPE{0x2FF};
inline constexpr MsrIndex IA32_FIXED_CTR0{0x309};
inline constexpr MsrIndex IA32_PERF_CAPABILITIES{0x345};
inline constexpr MsrIndex IA32_FIXED_CTR_CTRL{0x38D};
inline constexpr MsrIndex IA32_PERF_GLOBAL_STATUS{0x38E};
inline constexpr MsrIndex IA32_PERF_GLOBAL_CTRL{0x38F};
inline constexpr MsrIndex IA32_PERF_GLOBAL_OVF_CTRL{0x390};
inline constexpr MsrIndex IA32_PERF_GLOBAL_STATUS_SET{0x391};
inline constexpr MsrIndex IA32_PERF_GLOBAL_INUSE{0x392};
inline constexpr MsrIndex IA32_PEBS_ENABLE{0x3F1};
inline constexpr MsrIndex MSR_PEBS_LD_LAT_THRESHOLD{0x3F6};
inline constexpr MsrIndex MSR_PEBS_FRONTEND{0x3F7};
inline constexpr MsrIndex IA32_MC0_CTL{0x400};
inline constexpr MsrIndex IA32_A_PMC0{0x4C1};
inline constexpr MsrIndex IA32_DS_AREA{0x600};
inline constexpr MsrIndex MSR_LASTBRANCH_0_FROM_IP{0x680};
inline constexpr MsrIndex MSR_LASTBRANCH_0_TO_IP{0x6C0};
inline constexpr MsrIndex IA32_TSC_DEADLINE{0x6E0};
inline constexpr MsrIndex IA32_X2APIC_APICID{0x802};
inline constexpr MsrIndex IA32_X2APIC_ICR{0x830};
inline constexpr MsrIndex IA32_X2APIC_LVT_PMI{0x834};
inline constexpr MsrIndex MSR_LBR_INFO_0{0xDC0};
inline constexpr MsrIndex IA32_EFER{0xC000'0080};
inline constexpr MsrIndex IA32_STAR{0xC000'0081};
inline constexpr MsrIndex IA32_LSTAR{0xC000'0082};
inline constexpr MsrIndex IA32_FMASK{0xC000'0084};
inline constexpr MsrIndex IA32_FS_BASE{0xC000'0100};
inline constexpr MsrIndex IA32_GS_BASE{0xC000'0101};
inline constexpr MsrIndex IA32_KERNEL_GS_BASE{0xC000'0102};
inline constexpr MsrIndex IA32_TSC_AUX{0xC000'0103};
}  // namespace msr

/// The answer to a guest's RDMSR or WRMSR.
enum class MsrStatus : std::uint8_t {
  ok,       ///< Done.
  gp,       ///< Raises #GP(0).
  unknown,  ///< Not an MSR of the PMU: someone else may own it, or policy decides.
};

/// The answer to RDMSR.
struct MsrReadResult {
  MsrStatus status{MsrStatus::unknown};
  std::uint64_t value{};  ///< Meaningful with MsrStatus::ok.
};

/// `count` consecutive MSRs of one kind.
struct MsrSpan {
  MsrIndex first;
  std::uint32_t count{};
  std::string_view name;  ///< SDM name of the first.
};

/// The MSRs of a generation's PMUs; a value, no allocation.
class MsrSpans {
 public:
  static constexpr unsigned capacity = 64;
  static constexpr unsigned max_core_kinds = 32;  ///< Of these, for Pmu; the rest are for Uncore.
  /// Appends; what does not fit is left out.
  constexpr void add(MsrSpan s) {
    if (size_ < capacity) spans_[size_++] = s;
  }
  /// In the order in which they were added.
  [[nodiscard]] std::span<const MsrSpan> all() const& { return std::span{spans_}.first(size_); }
  std::span<const MsrSpan> all() const&& = delete;  ///< The span would outlive this object.
  /// Sorts them by address.
  void sort();

 private:
  std::array<MsrSpan, capacity> spans_{};
  unsigned size_{};
};

/// All MSRs whose RDMSR and WRMSR must reach Pmu or Uncore, ascending, from the tables of both. Includes MSRs that
/// raise #GP because their counter does not exist.
MsrSpans trap_ranges(const GenerationDesc& generation);

}  // namespace vpmu
