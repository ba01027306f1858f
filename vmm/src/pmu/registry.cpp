#include "pmu/registry.hpp"

#include <fmt/format.h>

#include <array>

#include "perf/perf_calibration.hpp"
#include "sources/clock_source.hpp"
#include "sources/exact_source.hpp"
#include "sources/perf_source.hpp"
#include "sources/step_source.hpp"

namespace vmm {
namespace {

Result<std::unique_ptr<CountSource>> make_clock(const SourceParts& parts) {
  VMM_ASSIGN(auto timer, parts.services.make_timer());
  return std::make_unique<ClockSource>(std::move(timer), parts.breakpoints, parts.view, parts.generation, parts.seed);
}

Result<std::unique_ptr<CountSource>> make_step(const SourceParts& parts) {
  VMM_ASSIGN(auto timer, parts.services.make_timer());
  return std::make_unique<StepSource>(std::move(timer), parts.breakpoints, parts.view, parts.generation);
}

Result<std::unique_ptr<ExactSource>> make_engine(const SourceParts& parts, const SourceOptions& options) {
  VMM_ASSIGN(auto timer, parts.services.make_timer());
  return std::make_unique<ExactSource>(std::move(timer), parts.breakpoints, parts.view, parts.memory, parts.generation,
                                       options, parts.foreign_msr, parts.storable, parts.services.caches,
                                       parts.services.cpu);
}

Result<std::unique_ptr<CountSource>> make_exact(const SourceParts& parts) {
  VMM_ASSIGN(auto engine, make_engine(parts, parts.options));
  engine->stay_in_pauses();
  return engine;
}

// Its cycles are the host's.
Result<std::unique_ptr<CountSource>> make_perf(const SourceParts& parts) {
  auto host = parts.services.make_perf_host();
  VMM_ASSIGN(const PerfCalibration calibration, calibrate(*host));
  SourceOptions options = parts.options;
  options.time = TimeModel::instructions;
  VMM_ASSIGN(auto engine, make_engine(parts, options));
  return std::make_unique<PerfSource>(std::move(host), calibration, std::move(engine), parts.generation, parts.log);
}

constexpr std::array source_rows{
    SourceRow{ClockSource::description, "estimates from time on the vCPU; works on every host", make_clock},
    SourceRow{PerfSource::description,
              "the host's PMU, and the engine near overflows and for what the host cannot count", make_perf},
    SourceRow{ExactSource::description,
              "every instruction, by an engine that runs the guest's code while a counter counts", make_exact},
    SourceRow{StepSource::description,
              "every instruction by single-step: exact, for tests, far too slow for a whole system", make_step},
};

}  // namespace

std::span<const SourceRow> all_sources() { return source_rows; }

const SourceRow* find_source(std::string_view name) {
  for (const SourceRow& row : source_rows)
    if (row.traits.name == name) return &row;
  return nullptr;
}

Result<std::unique_ptr<CountSource>> make_source(std::string_view name, const SourceParts& parts) {
  if (parts.options.instead) return parts.options.instead(parts);
  if (const SourceRow* row = find_source(name)) {
    auto made = row->make(parts);
    if (made || !parts.options.was_open) return made;
    parts.log.warning("source {} is not available for this vCPU: {}; source clock counts instead, and only estimates",
                      name, describe(made.error()));
    return make_clock(parts);
  }
  std::string known;
  for (const SourceRow& row : source_rows) known += fmt::format("{}{}", known.empty() ? "" : ", ", row.traits.name);
  return usage_error(fmt::format("unknown source '{}'", printable(name)), fmt::format("known sources: {}", known));
}

}  // namespace vmm
