#pragma once
#include <algorithm>
#include <span>
#include <tuple>

#include "vpmu/event.hpp"

/// Compile-time checks of an event table; each table asserts them beside its rows.
namespace vpmu::events {

/// The order of a table: by what PERFEVTSEL holds, plain forms first, then by name.
constexpr bool precedes(const EventDesc& a, const EventDesc& b) {
  const auto key = [](const EventDesc& e) {
    return std::tuple{e.code, e.umask, e.cmask, e.inv, e.edge, e.any, e.msr_value, e.name};
  };
  return key(a) < key(b);
}

/// Strictly ascending, so that classify() can search it and no row is there twice.
constexpr bool is_sorted_and_unique(std::span<const EventDesc> rows) {
  return std::ranges::adjacent_find(rows, [](const auto& a, const auto& b) { return !precedes(a, b); }) == rows.end();
}

/// A row runs on some of PMC0..7, or is the placeholder (code 0) of one of three fixed counters, never both.
/// SDM 3B 18.2.2, 18.2.3.
constexpr bool has_possible_counters(std::span<const EventDesc> rows) {
  return std::ranges::all_of(rows, [](const EventDesc& e) {
    const unsigned gp = e.counters & pmc_mask;
    const unsigned fixed = e.counters & fixed_mask;
    const bool is_placeholder = fixed == 0x100 || fixed == 0x200 || fixed == 0x400;
    return e.counters == (gp | fixed) && (e.code == 0 ? gp == 0 && is_placeholder : gp != 0 && fixed == 0);
  });
}

/// A precise event runs on a counter that can arm PEBS: PMC0..3 (rule O5).
constexpr bool has_pebs_on_pebs_counters(std::span<const EventDesc> rows) {
  return std::ranges::all_of(rows,
                             [](const EventDesc& e) { return e.pebs == PebsAbility::no || (e.counters & 0xF) != 0; });
}

/// The rows of (code, umask), the plain form first; empty when there is none. Binary search.
constexpr std::span<const EventDesc> rows_of(std::span<const EventDesc> rows, std::uint8_t code, std::uint8_t umask) {
  // Not equal_range: clang 14 does not take the subrange that libstdc++ returns.
  const auto select = [](const EventDesc& e) { return std::tuple{e.code, e.umask}; };
  const auto first = std::ranges::lower_bound(rows, std::tuple{code, umask}, {}, select);
  const auto last = std::ranges::upper_bound(rows, std::tuple{code, umask}, {}, select);
  return {first, last};
}

/// All events of SDM 3B table 18-1 are there and count what their names say.
constexpr bool has_architectural_events(std::span<const EventDesc> rows) {
  const auto has = [rows](std::uint8_t code, std::uint8_t umask, Counts counts) {
    const std::span<const EventDesc> found = rows_of(rows, code, umask);
    return !found.empty() && found.front().counts == counts;
  };
  return has(0x3C, 0x00, Counts::cycles) && has(0xC0, 0x00, Counts::instructions) &&
         has(0x3C, 0x01, Counts::bus_cycles) && has(0x2E, 0x4F, Counts::llc_references) &&
         has(0x2E, 0x41, Counts::llc_misses) && has(0xC4, 0x00, Counts::branches) &&
         has(0xC5, 0x00, Counts::mispredicts);
}

}  // namespace vpmu::events
