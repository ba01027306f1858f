#include "machine/statistics.hpp"

#include <nlohmann/json.hpp>

namespace vmm {
namespace {

using Json = nlohmann::ordered_json;

void add_members(Json& object, const std::vector<Statistic>& counters) {
  for (const Statistic& counter : counters) object[counter.name] = counter.value;
}

}  // namespace

void add_kicks(std::vector<Statistic>& counters, const KickWatch& watch) {
  const KickWatch::Late late = watch.late();
  counters.push_back({"vcpu.late_kicks", late.kicks});
  counters.push_back(
      {"vcpu.longest_kick_us",
       static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(late.max).count())});
}

std::string to_json(const MachineStatistics& statistics) {
  Json machine = Json::object(), vcpus = Json::array();
  add_members(machine, statistics.machine);
  for (const VcpuStatistics& each : statistics.vcpus) {
    Json vcpu = {{"id", each.id}};
    add_members(vcpu, each.counters);
    vcpus.push_back(std::move(vcpu));
  }
  return Json{{"machine", std::move(machine)}, {"vcpus", std::move(vcpus)}}.dump();
}

}  // namespace vmm
