#pragma once
#include <memory>
#include <optional>

#include "devices/port_bus.hpp"
#include "devices/stop_requests.hpp"
#include "machine/config.hpp"
#include "machine/statistics.hpp"
#include "memory/guest_memory.hpp"
#include "memory/linear.hpp"
#include "memory/ram_access.hpp"
#include "soft/soft_port.hpp"
#include "support/log.hpp"
#include "vcpu/pmu_vcpu.hpp"

namespace vmm {

/// A machine of one vCPU that needs no KVM, for static 64-bit ELF kernels: RAM, a port bus and the virtual PMU. Time is virtual and all is
/// deterministic. Used on one thread.
class SoftMachine final : public StopRequests {
 public:
  /// Fails with kind usage for what the user can change. Of `config` it uses kernel, memory, model, source, policies and elf_arguments.
  static Result<std::unique_ptr<SoftMachine>> create(const MachineConfig& config, Log& log);

  /// To add devices before run().
  [[nodiscard]] PortBus& ports() { return ports_; }
  [[nodiscard]] const GuestMemory& memory() const { return memory_; }

  /// Runs the guest until a device asks for the machine's stop, or for so many ticks of its time: then the reason is `user`. A guest that
  /// halts for ever has stopped too, with reason power_off. Fails (host) on code that the engine does not know.
  Result<StopReason> run(std::uint64_t ticks);
  void request_stop(StopReason reason) override { reason_ = reason; }
  [[nodiscard]] MachineStatistics statistics() const;

 private:
  SoftMachine(GuestMemory memory, Log& log);
  Result<void> answer(const Exit& exit);

  GuestMemory memory_;
  Log* log_;
  RamAccess ram_access_;
  LinearMemory linear_;
  PortBus ports_;
  std::unique_ptr<SoftPort> port_;
  std::unique_ptr<PmuVcpu> pmu_;
  std::optional<StopReason> reason_;
};

}  // namespace vmm
