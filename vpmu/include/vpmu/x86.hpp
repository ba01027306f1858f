#pragma once
#include <cstdint>

#include "vpmu/bits.hpp"

/// The x86 architecture's names, a namespace for each register, in the manual's spelling. Those of the PMU, the DS area
/// and the LBRs are in registers.hpp.
namespace vpmu::x86 {

/// RFLAGS. SDM 1 figure 3-8.
namespace rflags {
using CF = Bits<0>;
using PF = Bits<2>;
using AF = Bits<4>;
using ZF = Bits<6>;
using SF = Bits<7>;
using TF = Bits<8>;
using IF = Bits<9>;
using DF = Bits<10>;
using OF = Bits<11>;
using IOPL = Bits<13, 12>;
using NT = Bits<14>;
using RF = Bits<16>;
using VM = Bits<17>;
using AC = Bits<18>;
using VIF = Bits<19>;
using VIP = Bits<20>;
using ID = Bits<21>;
/// Bit 1 is always set.
inline constexpr std::uint64_t fixed = bit(1);
/// What arithmetic sets: OF, SF, ZF, AF, PF and CF.
inline constexpr std::uint64_t status = OF::mask | SF::mask | ZF::mask | AF::mask | PF::mask | CF::mask;
/// What POPF loads at CPL 0, outside virtual-8086 mode. SDM 2B POPF.
inline constexpr std::uint64_t by_popf =
    status | TF::mask | IF::mask | DF::mask | IOPL::mask | NT::mask | AC::mask | ID::mask;
}  // namespace rflags

/// CR0. SDM 3A 2.5.
namespace cr0 {
using PE = Bits<0>;
using MP = Bits<1>;
using EM = Bits<2>;
using TS = Bits<3>;
using ET = Bits<4>;
using NE = Bits<5>;
using WP = Bits<16>;
using AM = Bits<18>;
using NW = Bits<29>;
using CD = Bits<30>;
using PG = Bits<31>;
/// After power-up and INIT. SDM 3A table 9-1.
inline constexpr std::uint64_t after_reset = CD::mask | NW::mask | ET::mask;
}  // namespace cr0

/// CR3 with CR4.PCIDE, in a value that is loaded. SDM 3A 4.5, 4.10.4.1.
namespace cr3 {
using PCID = Bits<11, 0>;
/// The translations of this PCID are kept. It is not stored.
using KEEPS = Bits<63>;
}  // namespace cr3

/// CR4. SDM 3A 2.5.
namespace cr4 {
using VME = Bits<0>;
using PVI = Bits<1>;
using TSD = Bits<2>;
using DE = Bits<3>;
using PSE = Bits<4>;
using PAE = Bits<5>;
using MCE = Bits<6>;
using PGE = Bits<7>;
using PCE = Bits<8>;
using OSFXSR = Bits<9>;
using OSXMMEXCPT = Bits<10>;
/// 57-bit linear addresses: none of the models has them. SDM 3A 2.5 of later editions.
using LA57 = Bits<12>;
using VMXE = Bits<13>;
using SMXE = Bits<14>;
using FSGSBASE = Bits<16>;
using PCIDE = Bits<17>;
using OSXSAVE = Bits<18>;
using SMEP = Bits<20>;
using SMAP = Bits<21>;
}  // namespace cr4

/// The PCID in use. SDM 3A 4.10.1.
constexpr std::uint16_t pcid_of(std::uint64_t cr3, std::uint64_t cr4) {
  return cr4::PCIDE::test(cr4) ? static_cast<std::uint16_t>(cr3::PCID::get(cr3)) : std::uint16_t{0};
}

/// IA32_EFER. SDM 3A 2.2.1.
namespace efer {
using SCE = Bits<0>;
using LME = Bits<8>;
using LMA = Bits<10>;
using NXE = Bits<11>;
/// AMD's: SVM is on. AMD64 APM 2 3.1.7.
using SVME = Bits<12>;
}  // namespace efer

/// XCR0. SDM 3A figure 2-8.
namespace xcr0 {
using x87 = Bits<0>;
using SSE = Bits<1>;
using AVX = Bits<2>;
}  // namespace xcr0

/// DR6. SDM 3B 17.2.3.
namespace dr6 {
/// B0 to B3: the breakpoints whose conditions were met.
using B = Bits<3, 0>;
using BD = Bits<13>;
using BS = Bits<14>;
/// The bits that are always set, and what DR6 holds after power-up and INIT.
inline constexpr std::uint64_t fixed = 0xFFFF'0FF0;
}  // namespace dr6

/// DR7. SDM 3B 17.2.4.
namespace dr7 {
/// L0, G0 to L3, G3: of DR0 in the lowest two bits.
using LG = Bits<7, 0>;
using L0 = Bits<0>;
using G0 = Bits<1>;
using GD = Bits<13>;
/// What DR0 watches: 0 instructions, 1 writes, 3 reads and writes of data; and its bytes less one, but 2 means 8.
using RW0 = Bits<17, 16>;
using LEN0 = Bits<19, 18>;
/// The bits that are always set, and what DR7 holds after power-up and INIT.
inline constexpr std::uint64_t fixed = 0x400;
}  // namespace dr7

/// IA32_APIC_BASE. SDM 3A 10.4.4, 10.12.1.
namespace apic_base {
using BSP = Bits<8>;
using EXTD = Bits<10>;
using EN = Bits<11>;
using Base = Bits<51, 12>;
/// All fields.
inline constexpr std::uint64_t defined = BSP::mask | EXTD::mask | EN::mask | Base::mask;
/// Where the APIC's page is after power-up.
inline constexpr std::uint64_t base_after_reset = 0xFEE0'0000;
}  // namespace apic_base

/// Vectors of exceptions and of NMI. SDM 3A table 6-1.
namespace vector {
inline constexpr std::uint8_t DE = 0;
inline constexpr std::uint8_t DB = 1;
inline constexpr std::uint8_t NMI = 2;
inline constexpr std::uint8_t BP = 3;
inline constexpr std::uint8_t OF = 4;
inline constexpr std::uint8_t BR = 5;
inline constexpr std::uint8_t UD = 6;
inline constexpr std::uint8_t NM = 7;
inline constexpr std::uint8_t DF = 8;
inline constexpr std::uint8_t TS = 10;
inline constexpr std::uint8_t NP = 11;
inline constexpr std::uint8_t SS = 12;
inline constexpr std::uint8_t GP = 13;
inline constexpr std::uint8_t PF = 14;
inline constexpr std::uint8_t MF = 16;
inline constexpr std::uint8_t AC = 17;
inline constexpr std::uint8_t MC = 18;
inline constexpr std::uint8_t XM = 19;
}  // namespace vector

}  // namespace vpmu::x86
