#include "perf/perf_calibration.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace vmm {
namespace {

constexpr std::uint64_t iterations = 250'000;
/// What may be counted besides a loop: system calls around it, and an instruction for each interrupt.
constexpr std::uint64_t max_extra = 5'000;
constexpr unsigned kicks_tried = 32;
constexpr std::uint64_t kick_period = 20'000;
/// The shortest margins. No host is known to kick later: they are those of rr, which stops programs at exact places on
/// many CPUs.
constexpr std::uint64_t min_margin_intel = 128, min_margin_amd = 10'000;

constexpr auto use_another = "count by the source exact or clock";

/// The host's event for what calibration counts: the same on each guest.
HostEvent event_of(const HostCpu& cpu, vpmu::Counts counts) {
  return translate(cpu, *vpmu::all_generations().front(),
                   {.counts = counts, .spec = {}, .fixed = true, .per_cycle = false})
      .event;
}

/// How much an event counts over the loop, and whether it had a counter all the time.
Result<PerfReading> count_loop(PerfHost& host, const PerfEventSpec& spec) {
  VMM_ASSIGN(const auto event, host.open(spec));
  VMM_TRY(event->enable());
  VMM_ASSIGN(const PerfReading before, event->read());
  host.run_loop(iterations);
  VMM_ASSIGN(const PerfReading after, event->read());
  VMM_TRY(event->disable());
  return PerfReading{.value = after.value - before.value,
                     .enabled_ns = after.enabled_ns - before.enabled_ns,
                     .running_ns = after.running_ns - before.running_ns};
}

Result<void> expect_count(PerfHost& host, vpmu::Counts counts, std::uint64_t each, std::string_view name) {
  const PerfEventSpec spec{.event = event_of(host.cpu(), counts), .usr = true};
  VMM_ASSIGN(const PerfReading counted, count_loop(host, spec));
  if (counted.running_ns < counted.enabled_ns)
    return host_error(fmt::format("the host's counters are shared with others: one counted for only {} of {} ns",
                                  counted.running_ns, counted.enabled_ns),
                      0, "stop other perf sessions, and the host's NMI watchdog (sysctl kernel.nmi_watchdog=0)");
  const std::uint64_t expected = each * iterations;
  if (counted.value >= expected && counted.value <= expected + max_extra) return {};
  return host_error(fmt::format("the host's PMU counts wrong: {} for a loop of {} {}", counted.value, expected, name),
                    0, use_another);
}

Result<void> expect_guest_only(PerfHost& host) {
  const PerfEventSpec spec{
      .event = event_of(host.cpu(), vpmu::Counts::instructions), .usr = true, .os = true, .guest_only = true};
  VMM_ASSIGN(const PerfReading counted, count_loop(host, spec));
  if (counted.value == 0) return {};
  return host_error(
      fmt::format("events with exclude_host count the host, too: {} instructions outside any guest", counted.value), 0,
      std::string{"a virtual AMD machine does that; "} + use_another);
}

/// By how many events the latest of several kicks came after its overflow.
Result<std::uint64_t> latest_kick(PerfHost& host, vpmu::Counts counts) {
  VMM_ASSIGN(const auto event, host.open({.event = event_of(host.cpu(), counts), .usr = true}));
  VMM_TRY(event->enable());
  std::uint64_t latest = 0;
  for (unsigned n = 0; n < kicks_tried; ++n) {
    VMM_ASSIGN(const PerfReading before, event->read());
    VMM_TRY(event->set_period(kick_period));
    if (!host.run_loop_until_kicked(20 * kick_period))
      return host_error("the host's counters do not interrupt at overflow", 0,
                        std::string{"this PMU counts but cannot sample; "} + use_another);
    VMM_ASSIGN(const PerfReading after, event->read());
    VMM_TRY(event->set_period(no_period));
    const std::uint64_t passed = after.value - before.value;
    latest = std::max(latest, passed - std::min(passed, kick_period));
  }
  VMM_TRY(event->disable());
  return latest;
}

}  // namespace

Result<PerfCalibration> calibrate(PerfHost& host) {
  const HostCpu cpu = host.cpu();
  if (cpu.vendor == HostVendor::other) return host_error("the events of this host's CPU are not known", 0, use_another);
  VMM_TRY(expect_count(host, vpmu::Counts::instructions, PerfHost::loop_instructions, "instructions"));
  VMM_TRY(expect_count(host, vpmu::Counts::branches, PerfHost::loop_branches, "branches"));
  VMM_TRY(expect_guest_only(host));
  const std::uint64_t min = cpu.vendor == HostVendor::amd ? min_margin_amd : min_margin_intel;
  PerfCalibration found{.is_nearest = cpu.vendor == HostVendor::amd};
  VMM_ASSIGN(found.late_instructions, latest_kick(host, vpmu::Counts::instructions));
  VMM_ASSIGN(found.late_cycles, latest_kick(host, vpmu::Counts::cycles));
  found.lands = 2 * std::max(found.late_instructions, found.late_cycles) <= max_margin;
  found.margin_instructions = std::clamp(2 * found.late_instructions, min, max_margin);
  found.margin_cycles = std::clamp(2 * found.late_cycles, min, max_margin);
  return found;
}

std::string describe(const PerfCalibration& found) {
  return fmt::format(
      "counts loops right{}, leaves out the host, kicks up to {} instructions or {} cycles late: the engine takes over "
      "{} or {} before{}",
      found.is_nearest ? " by AMD's nearest events" : "", found.late_instructions, found.late_cycles,
      found.margin_instructions, found.margin_cycles,
      found.lands ? "" : "; too late to find the instructions of samples");
}

}  // namespace vmm
