#pragma once
#include "vpmu/counts.hpp"

namespace vmm {

/// Whether the clock source counts an event: its clocks, and an instruction in each cycle, which is an estimate. All
/// other events read 0, because time says nothing about them.
constexpr bool clock_counts(vpmu::Counts counts) {
  return counts == vpmu::Counts::instructions || vpmu::describe(counts).told_by == vpmu::ToldBy::clock;
}

/// The same for an event with CMASK, INV or EDGE (rule C4). It is counted if its condition holds in every cycle in
/// which there is one event, as that of CMASK=1 does.
constexpr bool clock_counts(vpmu::Counts counts, const vpmu::EventSpec& spec) {
  // Rule P18: with INV and a CMASK that no cycle reaches, instructions and micro-operations count every cycle.
  constexpr unsigned unreachable = 10;
  if (spec.inv && spec.cmask >= unreachable && !spec.edge)
    return clock_counts(counts) || vpmu::describe(counts).told_by == vpmu::ToldBy::slots;
  if (!clock_counts(counts) || spec.edge) return false;
  return spec.cmask == 0 || (spec.cmask > 1) == spec.inv;
}

}  // namespace vmm
