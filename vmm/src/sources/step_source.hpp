#pragma once
#include <memory>

#include "perf/cpu_timer.hpp"
#include "sources/retired_instruction.hpp"
#include "sources/source.hpp"
#include "sources/unhalted_clocks.hpp"
#include "vcpu/breakpoints.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

struct StepStatistics {
  std::uint64_t retired{};     ///< Instructions counted.
  std::uint64_t run_over{};    ///< Of these: passed with a breakpoint after them, as a single-step would be visible to
                               ///< the guest.
  std::uint64_t interrupts{};  ///< Interrupts and NMIs whose handler entry was observed.
  std::uint64_t faults{};      ///< Faults that led to a known handler.
  std::uint64_t lost{};  ///< Times the guest went somewhere unexpected: nothing is counted from there to its next exit.
};

/// Counts by single-stepping the guest while any counter counts: each instruction is decoded, and retired with its
/// operands and registers. Exact, repeatable, and very slow (several system calls per instruction): for tests of
/// everything above it. One instruction counts as one cycle. While nothing counts, the guest runs freely.
///
/// Single-steps use RFLAGS.TF. Instructions that would show TF to the guest (PUSHF, INT n, foreseen faults, interrupts)
/// run to a breakpoint at their destination instead. If an unforeseen fault has pushed TF, it is cleared in the pushed
/// flags. A guest that single-steps itself is not stepped by the source: its own trap ends the instruction, and is
/// returned to it.
///
/// Limits: there are four breakpoint registers, and those of the guest and the RDPMC gate take precedence. After an
/// unforeseen fault whose handler has no breakpoint nothing is counted until the guest's next exit
/// (StepStatistics::lost counts this).
class StepSource final : public CountSource {
 public:
  StepSource(std::unique_ptr<CpuTimer> timer, Breakpoints& breakpoints, GuestView& view,
             const vpmu::GenerationDesc& generation)
      : timer_{std::move(timer)}, breakpoints_{&breakpoints}, view_{&view}, clocks_{generation.bus_clock} {}

  static constexpr SourceTraits description{.name = "step", .exact_counts = true, .precise_ip = true};
  [[nodiscard]] const SourceTraits& traits() const override { return description; }

  Result<void> program(const vpmu::CountPlan& plan) override;
  Result<RunEnd> run(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) override;
  /// Always empty: every event is reported as a retirement.
  Result<vpmu::CountDeltas> sync(VcpuBackend& backend) override;
  Result<RunEnd> walk(VcpuBackend& backend) override;
  /// While counting: runs the next instruction. deliverable() must have returned nothing since the guest last ran.
  Result<RunEnd> run_one(VcpuBackend& backend);
  /// The same of an instruction that an engine has left. `next`: that instruction; null: there is no valid one.
  Result<RunEnd> run_left(VcpuBackend& backend, const LeftByEngine& left, const Instruction* next);
  [[nodiscard]] bool is_idle() const override { return !counting_ && !waiting_; }
  void missed_runs(bool is_open) override { exit_open_ = is_open; }
  /// The part of a tick of the bus clock; nothing where none has passed.
  Result<Bytes> save(VcpuBackend& backend) override;
  Result<bool> restore(VcpuBackend& backend, std::span<const std::byte> image) override;
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

  /// The clocks of the instructions that it retires, for an owner that retires others.
  [[nodiscard]] UnhaltedClocks& clocks() { return clocks_; }
  [[nodiscard]] const StepStatistics& statistics() const { return statistics_; }
  /// Whether an instruction that caused an exit is still incomplete: only run() can continue it.
  [[nodiscard]] bool in_exit() const { return exit_open_ || waiting_.has_value(); }
  /// The vector that the processor would take before the next instruction.
  Result<std::optional<unsigned>> deliverable(VcpuBackend& backend);

 private:
  /// The instruction at RIP, of length 0 if it cannot be decoded, and the registers before it.
  struct Current {
    Instruction instruction;
    kvm_regs regs;
    kvm_sregs sregs;
    std::array<std::byte, max_instruction_bytes> bytes;
    std::size_t fetched;  ///< Number of valid `bytes`; fewer if the rest cannot be fetched.
  };

  /// Address and privilege level of an instruction.
  struct Origin {
    vpmu::GuestLinear at;
    unsigned cpl;
  };
  static Origin origin_of(const Current& current);

  enum class Interrupts : std::uint8_t { look, looked_for };
  Result<RunEnd> advance(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most, Interrupts interrupts);
  Result<RunEnd> run_free(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most);
  Result<RunEnd> wait(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most);
  Result<std::optional<RunEnd>> finish_exit(VcpuBackend& backend);
  Result<Current> decode(VcpuBackend& backend);
  Result<RunEnd> pass(VcpuBackend& backend, const Current& current);
  static bool is_stepped_by_guest(const Current& current);
  Result<Exit> run_stopped(VcpuBackend& backend, const Current& current);
  Result<RunEnd> step(VcpuBackend& backend, const Current& current);
  Result<RunEnd> stepped(VcpuBackend& backend, const Current& current, const Debug& debug);
  Result<RunEnd> faulted(VcpuBackend& backend, const Current& current, const kvm_regs& after);
  Result<RunEnd> run_over(VcpuBackend& backend, const Current& current, vpmu::GuestLinear to);
  Result<RunEnd> enter_by(VcpuBackend& backend, const Current& current, unsigned vector);
  Result<RunEnd> move_debug_register(VcpuBackend& backend, const Current& current);
  Result<RunEnd> raise_debug(VcpuBackend& backend, const Current& current);
  Result<RunEnd> return_from_handler(VcpuBackend& backend, const Current& current);
  Result<RunEnd> run_into_fault(VcpuBackend& backend, unsigned vector, const Origin& from);
  Result<RunEnd> return_to(VcpuBackend& backend, const Current& current, vpmu::GuestLinear to, unsigned cpl);
  Result<RunEnd> enter_kernel(VcpuBackend& backend, const Current& current);
  Result<RunEnd> read_counter(VcpuBackend& backend, const Current& current);
  Result<RunEnd> enter_handler(VcpuBackend& backend, unsigned vector);
  Result<Exit> run_to(VcpuBackend& backend, const Stops& stops);
  [[nodiscard]] std::optional<unsigned> foreseen_fault(const Current& current);
  [[nodiscard]] bool is_of_a_device(const Current& current, vpmu::GuestLinear at);
  Result<unsigned> target_cpl(VcpuBackend& backend, const Current& current) const;
  Result<std::optional<vpmu::TakenBranch>> delivered(VcpuBackend& backend, const Origin& from,
                                                     vpmu::GuestLinear to) const;
  Result<RunEnd> retire(VcpuBackend& backend, const Current& current, const kvm_regs& after,
                        std::optional<Exit> exit = std::nullopt);
  RunEnd retire_at(const Current& current, const kvm_regs& after, unsigned target_cpl,
                   std::optional<Exit> exit = std::nullopt);
  RunEnd unexpected(const Exit& exit);

  std::unique_ptr<CpuTimer> timer_;
  Breakpoints* breakpoints_;
  GuestView* view_;
  UnhaltedClocks clocks_;
  bool counting_{};
  bool branches_{};                 ///< The plan wants branches: deliveries of events are reported too.
  bool exit_open_{};                ///< The last exit's instruction has not been completed by KVM yet.
  std::optional<Current> waiting_;  ///< An instruction that caused an exit, and retires when it is complete.
  StepStatistics statistics_{};
};

}  // namespace vmm
