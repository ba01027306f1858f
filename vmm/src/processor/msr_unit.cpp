#include "processor/msr_unit.hpp"

#include <algorithm>
#include <array>

#include "vpmu/bits.hpp"
#include "vpmu/paging.hpp"

namespace vmm {
namespace {

using vpmu::bit;
using vpmu::MsrStatus;
using vpmu::exec::CpuFeature;

constexpr std::uint32_t msr_tsc = 0x10, msr_apic_base = 0x1B, msr_tsc_adjust = 0x3B, msr_pat = 0x277,
                        msr_efer = 0xC000'0080, msr_fs_base = 0xC000'0100, msr_gs_base = 0xC000'0101;
constexpr std::uint64_t cr0_pg = bit(31);

/// A register that is only stored here.
struct Kept {
  enum class Rule : std::uint8_t {
    bits,       ///< Setting a bit outside `writable` is #GP.
    canonical,  ///< Must be a canonical address.
    ignored,    ///< Writes change nothing.
  };
  std::uint32_t index;
  Rule rule;
  std::uint64_t writable{};
  std::uint64_t reset{};
  CpuFeature needs{CpuFeature::baseline};  ///< Without this feature the register does not exist.
};
constexpr std::array kept{
    Kept{.index = 0x17, .rule = Kept::Rule::bits},                            // IA32_PLATFORM_ID: slot 0
    Kept{.index = 0x8B, .rule = Kept::Rule::ignored},                         // IA32_BIOS_SIGN_ID
    Kept{.index = 0xFE, .rule = Kept::Rule::bits},                            // IA32_MTRRCAP: no ranges
    Kept{.index = 0x174, .rule = Kept::Rule::bits, .writable = 0xFFFF'FFFF},  // IA32_SYSENTER_CS
    Kept{.index = 0x175, .rule = Kept::Rule::canonical},                      // IA32_SYSENTER_ESP
    Kept{.index = 0x176, .rule = Kept::Rule::canonical},                      // IA32_SYSENTER_EIP
    Kept{.index = msr_pat, .rule = Kept::Rule::bits, .writable = 0x0707'0707'0707'0707, .reset = 0x0007'0406'0007'0406},
    Kept{.index = 0x2FF,
         .rule = Kept::Rule::bits,
         .writable = 0xCFF,
         .reset = 0x806},                                                     // IA32_MTRR_DEF_TYPE: on, write-back
    Kept{.index = 0xC000'0081, .rule = Kept::Rule::bits, .writable = ~0ULL},  // IA32_STAR
    Kept{.index = 0xC000'0082, .rule = Kept::Rule::canonical},                // IA32_LSTAR
    Kept{.index = 0xC000'0083, .rule = Kept::Rule::canonical},                // IA32_CSTAR
    Kept{.index = 0xC000'0084, .rule = Kept::Rule::bits, .writable = 0xFFFF'FFFF},  // IA32_FMASK
    Kept{.index = 0xC000'0102, .rule = Kept::Rule::canonical},                      // IA32_KERNEL_GS_BASE
    Kept{.index = msr_tsc_aux, .rule = Kept::Rule::bits, .writable = 0xFFFF'FFFF, .needs = CpuFeature::rdtscp},
    Kept{.index = 0xDA0, .rule = Kept::Rule::bits, .needs = CpuFeature::xsaves},  // IA32_XSS: no component of it
};

const Kept* find_kept(const SoftState& state, std::uint32_t index) {
  const auto* const row = std::ranges::find(kept, index, &Kept::index);
  return row == kept.end() || !state.msrs.contains(index) ? nullptr : row;
}

bool may_hold(const Kept& row, std::uint64_t value) {
  switch (row.rule) {
    case Kept::Rule::bits: return (value & ~row.writable) == 0;
    case Kept::Rule::canonical: return vpmu::is_canonical(value, 48);
    case Kept::Rule::ignored: return true;
  }
  return false;
}

}  // namespace

MsrUnit::MsrUnit(SoftState& state, InterruptUnit& interrupts, const GuestFeatures& features)
    : s_{&state}, interrupts_{&interrupts} {
  for (const Kept& row : kept)
    if (features.has(row.needs)) s_->msrs.try_emplace(row.index, row.reset);
  s_->msrs.try_emplace(msr_tsc_adjust, 0);
}

vpmu::MsrReadResult MsrUnit::read(std::uint32_t index) {
  const auto ok = [](std::uint64_t value) { return vpmu::MsrReadResult{.status = MsrStatus::ok, .value = value}; };
  switch (index) {
    case msr_tsc: return ok(interrupts_->time().tsc());
    case msr_apic_base: return ok(s_->sregs.apic_base);
    case msr_efer: return ok(s_->sregs.efer);
    case msr_fs_base: return ok(s_->sregs.fs.base);
    case msr_gs_base: return ok(s_->sregs.gs.base);
    default: break;
  }
  const auto found = s_->msrs.find(index);
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
    case msr_tsc: s_->msrs[msr_tsc_adjust] += value - interrupts_->time().tsc(); return set_tsc(value);
    case msr_tsc_adjust:
      return set_tsc(interrupts_->time().tsc() + value - std::exchange(s_->msrs[msr_tsc_adjust], value));
    case msr_apic_base: return write_apic_base(value);
    case msr_efer: return write_efer(value);
    case msr_fs_base: return set(s_->sregs.fs.base, value, vpmu::is_canonical(value, 48));
    case msr_gs_base: return set(s_->sregs.gs.base, value, vpmu::is_canonical(value, 48));
    default: break;
  }
  const Kept* const row = find_kept(*s_, index);
  if (row == nullptr) return interrupts_->wrmsr(index, value);
  return row->rule == Kept::Rule::ignored ? MsrStatus::ok : set(s_->msrs[index], value, may_hold(*row, value));
}

bool MsrUnit::restore(std::uint32_t index, std::uint64_t value) {
  const Kept* const row = find_kept(*s_, index);
  const bool is_legal = index == msr_tsc_adjust || (row != nullptr && may_hold(*row, value));
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
  const bool changes_mode = (s_->sregs.cr0 & cr0_pg) != 0 && ((value ^ now) & efer_lme) != 0;
  if ((value & ~efer_known) != 0 || changes_mode) return MsrStatus::gp;
  s_->sregs.efer = (value & ~efer_lma) | (now & efer_lma);
  return MsrStatus::ok;
}

// SDM 3A 10.12.5: x2APIC mode can only be left by disabling the APIC, and entered only from xAPIC mode.
MsrStatus MsrUnit::write_apic_base(std::uint64_t value) {
  const std::uint64_t now = s_->sregs.apic_base;
  const bool enabled = (value & apic_base_enabled) != 0, x2apic = (value & apic_base_extd) != 0;
  if ((value & ~apic_base_known) != 0 || (x2apic && !enabled)) return MsrStatus::gp;
  if (x2apic && (now & apic_base_enabled) == 0) return MsrStatus::gp;
  if ((now & apic_base_extd) != 0 && !x2apic && enabled) return MsrStatus::gp;
  s_->sregs.apic_base = value | (now & apic_base_bsp);
  // SDM 3A 10.4.3: a disabled APIC loses its settings, its timer and its requests.
  if (!enabled) {
    s_->apic.reset(s_->id);
    interrupts_->reset();
  }
  return MsrStatus::ok;
}

}  // namespace vmm
