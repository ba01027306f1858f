#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "support/result.hpp"

namespace vmm {

/// One PMU of the host's cores, as Linux lists it. Hybrid hosts (Alder Lake on) have one for each kind of core, and an
/// event of one counts nothing on the others; PERF_TYPE_RAW means the first kind's only.
struct CorePmu {
  std::string name;      ///< cpu_core, cpu_atom, cpu_lowpower.
  std::uint32_t type{};  ///< perf_event_attr's.
  std::set<unsigned> cpus;
  friend bool operator==(const CorePmu&, const CorePmu&) = default;
};

/// The PMUs of a hybrid host; empty if all cores are alike. `devices` is sysfs's directory of PMUs. Opens files, so it
/// cannot be used in the jail.
std::vector<CorePmu> read_core_pmus(const std::string& devices = "/sys/bus/event_source/devices");

/// The PMU of all CPUs of `allowed`, on which a thread may run. Fails, with the reason and advice, if there is none,
/// because the thread's counts would have gaps.
Result<const CorePmu*> choose_core_pmu(std::span<const CorePmu> pmus, const std::set<unsigned>& allowed);

/// The numbers of a list such as "0-3,8"; empty if `text` is no such list.
std::optional<std::set<unsigned>> parse_cpu_list(std::string_view text);

}  // namespace vmm
