#pragma once
#include <array>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "vpmu/msr.hpp"

namespace vpmu::test {

enum class MsrAccess : std::uint8_t {
  read_write,  ///< Reads back what was written.
  read_only,   ///< WRMSR is #GP.
  reads_zero,  ///< Writable, reads 0.
};

/// How an MSR must behave, written from the manual and not from the library's table. SDM 3C tables 35-2, 35-18, 35-37.
struct MsrExpectation {
  std::string_view name;
  MsrIndex first;
  unsigned count;          ///< Addresses.
  unsigned present;        ///< Of them with SMT on; the rest is #GP. With SMT off all are present.
  std::uint64_t reset;     ///< With SMT on.
  std::uint64_t stored;    ///< Bits that WRMSR changes, or clears or sets in another register.
  std::uint64_t faulting;  ///< Bits that raise #GP when written 1.
  MsrAccess access{MsrAccess::read_write};
  bool canonical{};  ///< A non-canonical value raises #GP.
};
inline void PrintTo(const MsrExpectation& m, std::ostream* out) { *out << m.name; }

/// Every core PMU register of Skylake client with SMT on, ascending.
inline constexpr std::array skylake_msrs{
    // Values of the alias at C1H are sign-extended from bit 31; its own tests tell the rest. SDM 3B 18.2.5.
    MsrExpectation{"IA32_PMC", MsrIndex{0xC1}, 8, 4, 0, 0x7FFF'FFFF, 0},
    // Rule T5: bits 33:32 need TSX, which is not reported.
    MsrExpectation{"IA32_PERFEVTSEL", MsrIndex{0x186}, 8, 4, 0, 0xFFFF'FFFF, 0xFFFF'FFFF'0000'0000},
    MsrExpectation{"IA32_MISC_ENABLE", MsrIndex{0x1A0}, 1, 1, 0x85'0089, 0x44'00C5'0009, 0x1800},
    MsrExpectation{"MSR_MISC_FEATURE_CONTROL", MsrIndex{0x1A4}, 1, 1, 0, 0xF, 0xFFFF'FFFF'FFFF'FFF0},
    MsrExpectation{"MSR_OFFCORE_RSP", MsrIndex{0x1A6}, 2, 2, 0, 0x3F'FFFF'8FFF, 0xFFFF'FFC0'0000'7000},
    MsrExpectation{"MSR_LBR_SELECT", MsrIndex{0x1C8}, 1, 1, 0, 0x3FF, 0xFFFF'FFFF'FFFF'FC00},
    MsrExpectation{"MSR_LASTBRANCH_TOS", MsrIndex{0x1C9}, 1, 1, 0, 0x1F, 0xFFFF'FFFF'FFFF'FFE0},
    // Bit 15, RTM_DEBUG, needs RTM, which is not reported.
    MsrExpectation{"IA32_DEBUGCTL", MsrIndex{0x1D9}, 1, 1, 0, 0x7FC3, 0xFFFF'FFFF'FFFF'803C},
    MsrExpectation{"MSR_LER_FROM_LIP", MsrIndex{0x1DD}, 1, 1, 0, 0, 0, MsrAccess::read_only},
    MsrExpectation{"MSR_LER_TO_LIP", MsrIndex{0x1DE}, 1, 1, 0, 0, 0, MsrAccess::read_only},
    MsrExpectation{"IA32_FIXED_CTR", MsrIndex{0x309}, 3, 3, 0, 0xFFFF'FFFF'FFFF, 0xFFFF'0000'0000'0000},
    MsrExpectation{"IA32_PERF_CAPABILITIES", MsrIndex{0x345}, 1, 1, 0x33C5, 0, 0, MsrAccess::read_only},
    MsrExpectation{"IA32_FIXED_CTR_CTRL", MsrIndex{0x38D}, 1, 1, 0, 0xFFF, 0xFFFF'FFFF'FFFF'F000},
    MsrExpectation{"IA32_PERF_GLOBAL_STATUS", MsrIndex{0x38E}, 1, 1, 0, 0, 0, MsrAccess::read_only},
    MsrExpectation{"IA32_PERF_GLOBAL_CTRL", MsrIndex{0x38F}, 1, 1, 0xF, 0x7'0000'000F, 0xFFFF'FFF8'FFFF'FFF0},
    // Bits 55 (Processor Trace) and 60 (SGX) belong to features that are not reported.
    MsrExpectation{"IA32_PERF_GLOBAL_OVF_CTRL", MsrIndex{0x390}, 1, 1, 0, 0xEC00'0007'0000'000F, 0x13FF'FFF8'FFFF'FFF0,
                   MsrAccess::reads_zero},
    MsrExpectation{"IA32_PERF_GLOBAL_STATUS_SET", MsrIndex{0x391}, 1, 1, 0, 0x6C00'0007'0000'000F,
                   0x93FF'FFF8'FFFF'FFF0, MsrAccess::reads_zero},
    MsrExpectation{"IA32_PERF_GLOBAL_INUSE", MsrIndex{0x392}, 1, 1, 0, 0, 0, MsrAccess::read_only},
    MsrExpectation{"IA32_PEBS_ENABLE", MsrIndex{0x3F1}, 1, 1, 0, 0xF'0000'000F, 0xFFFF'FFF0'FFFF'FFF0},
    MsrExpectation{"MSR_PEBS_LD_LAT_THRESHOLD", MsrIndex{0x3F6}, 1, 1, 0, 0xFFFF, 0xFFFF'FFFF'FFFF'0000},
    MsrExpectation{"MSR_PEBS_FRONTEND", MsrIndex{0x3F7}, 1, 1, 0, 0x7F'FF17, 0xFFFF'FFFF'FF80'00E8},
    MsrExpectation{"IA32_A_PMC", MsrIndex{0x4C1}, 8, 4, 0, 0xFFFF'FFFF'FFFF, 0xFFFF'0000'0000'0000},
    MsrExpectation{"IA32_DS_AREA", MsrIndex{0x600}, 1, 1, 0, 0x7FFF'FFFF'FFFF, 0, MsrAccess::read_write, true},
    MsrExpectation{"MSR_LASTBRANCH_FROM_IP", MsrIndex{0x680}, 32, 32, 0, 0x7FFF'FFFF'FFFF, 0, MsrAccess::read_write,
                   true},
    MsrExpectation{"MSR_LASTBRANCH_TO_IP", MsrIndex{0x6C0}, 32, 32, 0, 0x7FFF'FFFF'FFFF, 0, MsrAccess::read_write,
                   true},
    MsrExpectation{"MSR_LBR_INFO", MsrIndex{0xDC0}, 32, 32, 0, 0xE000'0000'0000'FFFF, 0},
};

}  // namespace vpmu::test
