#pragma once

namespace vmm {

/// Why a machine ends. The command line program turns each into an exit code of its own.
enum class StopReason {
  power_off,     ///< ACPI S5.
  reset,         ///< Chipset reset port, keyboard controller or ACPI reset register.
  guest_panic,   ///< The guest reported a panic.
  guest_failed,  ///< The guest told ExitPort that it failed.
  triple_fault,  ///< Shutdown of a vCPU.
  user,          ///< A signal, the control socket or the console's quit key.
  time_limit,    ///< The time limit of the run has passed.
  host_failure,  ///< KVM or we could not go on; the machine holds the error.
};

/// What a device may ask of the machine. Thread-safe; the first request counts.
class StopRequests {
 public:
  virtual ~StopRequests() = default;
  virtual void request_stop(StopReason reason) = 0;
};

}  // namespace vmm
