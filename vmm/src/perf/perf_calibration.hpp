#pragma once
#include <cstdint>
#include <string>

#include "perf/perf_host.hpp"

namespace vmm {

/// What a host's counters were found to be worth.
struct PerfCalibration {
  std::uint64_t late_instructions{};    ///< The latest kick, in instructions behind the overflow that it is for,
  std::uint64_t late_cycles{};          ///< and in cycles.
  std::uint64_t margin_instructions{};  ///< How long before an overflow the guest must be stopped to be there in time.
  std::uint64_t margin_cycles{};
  bool lands{};       ///< The margin is short enough to go through it instruction by instruction.
  bool is_nearest{};  ///< The host's events are not quite those of the guest.
};

/// The longest way before each overflow that the engine goes in place of the host.
constexpr std::uint64_t longest_margin = 65'536;

/// Tries the counters of the calling thread on loops of known length, in the host's user mode: some milliseconds.
/// Fails, with the reason and advice, where perf is not allowed, where there is no PMU, where events of the guest count
/// the host too (as nested AMD hosts do), where counts are wrong, where events have to take turns, and where overflows
/// do not kick.
Result<PerfCalibration> calibrate(PerfHost& host);

/// What was found, in one line for people.
std::string describe(const PerfCalibration& found);

}  // namespace vmm
