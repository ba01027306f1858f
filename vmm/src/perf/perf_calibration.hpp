#pragma once
#include <cstdint>
#include <string>

#include "perf/perf_host.hpp"

namespace vmm {

/// What calibrate() has found out about a host's counters.
struct PerfCalibration {
  std::uint64_t late_instructions{};    ///< The latest kick, in instructions after the overflow that caused it.
  std::uint64_t late_cycles{};          ///< The latest kick, in cycles after its overflow.
  std::uint64_t margin_instructions{};  ///< How long before an overflow the guest must be stopped so as not to miss it.
  std::uint64_t margin_cycles{};
  bool lands{};       ///< The margin is short enough to go through it instruction by instruction.
  bool is_nearest{};  ///< The host's events are not quite those of the guest.
};

/// The longest stretch before an overflow, in events, that the engine runs in place of the host.
constexpr std::uint64_t max_margin = 65'536;

/// Tests the calling thread's counters on loops of known length, in the host's user mode.
/// Cost: some milliseconds.
/// Fails, with the reason and advice, if perf is not allowed, if there is no PMU, if guest-only events count the host,
/// too (as on nested AMD hosts), if counts are wrong, if events are multiplexed, or if overflows do not kick.
Result<PerfCalibration> calibrate(PerfHost& host);

/// What was found, in one line for people.
std::string describe(const PerfCalibration& found);

}  // namespace vmm
