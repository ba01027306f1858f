#pragma once
#include "processor/debug_registers.hpp"
#include "sources/engine_vcpu.hpp"
#include "sources/guest_code.hpp"

namespace vmm {

/// The guest's breakpoints, for a source that leaves each instruction that hits one to the back end.
class GuestBreakpoints {
 public:
  /// `code` must outlive it.
  explicit GuestBreakpoints(GuestCode& code) : code_{&code} {}

  /// From here on these are the guest's debug registers.
  void follow(const kvm_debugregs& registers) { watch_ = watch_of(registers); }
  [[nodiscard]] bool any() const { return watch_.any(); }
  /// Whether the vCPU's next instruction hits one, or may: what it accesses is not known beforehand in all cases.
  [[nodiscard]] bool may_hit(const EngineVcpu& vcpu) const;
  /// Runs the engine up to the next instruction that may hit one; the first one is not checked.
  vpmu::exec::Stop run_up_to_hit(EngineVcpu& vcpu, std::uint64_t instructions) const;

 private:
  [[nodiscard]] bool may_hit_data(const Instruction& instruction, const EngineVcpu& vcpu) const;
  [[nodiscard]] bool is_near(const Instruction& instruction, const EngineVcpu& vcpu) const;

  GuestCode* code_;
  Watch watch_{};
};

}  // namespace vmm
