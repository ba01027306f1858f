#include <cstdint>

#include "msr_table.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {

// SDM 3B 18.2.5: EAX is sign-extended from bit 31 to the counter's width, EDX is ignored.
void MsrEffects::write_pmc_sign_extended(Pmu& pmu, unsigned i, std::uint64_t value) {
  const auto extended = static_cast<std::int64_t>(static_cast<std::int32_t>(value));
  write_pmc_full(pmu, i, static_cast<std::uint64_t>(extended));
}

// A write never overflows the counter (rule O8), and it disarms (P20).
void MsrEffects::write_pmc_full(Pmu& pmu, unsigned i, std::uint64_t value) {
  const CounterId c = CounterId::gp(i);
  pmu.set_counter(c, value);
  pmu.clear_arming(c);
}

void MsrEffects::write_perfevtsel(Pmu& pmu, unsigned i, std::uint64_t value) {
  pmu.state_.perfevtsel[i] = value;
  pmu.decode_event(i);
  pmu.clear_arming(CounterId::gp(i));  // P20
}

// Bits outside the mask, PERFMON_AVAILABLE among them, ignore writes. SDM 3C table 35-2.
void MsrEffects::write_misc_enable(Pmu& pmu, unsigned, std::uint64_t value) {
  constexpr std::uint64_t writable = reg::misc_enable::writable;
  pmu.state_.misc_enable = (pmu.state_.misc_enable & ~writable) | (value & writable);
}

void MsrEffects::write_fixed_ctr(Pmu& pmu, unsigned i, std::uint64_t value) {
  pmu.set_counter(CounterId::fixed(i), value);
}

// Clears exactly the bits written; CTR_FRZ and LBR_FRZ end their freeze (Z4); an armed counter stays armed (P13).
void MsrEffects::write_global_ovf_ctrl(Pmu& pmu, unsigned, std::uint64_t value) { pmu.state_.global_status &= ~value; }

// Sets status bits: no PMI, no arming; CTR_FRZ and LBR_FRZ freeze (Z9).
void MsrEffects::write_global_status_set(Pmu& pmu, unsigned, std::uint64_t value) { pmu.state_.global_status |= value; }

// Bits between the fields are not there: they ignore writes. SDM 3B table 17-16.
void MsrEffects::write_lbr_info(Pmu& pmu, unsigned i, std::uint64_t value) {
  namespace info = reg::lbr_info;
  pmu.state_.lbr_info[i] =
      value & (info::CYCLES::mask | info::TSX_ABORT::mask | info::IN_TSX::mask | info::MISPRED::mask);
}

}  // namespace vpmu
