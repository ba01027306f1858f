#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "sources/code_counts.hpp"
#include "sources/engine_vcpu.hpp"
#include "sources/guest_breakpoints.hpp"
#include "sources/guest_code.hpp"
#include "sources/guest_time.hpp"
#include "sources/in_place.hpp"
#include "sources/on_demand_model.hpp"
#include "sources/plan_progress.hpp"
#include "sources/source_options.hpp"
#include "sources/step_source.hpp"
#include "sources/turns.hpp"

namespace vmm {

struct ExactStatistics {
  std::uint64_t instructions{};  ///< Run by the engine.
  std::uint64_t observed{};      ///< Of these: run one at a time, because the PMU needs each one.
  std::uint64_t entries{};       ///< Times that the engine took over from KVM.
  std::uint64_t in_place{};      ///< System instructions emulated without KVM.
  std::uint64_t handed_over{};   ///< Instructions left to KVM: unknown to the engine, or faulting in it.
  std::map<std::string_view, std::uint64_t> left;  ///< The same, by mnemonic.
};

/// Counts every instruction while any counter counts: the engine runs the guest's code instead of the processor, and
/// KVM single-steps the instructions that the engine does not know. Counts are exact, and the same for the same path.
/// While no counter counts, the guest runs freely.
///
/// If no counter can overflow soon and none needs each instruction, the engine counts whole blocks. How many cycles
/// they take, and by how many ticks the guest's clock advances, GuestTime says: one for each instruction, or what a
/// model of the core's pipeline says (SourceOptions::time).
///
/// Hit levels, latencies and mispredictions come from vpmu::uarch::ProcessorModel, which runs while some counter needs
/// it. The model sees the instructions that the engine runs, not those that KVM runs. While PEBS is armed, KVM
/// therefore gets an instruction that accesses memory only if the engine does not know it.
///
/// While the guest has breakpoints, the engine checks each instruction before it runs; KVM runs those that hit one.
///
/// This class joins the parts: Turns (whose turn it is), EngineVcpu (the engine, and what it holds of the vCPU),
/// InPlace (what is emulated in place of KVM), StepSource (what KVM runs), PlanProgress and OnDemandModel (what is
/// counted).
///
/// For single-stepped instructions the limits of StepSource apply.
class ExactSource final : public CountSource {
 public:
  ExactSource(std::unique_ptr<CpuTimer> timer, Breakpoints& breakpoints, GuestView& view, const LinearMemory& memory,
              const vpmu::GenerationDesc& generation, const SourceOptions& options, ForeignMsrs foreign_msr = {},
              StorableBranches storable = {}, SharedCaches* caches = nullptr, unsigned cpu = 0)
      : vcpu_{memory, options.compiling},
        code_{view},
        steps_{std::move(timer), breakpoints, view, generation},
        in_place_{view, generation, std::move(foreign_msr)},
        model_{generation, options, caches, cpu},
        storable_{std::move(storable)},
        fuses_compares_alone_{generation.generation < vpmu::Generation::sandy_bridge} {
    vcpu_.swap_gs_by([this](VcpuBackend& backend, __u64& base) { return in_place_.swap_gs(backend, base); });
    if (!model_.keeps_time()) return;
    vcpu_.tell_time(time_);
    steps_.clocks().run_core_at(core_khz(options));
  }
  ExactSource(const ExactSource&) = delete;
  ExactSource& operator=(const ExactSource&) = delete;
  ExactSource(ExactSource&&) = delete;
  ExactSource& operator=(ExactSource&&) = delete;
  ~ExactSource() override = default;

  /// Nobody else counts what the guest does while the plan is empty: the engine may go on for a while.
  void stay_in_pauses() { turns_.stay_in_pauses(); }

  static constexpr SourceTraits description{.name = "exact", .exact_counts = true, .precise_ip = true, .latency = true};
  [[nodiscard]] const SourceTraits& traits() const override { return description; }

  Result<void> program(const vpmu::CountPlan& plan) override;
  bool count_beside(std::span<const vpmu::CountPlan> plans, CodeCounts* where) override;
  std::span<const vpmu::CountDeltas> sync_beside() override;
  Result<RunEnd> run(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) override;
  /// The events of whole blocks; instructions that ran one at a time were reported as retirements.
  Result<vpmu::CountDeltas> sync(VcpuBackend& backend) override;
  Result<RunEnd> walk(VcpuBackend& backend) override;
  Result<RunEnd> come_out(VcpuBackend& backend) override;
  void raised() override { turns_.raise(); }
  [[nodiscard]] bool is_idle() const override { return !turns_.is_held() && !turns_.is_raised() && steps_.is_idle(); }
  void missed_runs(bool is_open) override { steps_.missed_runs(is_open); }
  [[nodiscard]] std::uint64_t progress() const override { return statistics_.instructions + statistics_.in_place; }
  /// The part of a tick of the bus clock, and the contents of the model's caches, TLBs and predictors.
  Result<Bytes> save(VcpuBackend& backend) override;
  Result<bool> restore(VcpuBackend& backend, std::span<const std::byte> image) override;
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

 private:
  /// How many instructions the engine may run before somebody looks, and which of their branches are kept meanwhile.
  struct Quantum {
    std::uint64_t instructions{};
    vpmu::LbrFilter filter;
  };

  // Whose turn it is.
  void begin_turn(const VcpuBackend& backend);
  Result<void> give_turn(VcpuBackend& backend);
  /// Whether ticks are not instructions.
  [[nodiscard]] bool looks_now_and_then() const;
  /// Instructions until the turn's ticks are looked at, if they are behind each so many.
  [[nodiscard]] std::uint64_t until_look(std::uint64_t between) const;
  [[nodiscard]] bool keeps_from_kvm();
  Result<void> take(VcpuBackend& backend);
  Result<void> leave(VcpuBackend& backend);
  Result<void> leave_if_deliverable(VcpuBackend& backend);
  Result<void> end_shadow(VcpuBackend& backend);
  void pass(VcpuBackend& backend, std::uint64_t instructions);

  /// Whether anything is counted, by the plan or beside it.
  [[nodiscard]] bool is_counting() const { return progress_.is_counting() || !beside_.empty(); }
  /// Calls it with the progress of the plan, and of each beside it.
  void each_progress(auto act) {
    act(progress_);
    for (PlanProgress& beside : beside_) act(beside);
  }
  /// The least of what it says of each.
  [[nodiscard]] std::uint64_t least(auto of) const {
    std::uint64_t least = of(progress_);
    for (const PlanProgress& beside : beside_) least = std::min<std::uint64_t>(least, of(beside));
    return least;
  }

  // The engine's.
  Result<std::optional<RunEnd>> interpret(VcpuBackend& backend);
  [[nodiscard]] Quantum quantum() const;
  RunEnd run_engine();
  [[nodiscard]] std::uint64_t unseen(std::uint64_t most) const;
  bool run_unseen(std::uint64_t next, std::uint64_t most);
  bool run_blocks(std::uint64_t instructions);
  void run_one(RunEnd& end, std::uint64_t most);
  [[nodiscard]] const Instruction* branch_fused_with(const vpmu::exec::FusionPart& first);
  bool run_branch();
  void note_stop(vpmu::exec::Stop stop);

  // In place of KVM's.
  Result<std::optional<RunEnd>> run_in_place(VcpuBackend& backend);
  Result<void> look_after(VcpuBackend& backend, SystemInPlace::Outcome outcome, std::uint64_t flags_before);
  Result<std::optional<RunEnd>> finish(VcpuBackend& backend);

  // KVM's.
  Result<RunEnd> hand_over(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most);
  Result<void> tell(VcpuBackend& backend, const kvm_regs& before, RunEnd& end);
  void note_left();

  void note(RunEnd& end);
  void note_elsewhere(RunEnd& end, std::optional<std::uint64_t> now = {});
  [[nodiscard]] std::vector<CodeCounts::Column> columns();

  EngineVcpu vcpu_;
  GuestCode code_;
  GuestBreakpoints breakpoints_{code_};
  Turns turns_;
  StepSource steps_;
  InPlace in_place_;
  OnDemandModel model_;
  /// Engine::observed() at the first look, when counting began, or the same modulo max_between_looks.
  std::uint64_t first_look_{};
  std::uint64_t between_looks_{};  ///< Instructions, by how long the back end's turns are.
  bool looks_as_saved_{};          ///< It was restored, and what was counted then is not counted yet.
  GuestTime time_{model_, steps_.clocks()};
  PlanProgress progress_;
  std::vector<vpmu::CountPlan> plans_beside_;
  std::vector<PlanProgress> beside_;  ///< Of these.
  std::vector<vpmu::CountDeltas> deltas_beside_;
  CodeCounts* where_{};  ///< Null: nobody wants to know which code has counted those.
  StorableBranches storable_;
  vpmu::exec::Stop stopped_{};      ///< Why the engine's last run ended.
  bool fuses_compares_alone_;       ///< Other instructions do from Sandy Bridge on.
  std::optional<Sibling> sibling_;  ///< What the sibling had done when that was last counted.
  ExactStatistics statistics_{};
};

}  // namespace vmm
