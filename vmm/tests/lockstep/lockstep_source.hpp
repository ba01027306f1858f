#pragma once
#include <array>
#include <random>

#include "lockstep/lockstep_runs.hpp"
#include "sources/step_source.hpp"

namespace vmm {

/// Counts nothing: compares the engine with KVM. In windows at random times, the engine first does a run of
/// instructions, on a copy of what it touches, and then KVM does the same (LockstepRuns). KVM single-steps instructions
/// that the engine does not run. Where a run cannot be compared, the engine does one instruction, and KVM's single-step
/// is compared with that. General registers, RIP, RFLAGS, segment bases, vector registers and touched pages must be the
/// same after both; otherwise the guest's run ends with an error that names the instruction and the first difference.
///
/// Flags that the manual leaves undefined are not compared, nor accessed bits in page tables. KVM's writes to pages
/// that the engine has not touched go unnoticed. For machines of one vCPU.
class LockstepSource final : public CountSource {
 public:
  LockstepSource(std::unique_ptr<CpuTimer> timer, Breakpoints& breakpoints, GuestView& view, const LinearMemory& memory,
                 const vpmu::GenerationDesc& generation, std::uint64_t seed)
      : view_{&view},
        runs_{*timer, breakpoints, view, memory, statistics_},
        steps_{std::move(timer), breakpoints, view, generation},
        random_{seed} {}

  static constexpr SourceTraits description{.name = "lockstep"};
  [[nodiscard]] const SourceTraits& traits() const override { return description; }

  Result<void> program(const vpmu::CountPlan& plan) override;
  Result<RunEnd> run(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) override;
  /// Always empty.
  Result<vpmu::CountDeltas> sync(VcpuBackend& backend) override;
  Result<RunEnd> walk(VcpuBackend& backend) override;
  Result<RunEnd> come_out(VcpuBackend& backend) override;
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

 private:
  /// The instruction at RIP, and the engine's result.
  struct Trial {
    std::array<std::byte, max_instruction_bytes> bytes{};
    std::size_t fetched{};
    Instruction instruction;
    kvm_regs before{};
    kvm_sregs sregs{};
    bool retired{};
    vpmu::exec::CpuState after;
  };

  Result<RunEnd> turn(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most);
  Result<bool> is_undisturbed(VcpuBackend& backend);
  Result<void> note_left(VcpuBackend& backend);
  Result<std::optional<Trial>> try_one(VcpuBackend& backend);
  Result<RunEnd> step(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most);
  Result<void> compare(VcpuBackend& backend, const Trial& trial);
  Result<void> begin_window();
  Result<void> end_window();

  GuestView* view_;
  LockstepStatistics statistics_{};
  LockstepRuns runs_;
  StepSource steps_;
  std::mt19937_64 random_;
  std::uint64_t window_left_{};  ///< Runs and single instructions; 0 while the guest runs freely.
  std::uint64_t window_end_{};   ///< In LockstepStatistics::compared.
  unsigned short_runs_{};        ///< Consecutive ones up to now.
  bool begin_{};                 ///< The guest has run freely long enough.
};

}  // namespace vmm
