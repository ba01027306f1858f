#pragma once
#include "decode/system_instruction.hpp"
#include "processor/system_result.hpp"

namespace vmm {

/// Emulates the instructions that programs use too, and that are too rare for the engine or let events in: CLI, STI,
/// POPF, INTO, BOUND and ENTER. SDM volume 2.
class ProgramUnit {
 public:
  /// Both must outlive it. `view` reads the guest through `state`.
  ProgramUnit(SoftState& state, GuestView& view) : s_{&state}, view_{&view} {}

  // The work of instructions: run_instruction() has what is around it.
  /// CLI and STI.
  SystemResult interrupt_flag(bool on);
  SystemResult popf(std::uint8_t bytes);
  SystemResult interrupt_on_overflow();
  /// BOUND, whose bounds are at `operand`.
  SystemResult check_bounds(const SystemInstruction& i, std::uint64_t operand);
  SystemResult enter_frame(const SystemInstruction& i);

 private:
  SoftState* s_;
  GuestView* view_;
};

}  // namespace vmm
