#include "processor/msr_unit.hpp"

#include <algorithm>
#include <array>

#include "processor/segment_unit.hpp"
#include "support/x86.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/paging.hpp"

namespace vmm {
namespace {

using vpmu::MsrStatus;
using vpmu::exec::CpuFeature;

/// They count while the processor is not halted: IA32_MPERF as fast as the TSC, IA32_APERF as fast as the core. Kept is
/// what they were when the processor began. SDM 3B 14.2.
bool is_performance(std::uint32_t index) {
  return index == vpmu::msr::IA32_MPERF.value() || index == vpmu::msr::IA32_APERF.value();
}
std::uint64_t performance(std::uint32_t index, const VirtualTime& time) {
  return index == vpmu::msr::IA32_APERF.value() ? time.core_ran() : time.ran();
}
/// The machine check registers of each bank: control, status, address, what else is known. SDM 3B 15.3. No machine
/// check ever happens here. IA32_MCG_CAP tells the number of banks, and nothing else.
constexpr std::uint32_t registers_of_bank = 4, banks = 9;

/// A register that is only stored here.
struct Kept {
  enum class Rule : std::uint8_t {
    bits,         ///< Setting a bit outside `writable` is #GP.
    canonical,    ///< Must be a canonical address.
    ignored,      ///< Writes change nothing.
    read_only,    ///< Writes are #GP.
    all_or_none,  ///< All bits are set or none.
  };
  std::uint32_t index;
  Rule rule;
  std::uint64_t writable{};
  std::uint64_t reset{};
  CpuFeature needs{CpuFeature::baseline};  ///< Without this feature the register does not exist.
};
constexpr std::array kept{
    Kept{.index = 0x17, .rule = Kept::Rule::bits},                              // IA32_PLATFORM_ID: slot 0
    Kept{.index = 0x8B, .rule = Kept::Rule::ignored},                           // IA32_BIOS_SIGN_ID
    Kept{.index = 0xCE, .rule = Kept::Rule::read_only},                         // MSR_PLATFORM_INFO
    Kept{.index = 0x199, .rule = Kept::Rule::bits, .writable = 0x1'0000'FFFF},  // IA32_PERF_CTL: changes nothing
    Kept{.index = vpmu::msr::IA32_MCG_CAP.value(), .rule = Kept::Rule::read_only, .reset = banks},
    Kept{.index = vpmu::msr::IA32_MCG_STATUS.value(), .rule = Kept::Rule::bits, .writable = 0x7},
    Kept{.index = 0xFE, .rule = Kept::Rule::bits},                            // IA32_MTRRCAP: no ranges
    Kept{.index = 0x174, .rule = Kept::Rule::bits, .writable = 0xFFFF'FFFF},  // IA32_SYSENTER_CS
    Kept{.index = 0x175, .rule = Kept::Rule::canonical},                      // IA32_SYSENTER_ESP
    Kept{.index = 0x176, .rule = Kept::Rule::canonical},                      // IA32_SYSENTER_EIP
    Kept{.index = vpmu::msr::IA32_PAT.value(),
         .rule = Kept::Rule::bits,
         .writable = 0x0707'0707'0707'0707,
         .reset = 0x0007'0406'0007'0406},
    Kept{.index = 0x2FF,
         .rule = Kept::Rule::bits,
         .writable = 0xCFF,
         .reset = 0x806},                                                     // IA32_MTRR_DEF_TYPE: on, write-back
    Kept{.index = 0xC000'0081, .rule = Kept::Rule::bits, .writable = ~0ULL},  // IA32_STAR
    Kept{.index = 0xC000'0082, .rule = Kept::Rule::canonical},                // IA32_LSTAR
    Kept{.index = 0xC000'0083, .rule = Kept::Rule::canonical},                // IA32_CSTAR
    Kept{.index = 0xC000'0084, .rule = Kept::Rule::bits, .writable = 0xFFFF'FFFF},  // IA32_FMASK
    Kept{.index = 0xC000'0102, .rule = Kept::Rule::canonical},                      // IA32_KERNEL_GS_BASE
    Kept{.index = vpmu::msr::IA32_TSC_AUX.value(),
         .rule = Kept::Rule::bits,
         .writable = 0xFFFF'FFFF,
         .needs = CpuFeature::rdtscp},
    Kept{.index = 0xDA0, .rule = Kept::Rule::bits, .needs = CpuFeature::xsaves},  // IA32_XSS: no component of it
};

/// Of a bank: address and what else is known hold any value, as the guest's test of them expects; the control is all
/// ones or all zeros for each bit, of which there are up to 64; a status can only be cleared.
constexpr Kept bank_status{.index = 0, .rule = Kept::Rule::bits};
constexpr Kept bank_other{.index = 0, .rule = Kept::Rule::bits, .writable = ~0ULL};
constexpr Kept bank_control{.index = 0, .rule = Kept::Rule::all_or_none};

const Kept* find_kept(const SoftState& state, std::uint32_t index) {
  if (!state.msrs.contains(index)) return nullptr;
  if (const std::uint32_t i = index - vpmu::msr::IA32_MC0_CTL.value(); i < banks * registers_of_bank) {
    const std::uint32_t which = i % registers_of_bank;
    return which == 0 ? &bank_control : which == 1 ? &bank_status : &bank_other;
  }
  const auto* const row = std::ranges::find(kept, index, &Kept::index);
  return row == kept.end() ? nullptr : row;
}

bool may_hold(const Kept& row, std::uint64_t value) {
  switch (row.rule) {
    case Kept::Rule::bits: return (value & ~row.writable) == 0;
    case Kept::Rule::canonical: return vpmu::is_canonical(value, 48);
    case Kept::Rule::all_or_none: return value == 0 || value == ~0ULL;
    case Kept::Rule::ignored:
    case Kept::Rule::read_only: return true;
  }
  return false;
}

}  // namespace

MsrUnit::MsrUnit(SoftState& state, InterruptUnit& interrupts, const GuestFeatures& features)
    : s_{&state}, interrupts_{&interrupts} {
  for (const Kept& row : kept)
    if (features.has(row.needs)) s_->msrs.try_emplace(row.index, row.reset);
  s_->msrs.try_emplace(vpmu::msr::IA32_TSC_ADJUST.value(), 0);
  for (const std::uint32_t index : {vpmu::msr::IA32_MPERF.value(), vpmu::msr::IA32_APERF.value()})
    s_->msrs.try_emplace(index, 0);
  for (std::uint32_t i = 0; i < banks * registers_of_bank; ++i)
    s_->msrs.try_emplace(vpmu::msr::IA32_MC0_CTL.value() + i, 0);
}

vpmu::MsrReadResult MsrUnit::read(std::uint32_t index) {
  const auto ok = [](std::uint64_t value) { return vpmu::MsrReadResult{.status = MsrStatus::ok, .value = value}; };
  switch (index) {
    case vpmu::msr::IA32_TIME_STAMP_COUNTER.value(): return ok(interrupts_->time().tsc());
    case vpmu::msr::IA32_APIC_BASE.value(): return ok(s_->sregs.apic_base);
    case vpmu::msr::IA32_EFER.value(): return ok(s_->sregs.efer);
    default: break;
  }
  if (const auto segment = segment_of_base_msr(index)) return ok((s_->sregs.*segment).base);
  const auto found = s_->msrs.find(index);
  if (is_performance(index)) return ok(found->second + performance(index, interrupts_->time()));
  return found == s_->msrs.end() ? interrupts_->rdmsr(index) : ok(found->second);
}

MsrStatus MsrUnit::set(std::uint32_t index, std::uint64_t value) {
  const Kept* const row = find_kept(*s_, index);
  if (row == nullptr) return write(index, value);
  s_->msrs[index] = value;
  return MsrStatus::ok;
}

MsrStatus MsrUnit::write(std::uint32_t index, std::uint64_t value) {
  const auto set = [](__u64& to, std::uint64_t from, bool is_legal) {
    if (is_legal) to = from;
    return is_legal ? MsrStatus::ok : MsrStatus::gp;
  };
  switch (index) {
    case vpmu::msr::IA32_TIME_STAMP_COUNTER.value():
      s_->msrs[vpmu::msr::IA32_TSC_ADJUST.value()] += value - interrupts_->time().tsc();
      return set_tsc(value);
    case vpmu::msr::IA32_TSC_ADJUST.value():
      return set_tsc(interrupts_->time().tsc() + value -
                     std::exchange(s_->msrs[vpmu::msr::IA32_TSC_ADJUST.value()], value));
    case vpmu::msr::IA32_APIC_BASE.value(): return write_apic_base(value);
    case vpmu::msr::IA32_EFER.value(): return write_efer(value);
    default: break;
  }
  if (const auto segment = segment_of_base_msr(index))
    return set((s_->sregs.*segment).base, value, vpmu::is_canonical(value, 48));
  if (is_performance(index)) {
    s_->msrs[index] = value - performance(index, interrupts_->time());
    return MsrStatus::ok;
  }
  const Kept* const row = find_kept(*s_, index);
  if (row == nullptr) return interrupts_->wrmsr(index, value);
  if (row->rule == Kept::Rule::ignored) return MsrStatus::ok;
  const bool is_legal = row->rule != Kept::Rule::read_only && may_hold(*row, value);
  return set(s_->msrs[index], value, is_legal);
}

bool MsrUnit::is_confined(std::uint32_t index) {
  return index != vpmu::msr::IA32_APIC_BASE.value() && index != vpmu::msr::IA32_EFER.value() &&
         segment_of_base_msr(index) == nullptr;
}

bool MsrUnit::restore(std::uint32_t index, std::uint64_t value) {
  const Kept* const row = find_kept(*s_, index);
  const bool is_legal =
      index == vpmu::msr::IA32_TSC_ADJUST.value() || is_performance(index) || (row != nullptr && may_hold(*row, value));
  if (is_legal) s_->msrs[index] = value;
  return is_legal;
}

MsrStatus MsrUnit::set_tsc(std::uint64_t value) {
  interrupts_->time().set_tsc(value);
  interrupts_->tsc_changed();
  return MsrStatus::ok;
}

// SDM 3A 2.2.1: LMA follows CR0.PG; LME cannot change while paging is on.
MsrStatus MsrUnit::write_efer(std::uint64_t value) {
  const std::uint64_t now = s_->sregs.efer;
  const bool changes_mode = x86::cr0::PG::test(s_->sregs.cr0) && ((value ^ now) & x86::efer::LME::mask) != 0;
  if ((value & ~efer_known) != 0 || changes_mode) return MsrStatus::gp;
  s_->sregs.efer = (value & ~x86::efer::LMA::mask) | (now & x86::efer::LMA::mask);
  return MsrStatus::ok;
}

// SDM 3A 10.12.5: x2APIC mode can only be left by disabling the APIC, and entered only from xAPIC mode.
MsrStatus MsrUnit::write_apic_base(std::uint64_t value) {
  const std::uint64_t now = s_->sregs.apic_base;
  const bool enabled = x86::apic_base::EN::test(value), x2apic = x86::apic_base::EXTD::test(value);
  if ((value & ~x86::apic_base::defined) != 0 || (x2apic && !enabled)) return MsrStatus::gp;
  if (x2apic && !x86::apic_base::EN::test(now)) return MsrStatus::gp;
  if (x86::apic_base::EXTD::test(now) && !x2apic && enabled) return MsrStatus::gp;
  s_->sregs.apic_base = value | (now & x86::apic_base::BSP::mask);
  // SDM 3A 10.4.3: a disabled APIC loses its settings, its timer and its requests.
  if (!enabled) {
    s_->apic.reset(s_->id);
    interrupts_->reset();
  }
  return MsrStatus::ok;
}

}  // namespace vmm
