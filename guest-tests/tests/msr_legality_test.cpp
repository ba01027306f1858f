// Which values each PMU MSR accepts, seen from inside: legal bits read back, every other bit raises #GP and changes
// nothing. The legal bits are put together here from the field layouts of the manual, one by one; the virtual PMU has
// its own table.
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace msr = vpmu::msr;
namespace reg = vpmu::reg;
using gt::MsrIndex;

enum class Access { read_write, read_only, write_reads_zero };

struct Row {
  const char* name;
  MsrIndex index;
  std::uint64_t legal;  ///< Bits that WRMSR may set.
  Access access{Access::read_write};
};

template <class... Fields>
constexpr std::uint64_t any_of = (Fields::mask | ... | 0);

/// GP and fixed counter bits of GLOBAL_CTRL and GLOBAL_STATUS. SDM 3B figure 18-8: bits of counters that do not exist
/// are reserved.
std::uint64_t counter_bits() {
  return vpmu::low_bits(gt::pmu::gp_counters()) | (vpmu::low_bits(gt::pmu::fixed_counters()) << 32);
}

// SDM 3B figure 18-6; bits 33:32 need TSX (18.11.5, rule T5).
constexpr std::uint64_t perfevtsel_bits = [] {
  namespace r = reg::perfevtsel;
  return any_of<r::EVENT, r::UMASK, r::USR, r::OS, r::E, r::PC, r::INT, r::ANY, r::EN, r::INV, r::CMASK>;
}();
// SDM 3B figure 17-11 and table 35-2; RTM_DEBUG needs TSX.
constexpr std::uint64_t debugctl_bits = [] {
  namespace r = reg::debugctl;
  return any_of<r::LBR, r::BTF, r::TR, r::BTS, r::BTINT, r::BTS_OFF_OS, r::BTS_OFF_USR, r::FREEZE_LBRS_ON_PMI,
                r::FREEZE_PERFMON_ON_PMI, r::ENABLE_UNCORE_PMI, r::FREEZE_WHILE_SMM>;
}();
// SDM 3B figures 18-21 and 18-35: without precise store bit 63 is reserved.
std::uint64_t pebs_enable_bits() {
  return any_of<reg::pebs_enable::PEBS_EN, reg::pebs_enable::LL_EN> |
         (gt::cpu::facts().precise_store ? reg::pebs_enable::PS_EN::mask : 0);
}
// SDM 3B table 18-59.
constexpr std::uint64_t frontend_bits = [] {
  namespace r = reg::pebs_frontend;
  return any_of<r::EVTSEL_LOW, r::EVTSEL_HIGH, r::IDQ_Bubble_Length, r::IDQ_Bubble_Width>;
}();
// SDM 3C table 35-37: bit 55 needs PT, bit 60 SGX; neither is reported. The freeze bits came with version 4.
std::uint64_t status_reset_bits() {
  constexpr std::uint64_t freeze = any_of<reg::global_status::LBR_FRZ, reg::global_status::CTR_FRZ>;
  return counter_bits() | (gt::cpu::has_streamlined_freeze() ? freeze : 0) |
         any_of<reg::global_status::OVF_UNCORE, reg::global_status::OVF_DSBuffer, reg::global_status::CondChgd>;
}

/// Tests every bit alone: legal ones read back, others raise #GP and leave the register unchanged.
void check_each_bit(const Row& row, MsrIndex index) {
  for (unsigned n = 0; n < 64; ++n) {
    const std::uint64_t value = vpmu::bit(n);
    const bool legal = (row.legal & value) != 0;
    gt::wrmsr(index, 0);
    const gt::Outcome write = gt::try_wrmsr(index, value);
    if (!GT_EQUAL_AT(row.name, write.vector, legal ? gt::Outcome::none : x86::vector::GP)) return;
    if (!legal) GT_EQUAL_AT(row.name, write.error_code, 0U);
    const std::uint64_t expected = legal && row.access == Access::read_write ? value : 0;
    if (!GT_EQUAL_AT(row.name, gt::rdmsr(index), expected)) return;
  }
  GT_EQUAL_AT(row.name, gt::try_wrmsr(index, row.legal).vector, gt::Outcome::none);
  GT_EQUAL_AT(row.name, gt::rdmsr(index), row.access == Access::read_write ? row.legal : 0);
  gt::wrmsr(index, 0);
}

GT_TEST(MsrLegality_EventSelects) {
  GT_REQUIRE(gt::pmu::gp_counters() >= 4);
  for (unsigned i = 0; i < gt::pmu::gp_counters(); ++i)
    check_each_bit({.name = "IA32_PERFEVTSELx", .legal = perfevtsel_bits}, msr::IA32_PERFEVTSEL0 + i);
}

GT_TEST(MsrLegality_FixedCounters) {
  GT_REQUIRE(gt::pmu::fixed_counters() == 3);
  for (unsigned n = 0; n < 3; ++n)
    check_each_bit({.name = "IA32_FIXED_CTRn", .legal = gt::pmu::counter_mask}, msr::IA32_FIXED_CTR0 + n);
  check_each_bit({.name = "IA32_FIXED_CTR_CTRL", .legal = vpmu::low_bits(4 * 3)}, msr::IA32_FIXED_CTR_CTRL);
}

GT_TEST(MsrLegality_GlobalRegisters) {
  GT_REQUIRE(counter_bits() != 0);
  gt::wrmsr(msr::IA32_PERF_GLOBAL_CTRL, 0);
  check_each_bit({.name = "IA32_PERF_GLOBAL_CTRL", .legal = counter_bits()}, msr::IA32_PERF_GLOBAL_CTRL);
  check_each_bit(
      {.name = "IA32_PERF_GLOBAL_OVF_CTRL", .legal = status_reset_bits(), .access = Access::write_reads_zero},
      msr::IA32_PERF_GLOBAL_OVF_CTRL);
  if (!gt::cpu::has_streamlined_freeze()) return;
  // Bit 63 is shown settable in figure 18-12 and reserved in table 35-37: reserved.
  check_each_bit({.name = "IA32_PERF_GLOBAL_STATUS_SET",
                  .legal = status_reset_bits() & ~reg::global_status::CondChgd::mask,
                  .access = Access::write_reads_zero},
                 msr::IA32_PERF_GLOBAL_STATUS_SET);
}

GT_TEST(MsrLegality_PebsRegisters) {
  check_each_bit({.name = "IA32_PEBS_ENABLE", .legal = pebs_enable_bits()}, msr::IA32_PEBS_ENABLE);
  check_each_bit({.name = "MSR_PEBS_LD_LAT_THRESHOLD", .legal = reg::pebs_ld_lat::THRESHOLD::mask},
                 msr::MSR_PEBS_LD_LAT_THRESHOLD);
  if (gt::cpu::facts().microarchitecture == gt::cpu::Microarchitecture::skylake)
    check_each_bit({.name = "MSR_PEBS_FRONTEND", .legal = frontend_bits}, msr::MSR_PEBS_FRONTEND);
  else
    GT_EQUAL(gt::try_rdmsr(msr::MSR_PEBS_FRONTEND).vector, x86::vector::GP);
  for (unsigned i = 0; i < gt::cpu::facts().offcore_registers; ++i)
    check_each_bit({.name = "MSR_OFFCORE_RSP_x", .legal = gt::cpu::facts().offcore_bits}, msr::MSR_OFFCORE_RSP_0 + i);
  if (gt::cpu::facts().offcore_registers == 1)
    GT_EQUAL(gt::try_rdmsr(msr::MSR_OFFCORE_RSP_0 + 1).vector, x86::vector::GP);
}

GT_TEST(MsrLegality_DebugAndBranchRegisters) {
  check_each_bit({.name = "IA32_DEBUGCTL", .legal = debugctl_bits}, msr::IA32_DEBUGCTL);
  check_each_bit({.name = "MSR_LBR_SELECT", .legal = gt::cpu::facts().lbr_select}, msr::MSR_LBR_SELECT);
  check_each_bit({.name = "MSR_LASTBRANCH_TOS", .legal = gt::cpu::facts().lbr_depth - 1}, msr::MSR_LASTBRANCH_TOS);
}

// SDM 3B 18.2.5: a full-width alias is the same counter as IA32_PMCi; bits above the counter's width are reserved.
GT_TEST(MsrLegality_FullWidthCounters) {
  if (!gt::cpu::has_full_width_writes()) {
    GT_EQUAL(gt::try_rdmsr(msr::IA32_A_PMC0).vector, x86::vector::GP);
    GT_EQUAL(gt::try_wrmsr(msr::IA32_A_PMC0, 0).vector, x86::vector::GP);
    return;
  }
  for (unsigned i = 0; i < gt::pmu::gp_counters(); ++i) {
    check_each_bit({.name = "IA32_A_PMCi", .legal = gt::pmu::counter_mask}, msr::IA32_A_PMC0 + i);
    gt::wrmsr(msr::IA32_A_PMC0 + i, 0x1234'5678'9ABC);
    GT_EQUAL(gt::rdmsr(msr::IA32_PMC0 + i), 0x1234'5678'9ABCU);
  }
}

// SDM 3B 18.2.1.1: IA32_PMCi takes EAX, sign-extended from bit 31; EDX is ignored and never faults.
GT_TEST(MsrLegality_LegacyCounterWritesAreSignExtended) {
  for (unsigned i = 0; i < gt::pmu::gp_counters(); ++i) {
    const MsrIndex pmc = msr::IA32_PMC0 + i;
    gt::wrmsr(pmc, 0x7FFF'FFFF);
    GT_EQUAL(gt::rdmsr(pmc), 0x7FFF'FFFFU);
    gt::wrmsr(pmc, 0x8000'0000);
    GT_EQUAL(gt::rdmsr(pmc), 0xFFFF'8000'0000U);
    GT_CHECK(gt::try_wrmsr(pmc, 0xFFFF'FFFF'0000'0001).ok());
    GT_EQUAL(gt::rdmsr(pmc), 1U);
    if (gt::cpu::has_full_width_writes()) GT_EQUAL(gt::rdmsr(msr::IA32_A_PMC0 + i), 1U);
  }
}

// SDM 3B 18.2.2, 18.2.4.3, 18.18, rule O10: these registers are read-only.
GT_TEST(MsrLegality_ReadOnlyRegisters) {
  for (const MsrIndex index :
       {msr::IA32_PERF_GLOBAL_STATUS, msr::IA32_PERF_CAPABILITIES, msr::IA32_PERF_GLOBAL_INUSE}) {
    if (index == msr::IA32_PERF_GLOBAL_INUSE && !gt::cpu::has_streamlined_freeze()) continue;
    const gt::Outcome before = gt::try_rdmsr(index);
    GT_CHECK(before.ok());
    for (const std::uint64_t value :
         {before.value, std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3} << 62, ~std::uint64_t{0}})
      GT_EQUAL(gt::try_wrmsr(index, value).vector, x86::vector::GP);
    GT_EQUAL(gt::rdmsr(index), before.value);
  }
}

// SDM 2A CPUID and 3B 18.2.2: counters that CPUID.0AH does not list do not exist.
GT_TEST(MsrLegality_MissingCountersFault) {
  const unsigned n = gt::pmu::gp_counters();
  GT_REQUIRE(n == 4 || n == 8);
  for (unsigned i = n; i < vpmu::max_gp_counters; ++i)
    for (const MsrIndex first : {msr::IA32_PMC0, msr::IA32_PERFEVTSEL0, msr::IA32_A_PMC0}) {
      GT_EQUAL(gt::try_rdmsr(first + i).vector, x86::vector::GP);
      GT_EQUAL(gt::try_wrmsr(first + i, 0).vector, x86::vector::GP);
    }
  GT_CHECK(gt::try_rdmsr(msr::IA32_PMC0 + (n - 1)).ok());
}

// Rule F9, SDM 2C WRMSR: linear addresses must be canonical. Zero and unmapped ones are accepted.
GT_TEST(MsrLegality_AddressesMustBeCanonical) {
  const auto last_to = msr::MSR_LASTBRANCH_0_TO_IP + static_cast<std::uint32_t>(gt::cpu::facts().lbr_depth - 1);
  for (const MsrIndex index : {msr::IA32_DS_AREA, msr::MSR_LASTBRANCH_0_FROM_IP, last_to}) {
    for (const std::uint64_t good : {0x0000'7FFF'FFFF'F000UL, 0xFFFF'8000'0000'0000UL, 0UL, 0xDEAD'0000UL}) {
      GT_CHECK(gt::try_wrmsr(index, good).ok());
      GT_EQUAL(gt::rdmsr(index), good);
    }
    for (const std::uint64_t bad : {0x0000'8000'0000'0000UL, 0xFFFF'7FFF'FFFF'FFFFUL, 0x1000'0000'0000'0000UL}) {
      GT_EQUAL(gt::try_wrmsr(index, bad).vector, x86::vector::GP);
      GT_EQUAL(gt::rdmsr(index), 0xDEAD'0000U);
    }
  }
}

// SDM 3C table 35-2: BTS and PEBS are available; the bits that say so cannot be changed, bit 7 ignores writes.
GT_TEST(MsrLegality_MiscEnableSaysPebsIsAvailable) {
  const std::uint64_t value = gt::rdmsr(msr::IA32_MISC_ENABLE);
  GT_CHECK(!reg::misc_enable::PEBS_UNAVAILABLE::test(value));
  GT_CHECK(reg::misc_enable::PERFMON_AVAILABLE::test(value));
  GT_CHECK(gt::try_wrmsr(msr::IA32_MISC_ENABLE, value).ok());
  GT_EQUAL(gt::try_wrmsr(msr::IA32_MISC_ENABLE, value | reg::misc_enable::PEBS_UNAVAILABLE::mask).vector,
           x86::vector::GP);
  GT_EQUAL(gt::try_wrmsr(msr::IA32_MISC_ENABLE, value ^ reg::misc_enable::BTS_UNAVAILABLE::mask).vector,
           x86::vector::GP);
  GT_CHECK(gt::try_wrmsr(msr::IA32_MISC_ENABLE, value & ~reg::misc_enable::PERFMON_AVAILABLE::mask).ok());
  GT_EQUAL(gt::rdmsr(msr::IA32_MISC_ENABLE), value);
}

// CPUID.0AH, CPUID.01H and PERF_CAPABILITIES: SDM 3B 18.2, 18.18. Nehalem and Westmere report some architectural events
// as missing.
GT_TEST(Enumeration_DescribesTheProcessor) {
  using enum gt::cpu::Microarchitecture;
  const gt::cpu::Facts& cpu = gt::cpu::facts();
  constexpr unsigned reference_cycles = 1U << 2, mispredicts = 1U << 6;
  GT_EQUAL(gt::pmu::version(), cpu.version);
  GT_EQUAL(gt::cpuid(0xA).eax >> 16 & 0xFF, 48U);
  GT_EQUAL(gt::cpuid(0xA).edx >> 5 & 0xFF, 48U);
  const unsigned missing = cpu.microarchitecture == nehalem    ? reference_cycles | mispredicts
                           : cpu.microarchitecture == westmere ? reference_cycles
                                                               : 0;
  GT_EQUAL(gt::cpuid(0xA).ebx & 0x7F, missing);
  GT_CHECK((gt::cpuid(1).ecx & vpmu::bit(15)) != 0);  // PDCM
  GT_CHECK((gt::cpuid(1).ecx & vpmu::bit(2)) != 0);   // DTES64
  GT_CHECK((gt::cpuid(1).edx & vpmu::bit(21)) != 0);  // DS
  GT_EQUAL(gt::rdmsr(msr::IA32_PERF_CAPABILITIES), cpu.perf_capabilities);
}

// SDM 3A table 9-1: the registers' values after reset.
GT_TEST(Enumeration_ResetValues) {
  GT_EQUAL(gt::rdmsr(msr::IA32_PERF_GLOBAL_CTRL), vpmu::low_bits(gt::pmu::gp_counters()));
  for (const MsrIndex index :
       {msr::IA32_PERFEVTSEL0, msr::IA32_PERFEVTSEL0 + 3, msr::IA32_PMC0, msr::IA32_PMC0 + 3, msr::IA32_FIXED_CTR0,
        msr::IA32_FIXED_CTR_CTRL, msr::IA32_PERF_GLOBAL_STATUS, msr::IA32_PERF_GLOBAL_OVF_CTRL, msr::IA32_PEBS_ENABLE,
        msr::IA32_DS_AREA, msr::IA32_DEBUGCTL, msr::MSR_LBR_SELECT})
    GT_EQUAL(gt::rdmsr(index), 0U);
}

// SDM 3B 18.2.4.2, rule Z9: setting status bits has no other effect; 18.2.4: OVF_CTRL clears exactly the bits written
// (O6).
GT_TEST(GlobalStatus_IsSetAndClearedByItsTwoRegisters) {
  if (!gt::cpu::has_streamlined_freeze()) gt::skip("this processor has no IA32_PERF_GLOBAL_STATUS_SET");
  gt::pmu::stop();
  const std::uint64_t bits = vpmu::bit(0) | vpmu::bit(3) | vpmu::bit(33) | reg::global_status::OVF_DSBuffer::mask;
  gt::wrmsr(msr::IA32_PERF_GLOBAL_STATUS_SET, bits);
  GT_EQUAL(gt::pmu::global_status(), bits);
  gt::wrmsr(msr::IA32_PERF_GLOBAL_STATUS_SET, vpmu::bit(1));
  GT_EQUAL(gt::pmu::global_status(), bits | vpmu::bit(1));
  gt::pmu::acknowledge(vpmu::bit(3) | vpmu::bit(2));
  GT_EQUAL(gt::pmu::global_status(), (bits | vpmu::bit(1)) & ~vpmu::bit(3));
  gt::wrmsr(msr::IA32_PERFEVTSEL0, 0);
  gt::pmu::write_counter(0, 5);
  gt::pmu::stop();
  GT_EQUAL(gt::pmu::global_status(), (bits | vpmu::bit(1)) & ~vpmu::bit(3));
}

// SDM 3B 18.2.4.3: computed from the event selects, the fixed controls, and which counters may raise a PMI.
GT_TEST(GlobalInuse_FollowsSelectsAndInterruptEnables) {
  if (!gt::cpu::has_streamlined_freeze()) gt::skip("this processor has no IA32_PERF_GLOBAL_INUSE");
  GT_EQUAL(gt::rdmsr(msr::IA32_PERF_GLOBAL_INUSE), 0U);
  gt::wrmsr(msr::IA32_PERFEVTSEL0 + 2, 0xC0);
  gt::wrmsr(msr::IA32_FIXED_CTR_CTRL, gt::pmu::fixed_control(1, gt::pmu::fixed_os));
  GT_EQUAL(gt::rdmsr(msr::IA32_PERF_GLOBAL_INUSE), vpmu::bit(2) | vpmu::bit(33));
  gt::wrmsr(msr::IA32_PERFEVTSEL0 + 2, reg::perfevtsel::INT::mask);
  GT_EQUAL(gt::rdmsr(msr::IA32_PERF_GLOBAL_INUSE), vpmu::bit(33) | vpmu::bit(63));
}

}  // namespace
