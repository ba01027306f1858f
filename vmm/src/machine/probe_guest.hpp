#pragma once
#include <chrono>
#include <cstdint>
#include <span>

#include "kvm/system.hpp"
#include "kvm/vcpu.hpp"
#include "kvm/vm.hpp"
#include "memory/guest_memory.hpp"
#include "support/result.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// A VM that runs a few instructions in 64-bit mode, ring 0, to find out how this host's KVM behaves. KVM's own vPMU is
/// off in it.
class ProbeGuest {
 public:
  /// Where the code starts.
  static constexpr vpmu::GuestPhysical code{0x200000};
  /// The handler of vector 13 (#GP), where the guest writes to fault_port.
  static constexpr vpmu::GuestPhysical fault_handler{0x201000};
  static constexpr std::uint16_t done_port = 0x80;
  static constexpr std::uint16_t fault_port = 0x81;

  /// Fails (host) if KVM refuses any step; the error names the step.
  static Result<ProbeGuest> create(const System& system);

  /// Puts `instructions` at `code` and the vCPU at their start with RCX = `rcx`.
  Result<void> load(std::span<const std::uint8_t> instructions, std::uint64_t rcx);
  /// Makes execution at `at` a debug exit.
  Result<void> break_at(vpmu::GuestPhysical at);

  enum class End : std::uint8_t {
    done,     ///< Wrote to done_port.
    faulted,  ///< Wrote to fault_port.
    broke,    ///< Reached the breakpoint.
    other,    ///< Anything else.
  };
  struct Outcome {
    End end;
    std::chrono::nanoseconds took;
  };
  /// Runs until the guest writes to a port or stops otherwise; gives up after ten exits by signal.
  Result<Outcome> run();

 private:
  ProbeGuest(GuestMemory memory, Vm vm, Vcpu vcpu)
      : memory_{std::move(memory)}, vm_{std::move(vm)}, vcpu_{std::move(vcpu)} {}

  GuestMemory memory_;
  Vm vm_;
  Vcpu vcpu_;
};

/// How RDPMC behaves on this host with KVM's vPMU off.
enum class RdpmcBehaviour : std::uint8_t {
  trappable,        ///< #GP, and a breakpoint on the handler stops it before its first instruction.
  breakpoint_dead,  ///< #GP, but the breakpoint never fires.
  silent,           ///< No fault: KVM answers by itself.
};

/// Runs one RDPMC in a guest with and without the breakpoint.
Result<RdpmcBehaviour> probe_rdpmc(const System& system);

/// Fails with the reason if the guest's RDPMC would not reach the PMU. Such a guest could program counters, but would
/// read wrong counts.
Result<void> require_rdpmc(RdpmcBehaviour behaviour);

/// Instructions per second of ring-0 guest code and of this process, from the same counted loop. Takes at most about
/// 0.2 s.
struct SpeedComparison {
  double guest;
  double host;
};
Result<SpeedComparison> compare_speed(const System& system);

}  // namespace vmm
