#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "model/model.hpp"

namespace vmm::tool {

/// How Linux drives a processor's PMU: choices of Linux, which no manual describes.
struct LinuxDriver {
  std::string_view name;  ///< In its log: "Skylake events".
  bool known;             ///< Linux knows its events, PEBS and LBR.
  unsigned precise;       ///< The highest precise_ip.
  bool period_of_one;     ///< Linux accepts periods of 1, which BTS needs.
};
LinuxDriver linux_driver(const MachineModel& model);

/// The checker's arguments, which describe the processor; its hardware comes from the model. `threads_per_core`: the
/// guest's.
std::vector<std::string> checker_arguments(const MachineModel& model, unsigned threads_per_core);

}  // namespace vmm::tool
