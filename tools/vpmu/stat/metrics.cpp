#include "stat/metrics.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "support/letters.hpp"

namespace vmm::tool {
namespace {

enum class Uses { cycles, topdown };

constexpr std::string_view cycles = "cycles", instructions = "instructions", issued = "uops_issued.any",
                           retired = "uops_retired.retire_slots", undelivered = "idq_uops_not_delivered.core",
                           recovery = "int_misc.recovery_cycles";

/// The counts by the names above.
class Counts {
 public:
  explicit Counts(std::span<const StatCount> counts) : counts_{counts} {}
  [[nodiscard]] double operator[](std::string_view name) const { return static_cast<double>(*find(name)); }
  [[nodiscard]] std::optional<std::uint64_t> find(std::string_view name) const {
    const auto found = std::ranges::find(counts_, name, &StatCount::name);
    return found == counts_.end() ? std::nullopt : found->value;
  }

 private:
  std::span<const StatCount> counts_;
};

/// A core has four slots in each cycle, in which a micro-operation may leave its front end.
double slots(const Counts& counts) { return 4 * counts[cycles]; }

constexpr double in_percent = 100;
double frontend(const Counts& counts) { return in_percent * counts[undelivered] / slots(counts); }
double retiring(const Counts& counts) { return in_percent * counts[retired] / slots(counts); }
double speculation(const Counts& counts) {
  return in_percent * (counts[issued] - counts[retired] + 4 * counts[recovery]) / slots(counts);
}

/// Yasin, A Top-Down Method for Performance Analysis and Counters Architecture, ISPASS 2014: table 1, level 1.
struct Metric {
  std::string_view name;
  Uses uses{};
  std::string_view unit;
  double (*value)(const Counts&);
};
constexpr std::array<Metric, 6> all{{
    {"IPC", Uses::cycles, "", [](const Counts& c) { return c[instructions] / c[cycles]; }},
    {"CPI", Uses::cycles, "", [](const Counts& c) { return c[cycles] / c[instructions]; }},
    {"tma_frontend_bound", Uses::topdown, "%", frontend},
    {"tma_bad_speculation", Uses::topdown, "%", speculation},
    {"tma_retiring", Uses::topdown, "%", retiring},
    {"tma_backend_bound", Uses::topdown, "%",
     [](const Counts& c) { return in_percent - frontend(c) - speculation(c) - retiring(c); }},
}};

std::vector<std::string_view> needed_by(const Metric& metric) {
  if (metric.uses == Uses::cycles) return {cycles, instructions};
  return {cycles, undelivered, issued, retired, recovery};
}

bool equals(std::string_view a, std::string_view b) { return in_small_letters(a) == in_small_letters(b); }

const Metric& metric_of(std::string_view name) { return *std::ranges::find(all, name, &Metric::name); }

}  // namespace

Result<std::vector<std::string>> choose_metrics(std::string_view list, const vpmu::GenerationDesc& generation) {
  const bool has_topdown = vpmu::find_event(generation, "IDQ_UOPS_NOT_DELIVERED.CORE") != nullptr;
  std::vector<std::string> chosen;
  const auto choose = [&](std::string_view name) {
    bool found = false;
    for (const Metric& metric : all) {
      const bool in_group = metric.uses == Uses::topdown && equals(name, topdown_metrics);
      if ((!in_group && !equals(name, metric.name)) || (metric.uses == Uses::topdown && !has_topdown)) continue;
      found = true;
      if (std::ranges::find(chosen, metric.name) == chosen.end()) chosen.emplace_back(metric.name);
    }
    return found;
  };
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view name = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    if (!choose(name))
      return usage_error(fmt::format("{} has no metric {}", generation.name, printable(std::string{name})),
                         has_topdown ? "there are IPC, CPI, TopdownL1, tma_frontend_bound, tma_bad_speculation, "
                                       "tma_retiring and tma_backend_bound"
                                     : "there are IPC and CPI");
  }
  return chosen;
}

std::vector<std::string> events_of(std::span<const std::string> metrics, std::span<const std::string> there) {
  std::vector<std::string> events;
  for (const std::string& name : metrics)
    for (const std::string_view event : needed_by(metric_of(name)))
      if (std::ranges::find(there, event) == there.end() && std::ranges::find(events, event) == events.end())
        events.emplace_back(event);
  return events;
}

std::vector<StatMetric> compute_metrics(std::span<const std::string> metrics, const StatDocument& document) {
  const Counts by_name{document.events};
  const bool has_cycles = document.time != "instructions";
  std::vector<StatMetric> computed;
  for (const std::string& name : metrics) {
    const Metric& metric = metric_of(name);
    StatMetric& one = computed.emplace_back(StatMetric{.name = name, .unit = std::string{metric.unit}, .value = {}});
    const auto needed = needed_by(metric);
    // Of nothing there is no share.
    const auto is_some = [&](std::string_view event) {
      const auto value = by_name.find(event);
      const bool divides = event == cycles || event == instructions;
      return value && (*value != 0 || !divides);
    };
    if (has_cycles && std::ranges::all_of(needed, is_some)) one.value = metric.value(by_name);
  }
  return computed;
}

}  // namespace vmm::tool
