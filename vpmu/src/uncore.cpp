#include "vpmu/uncore.hpp"

#include <algorithm>

#include "vpmu/bits.hpp"

namespace vpmu {
namespace {

constexpr unsigned fifths_per_tick = 5;

/// The status of WRMSR of `value` to an MSR of `row`; null: the MSR is unknown.
MsrStatus judge(const UncoreMsr* row, std::uint64_t value) {
  if (row == nullptr) return MsrStatus::unknown;
  const bool illegal = row->write == UncoreWrite::faults || (value & ~row->legal) != 0;
  return illegal ? MsrStatus::gp : MsrStatus::ok;
}

}  // namespace

Uncore::Uncore(const UncoreDesc& desc) : desc_{&desc} {
  auto* at = values_.begin();
  for (const UncoreMsr& row : desc.msrs) at = std::fill_n(at, row.count, row.reset);
}

std::optional<Uncore::Place> Uncore::find(MsrIndex index) const {
  std::size_t at = 0;
  for (const UncoreMsr& row : desc_->msrs) {
    const std::uint32_t i = index.value() - row.first.value();
    if (i < row.count) return Place{.row = &row, .at = at + i};
    at += row.count;
  }
  return std::nullopt;
}

MsrReadResult Uncore::rdmsr(MsrIndex index) const {
  const auto place = find(index);
  if (!place) return {};
  return {.status = MsrStatus::ok, .value = values_[place->at]};
}

MsrStatus Uncore::check_wrmsr(MsrIndex index, std::uint64_t value) const {
  const auto place = find(index);
  return judge(place ? place->row : nullptr, value);
}

MsrStatus Uncore::wrmsr(MsrIndex index, std::uint64_t value) {
  const auto place = find(index);
  const MsrStatus status = judge(place ? place->row : nullptr, value);
  if (status != MsrStatus::ok) return status;
  if (place->row->write == UncoreWrite::clears)
    value_of(desc_->clock.global_status) &= ~value;
  else
    values_[place->at] = value & ~place->row->transient;
  if ((value & place->row->starts) != 0) ++unserved_selects_;
  return MsrStatus::ok;
}

bool Uncore::counts() const {
  const UncoreClock& c = desc_->clock;
  return (value_of(c.control) & c.enable) != 0 && (value_of(c.global_ctrl) & c.global_enable) == c.global_enable;
}

CoreSet Uncore::advance(std::uint64_t tsc_ticks) {
  if (!counts()) return 0;
  const UncoreClock& c = desc_->clock;
  __extension__ using wide = unsigned __int128;
  const wide passed = wide{tsc_ticks} * c.ticks_per_5_tsc + fifths_;
  fifths_ = static_cast<std::uint64_t>(passed % fifths_per_tick);
  const wide sum = value_of(c.counter) + passed / fifths_per_tick;
  value_of(c.counter) = static_cast<std::uint64_t>(sum) & low_bits(c.width);
  return (sum >> c.width) != 0 ? overflow() : 0;
}

// SDM 3B 18.8.2.1, 18.9.6: the status, the freeze, and the cores that global_ctrl names.
CoreSet Uncore::overflow() {
  const UncoreClock& c = desc_->clock;
  const bool interrupts = (value_of(c.control) & c.interrupt) != 0;
  value_of(c.global_status) |= c.overflowed | c.changed | (interrupts ? c.pmi : 0);
  if (!interrupts) return 0;
  std::uint64_t& global = value_of(c.global_ctrl);
  const CoreSet cores = (global >> c.cores_shift) & low_bits(c.cores);
  if ((global & c.freeze) != 0) {
    global &= ~c.global_enables;
    value_of(c.counter) = 0;  // hardware stops at the overflow itself; this call may come later
  }
  return cores;
}

std::optional<std::uint64_t> Uncore::until_overflow() const {
  if (!counts()) return std::nullopt;
  const UncoreClock& c = desc_->clock;
  const std::uint64_t cores = (value_of(c.global_ctrl) >> c.cores_shift) & low_bits(c.cores);
  if ((value_of(c.control) & c.interrupt) == 0 || cores == 0) return std::nullopt;
  __extension__ using wide = unsigned __int128;
  const wide fifths = (wide{low_bits(c.width)} + 1 - value_of(c.counter)) * fifths_per_tick - fifths_;
  return static_cast<std::uint64_t>((fifths + c.ticks_per_5_tsc - 1) / c.ticks_per_5_tsc);
}

}  // namespace vpmu
