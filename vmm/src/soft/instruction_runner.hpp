#pragma once
#include <optional>
#include <span>

#include "decode/decoded_instructions.hpp"
#include "soft/debug_unit.hpp"
#include "soft/device_memory.hpp"
#include "soft/pending_exit.hpp"
#include "soft/soft_core.hpp"
#include "soft/soft_engine.hpp"
#include "support/log.hpp"

namespace vmm {

/// Runs the guest's instructions on a vCPU without KVM: by the engine, and what that leaves by the units of the core,
/// by devices, or as the exception that it raises; while breakpoints or single-steps are in force, or accesses must be
/// checked, one by one.
class InstructionRunner {
 public:
  /// All must outlive it; `log` and `devices` may be null.
  InstructionRunner(SoftCore& core, DebugUnit& debug, SoftEngine& engine, MmioDevices* devices, Log* log)
      : core_{&core}, s_{&core.state}, debug_{&debug}, engine_{&engine}, devices_{core, devices}, log_{log} {}

  // All return an exit that the VMM must answer or know of, or nothing.
  /// Runs at most `max` instructions, and at least one unless it faults.
  std::optional<Exit> run_some(std::uint64_t max);
  /// Runs the instruction that another engine has left: not if it may exit, takes several runs, or its accesses must be
  /// checked.
  LeftRun run_left(const LeftByEngine& left);
  /// Runs one instruction, or one iteration of it, while `watch` has any debug facility in force.
  std::optional<Exit> run_watched(const Watch& watch);
  /// Delivers an event. `length`: of the instruction before RIP, for kind software.
  std::optional<Exit> take(Exception exception, EventKind kind, std::uint8_t length = 0);
  /// Reports hits, as bits of DR6, between two instructions.
  std::optional<Exit> debug_hit(const Watch& watch, std::uint64_t hits);

  /// Completes the instruction of the last exit, if it waits, with the VMM's answer.
  void complete_exit();
  [[nodiscard]] bool is_pending() const { return pending_.waits(); }
  /// An access outside of any instruction here, to what is where there is no RAM. False if there is RAM.
  bool access_beyond_ram(vpmu::GuestLinear at, BytesOfAccess bytes);

 private:
  std::optional<Exit> run_unchecked(std::uint64_t max);
  std::optional<Exit> run_checked();
  std::optional<Exit> run_iteration(const Instruction& i);
  std::optional<Exit> run_what_was_left(const LeftByEngine& left);
  std::optional<Exit> run_system(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  [[nodiscard]] LeftByEngine left_by_engine(vpmu::exec::Stop why) const {
    return {.why = why, .missing = engine_->missing(), .raised = engine_->raised()};
  }
  const Instruction* next_instruction(std::span<std::byte> room, std::span<const std::byte>& code);
  std::optional<Exit> run_into_fault(const std::optional<Instruction>& i, std::span<const std::byte> code,
                                     const LeftByEngine& left);
  std::optional<Exit> access_device(const Instruction& i, const LeftByEngine& left);
  std::optional<Exit> refuse(const Instruction& i, const LeftByEngine& left);
  std::optional<Exit> raise_float_error(std::uint8_t raised);
  [[nodiscard]] std::span<const std::byte> fetch_next(std::span<std::byte> room) const;
  [[nodiscard]] bool reaches_all(const Instruction& i);
  void inject(const Exception& exception);
  void retire(std::uint8_t length);

  SoftCore* core_;
  SoftState* s_;
  DebugUnit* debug_;
  SoftEngine* engine_;
  DeviceMemory devices_;
  DecodedInstructions decoded_;
  PendingExit pending_;
  Log* log_;
};

}  // namespace vmm
