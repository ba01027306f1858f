#pragma once
#include <string>
#include <vector>

#include "exec/exec.hpp"
#include "exec/guest_devices.hpp"
#include "exec/request.hpp"
#include "support/result.hpp"

namespace vmm::tool {

/// What a guest is asked to do, and what it needs for it.
struct ExecPreparation {
  ExecRequest request;  ///< Without its modules.
  GuestDevices::Choice devices;
  std::vector<std::string> modules;  ///< Of the kernel, by their names.
};

/// From the arguments and this process's own surroundings. `arguments.machine.accel` is settled. Fails with kind usage
/// where what an argument names is not there, or fits to no other.
Result<ExecPreparation> prepare_exec(const ExecArguments& arguments);

}  // namespace vmm::tool
