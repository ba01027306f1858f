#include "pmu/source_choice.hpp"

#include <fmt/format.h>

#include "kvm/kick.hpp"
#include "perf/perf_calibration.hpp"
#include "sources/clock_source.hpp"
#include "sources/exact_source.hpp"
#include "sources/perf_source.hpp"

namespace vmm {
namespace {

constexpr std::string_view slow_ones =
    "exact slows the guest down while it counts, step is for tests, kvm gives the host's own PMU: ask for them by name";

SourceChoice take_clock(std::string_view not_perf) {
  return {.name = ClockSource::description.name,
          .why = fmt::format("clock, which estimates and works everywhere; not perf: {}; {}", not_perf, slow_ones)};
}

}  // namespace

SourceChoice choose_source(PerfHost* host) {
  if (host == nullptr)
    return {.name = ExactSource::description.name,
            .why =
                "exact: the engine that runs the guest counts every instruction; not perf: the guest does not run on "
                "the host's processor; not "
                "clock: it only estimates"};
  const auto found = calibrate(*host);
  if (!found) return take_clock(describe(found.error()));
  return {.name = PerfSource::description.name,
          .why = fmt::format("perf: the host's PMU {}; not clock: it only estimates; {}", describe(*found), slow_ones)};
}

SourceChoice choose_source(bool on_kvm) {
  if (!on_kvm) return choose_source(nullptr);
  const auto handled = install_kick_handler();
  if (!handled) return take_clock(describe(handled.error()));
  const auto host = make_linux_perf_host();
  return choose_source(host.get());
}

}  // namespace vmm
