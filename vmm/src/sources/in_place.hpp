#pragma once
#include <optional>

#include "sources/engine_vcpu.hpp"
#include "sources/retired_instruction.hpp"
#include "sources/system_in_place.hpp"

namespace vmm {

/// What came of an instruction that the engine could not run.
struct RunInPlace {
  SystemInPlace::Outcome outcome{};  ///< left: nothing has changed.
  RunEnd end;                        ///< Its exit, its retirement, or both.
};

/// And what came of it once its exit was answered.
struct AnsweredInPlace {
  bool completed{};                ///< Else the answer was #GP (SystemInPlace::complete()).
  std::optional<Retired> retired;  ///< Unless it was completed before, or was not.
};

/// Runs system instructions of a vCPU that the engine holds, in place of its back end, and tells how they retire.
class InPlace {
 public:
  InPlace(GuestView& view, const vpmu::GenerationDesc& generation, ForeignMsrs foreign_msr)
      : system_{view, generation, std::move(foreign_msr)} {}

  /// Runs the vCPU's next instruction, which is this one, in 64-bit code.
  Result<RunInPlace> run(VcpuBackend& backend, const Instruction& instruction, EngineVcpu& vcpu, GuestTime& time);
  /// What SWAPGS does to the base of GS. False: it is left to run().
  bool swap_gs(VcpuBackend& backend, __u64& base) { return system_.swap_gs(backend, base); }
  /// The exit of Outcome::exit has been answered.
  Result<AnsweredInPlace> finish(VcpuBackend& backend, EngineVcpu& vcpu, GuestTime& time);
  /// Call before the back end runs the guest.
  Result<void> leave(VcpuBackend& backend) { return system_.leave(backend); }

 private:
  RunEnd exit_of(const Instruction& instruction, const EngineVcpu& vcpu, GuestTime& time);

  /// An instruction that caused an exit, and the registers before it. It retires when the exit has been answered.
  struct Waiting {
    Instruction instruction;
    kvm_regs regs;
  };
  SystemInPlace system_;
  std::optional<Waiting> waiting_;
};

}  // namespace vmm
