#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>

#include "decode/instruction.hpp"
#include "perf/cpu_timer.hpp"
#include "sources/source.hpp"
#include "vcpu/breakpoints.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

struct WalkStatistics {
  std::uint64_t walks{};          ///< Walks that ended on a retired instruction.
  std::uint64_t runs{};           ///< Debug exits at a walk's breakpoint.
  std::uint64_t steps{};          ///< Single-steps.
  std::uint64_t wrong_level{};    ///< Not started: the vCPU was at a privilege level that does not count, or halted.
  std::uint64_t event_pending{};  ///< Not started: an exception or interrupt was about to be delivered, or the guest
                                  ///< single-steps itself.
  std::uint64_t nothing_found{};  ///< Given up: no suitable instruction nearby.
  std::uint64_t abandoned{};      ///< Given up: the guest did not reach the breakpoint.
};

/// The privilege levels whose instructions a record may show.
struct WalkLevels {
  bool usr{}, os{};
};

/// Closes the gap between an asynchronous stop and a precise sample. From where the vCPU stopped, it runs the guest to
/// an instruction nearby and single-steps that one, so that the record's IP, registers and address are real.
///
/// Asynchronous stops favour some addresses: a binary-translating host stops only at block starts. So the instruction
/// is chosen at random from the straight-line code ahead. This costs two exits: a breakpoint at the instruction, then a
/// single-step over it.
class SkidWalker {
 public:
  SkidWalker(Breakpoints& breakpoints, GuestView& view, CpuTimer& timer, std::uint64_t seed)
      : breakpoints_{&breakpoints}, view_{&view}, timer_{&timer}, random_{seed | 1} {}

  /// The vCPU must be at an instruction boundary with no exit left to complete. Returns as CountSource::walk does.
  Result<RunEnd> walk(VcpuBackend& backend, WalkLevels levels);

  [[nodiscard]] const WalkStatistics& statistics() const { return statistics_; }

 private:
  struct Block;
  struct Choice {
    vpmu::GuestLinear at;
    Instruction instruction;
  };
  static constexpr std::chrono::nanoseconds patience = std::chrono::milliseconds{2};

  Block decode_block(const kvm_regs& regs, const kvm_sregs& sregs);
  std::optional<Choice> choose(const Block& block);
  Result<std::optional<RunEnd>> run_to(VcpuBackend& backend, vpmu::GuestLinear at);
  Result<RunEnd> step(VcpuBackend& backend, const Choice& choice);
  bool operands_mapped(const Choice& choice, const kvm_regs& regs, const kvm_sregs& sregs);
  std::uint64_t draw(std::uint64_t below);

  Breakpoints* breakpoints_;
  GuestView* view_;
  CpuTimer* timer_;
  std::uint64_t random_;
  WalkStatistics statistics_{};
};

}  // namespace vmm
