#pragma once
#include <algorithm>
#include <cstdint>

#include "vpmu/counts.hpp"

namespace vmm {

/// What the clock source takes a count from.
enum class ClockBasis : std::uint8_t {
  none,  ///< Nothing: the event reads 0.
  time,  ///< The vCPU's time on the guest's clocks: an estimate as good as the clock.
  rate,  ///< A stated number of events per 1000 cycles: a convention, it says nothing about the program.
};

/// The clock source's estimate of one event.
struct ClockRate {
  ClockBasis basis{};
  std::uint32_t per_1000_cycles{};  ///< With `ClockBasis::rate` only.
  friend bool operator==(const ClockRate&, const ClockRate&) = default;
};

/// The clock source's rate for a plain event. The rates are those of an imaginary program that retires one instruction
/// per cycle, and agree with each other (below). They are published, so that readers know what a count is worth.
constexpr ClockRate clock_rate(vpmu::Counts counts) {
  const vpmu::CountsDesc& desc = vpmu::describe(counts);
  if (desc.told_by == vpmu::ToldBy::clock) return {ClockBasis::time, 0};
  return desc.usual == 0 ? ClockRate{} : ClockRate{ClockBasis::rate, desc.usual};
}

/// The clock source's rate for an event with CMASK, INV or EDGE (rule C4). Assumes evenly spread events: no two cycles
/// differ by more than one. A form whose condition holds in every cycle counts time: cycles, or the event's own clock
/// if it counts one.
constexpr ClockRate clock_rate(vpmu::Counts counts, const vpmu::EventSpec& spec) {
  const ClockRate plain = clock_rate(counts);
  if (plain.basis == ClockBasis::none || (spec.cmask == 0 && !spec.edge)) return plain;
  constexpr std::int64_t all = 1000;
  const std::int64_t events = plain.basis == ClockBasis::time ? all : plain.per_1000_cycles;
  const std::int64_t threshold = std::max<std::int64_t>(spec.cmask, 1);
  const std::int64_t reach = std::clamp<std::int64_t>(events - (threshold - 1) * all, 0, all);
  const std::int64_t hold = spec.inv && spec.cmask != 0 ? all - reach : reach;
  const std::int64_t counted = spec.edge ? std::min(hold, all - hold) : hold;
  if (counted == 0) return {};
  if (counted == all) return {ClockBasis::time, 0};
  return {ClockBasis::rate, static_cast<std::uint32_t>(counted)};
}

namespace clock_rates_check {
constexpr std::uint32_t of(vpmu::Counts counts) { return clock_rate(counts).per_1000_cycles; }
using enum vpmu::Counts;
static_assert(of(branches_taken) + of(branches_not_taken) == of(branches));
static_assert(of(branches_conditional) + of(branches_call) + of(branches_return) + of(branches_far) < of(branches));
static_assert(of(branches_near) + of(branches_far) == of(branches));
static_assert(of(branches_not_taken) < of(branches_conditional));
static_assert(of(mispredicts_conditional) + of(mispredicts_call) == of(mispredicts));
static_assert(of(mispredicts_not_taken) <= of(mispredicts_conditional) &&
              of(memory_instructions) <= of(loads) + of(stores));
static_assert(of(l1_hit) + of(lfb_hit) + of(l1_miss) == of(loads));
static_assert(of(l2_hit) + of(l2_miss) == of(l1_miss) && of(l3_hit) + of(l3_miss) == of(l2_miss));
static_assert(of(l1d_fills) >= of(l1_miss));
static_assert(of(llc_references) >= of(l2_miss) && of(llc_misses) >= of(l3_miss));
static_assert(of(loads) + of(stores) + of(branches) < of(instructions));
}  // namespace clock_rates_check

}  // namespace vmm
