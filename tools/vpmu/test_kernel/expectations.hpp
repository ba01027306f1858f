#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "model/model.hpp"

namespace vmm::tool {

/// What Linux makes of a processor: its own choice, which no manual tells.
struct LinuxDriver {
  std::string_view name;  ///< In its log: "Skylake events".
  bool known;             ///< It has events, PEBS and the LBR of it.
  unsigned precise;       ///< The highest precise_ip.
  bool period_of_one;     ///< It counts periods of 1, which BTS needs.
};
LinuxDriver linux_driver(const MachineModel& model);

/// What the checker is told of the processor: the hardware's part is its description's. `threads_per_core`: the
/// guest's.
std::vector<std::string> checker_arguments(const MachineModel& model, unsigned threads_per_core);

}  // namespace vmm::tool
