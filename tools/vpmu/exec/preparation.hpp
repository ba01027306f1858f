#pragma once
#include <string>
#include <vector>

#include "exec/exec.hpp"
#include "exec/guest_devices.hpp"
#include "exec/request.hpp"
#include "support/result.hpp"

namespace vmm::tool {

/// The guest's request, and the devices and modules that it needs.
struct ExecPreparation {
  ExecRequest request;  ///< Without its modules.
  GuestDevices::Choice devices;
  std::vector<std::string> modules;  ///< Of the kernel, by their names.
  /// Of devices that a guest which has booted may not have seen: they are not the same in each run.
  std::vector<std::string> later_modules;
};

/// From the arguments and this process's environment. `arguments.machine.accel` must be chosen. Fails with kind usage
/// if what an argument names does not exist, or contradicts another argument.
Result<ExecPreparation> prepare_exec(const ExecArguments& arguments);

}  // namespace vmm::tool
