#include "machine/statistics.hpp"

#include <fmt/format.h>

namespace vmm {
namespace {

// Names come from our own code and need no escaping.
std::string members(const std::vector<Statistic>& counters) {
  std::string text;
  for (const auto& counter : counters) {
    text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", counter.name, counter.value);
  }
  return text;
}

}  // namespace

void add_kicks(std::vector<Statistic>& counters, const KickWatch& watch) {
  const KickWatch::Late late = watch.late();
  counters.push_back({"vcpu.late_kicks", late.kicks});
  counters.push_back(
      {"vcpu.longest_kick_us",
       static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(late.longest).count())});
}

std::string to_json(const MachineStatistics& statistics) {
  std::string vcpus;
  for (const auto& vcpu : statistics.vcpus) {
    vcpus += fmt::format("{}{{\"id\": {}{}{}}}", vcpus.empty() ? "" : ", ", vcpu.id, vcpu.counters.empty() ? "" : ", ",
                         members(vcpu.counters));
  }
  return fmt::format(R"({{"machine": {{{}}}, "vcpus": [{}]}})", members(statistics.machine), vcpus);
}

}  // namespace vmm
