#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "vcpu/kick_watch.hpp"

namespace vmm {

/// One named counter at one moment. Names are lower case, parts joined by dots: "exits.port_read".
struct Statistic {
  std::string name;
  std::uint64_t value;
};

/// The counters of one vCPU, in a fixed order.
struct VcpuStatistics {
  unsigned id;
  std::vector<Statistic> counters;
};

/// Adds "vcpu.late_kicks" and "vcpu.max_kick_us".
void add_kicks(std::vector<Statistic>& counters, const KickWatch& watch);

/// All counters of a machine at one moment; vCPUs are read one after the other.
struct MachineStatistics {
  std::vector<Statistic> machine;
  std::vector<VcpuStatistics> vcpus;
};

/// {"machine": {name: value}, "vcpus": [{"id": 0, name: value}]} on one line, without a line end.
std::string to_json(const MachineStatistics& statistics);

}  // namespace vmm
