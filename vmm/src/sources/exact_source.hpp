#pragma once
#include <map>
#include <memory>
#include <string_view>

#include "decode/decoded_instructions.hpp"
#include "exec/engine.hpp"
#include "memory/engine_ram.hpp"
#include "memory/host_code.hpp"
#include "processor/debug_registers.hpp"
#include "sources/plan_progress.hpp"
#include "sources/shared_caches.hpp"
#include "sources/source_options.hpp"
#include "sources/step_source.hpp"
#include "sources/system_in_place.hpp"
#include "uarch/processor_model.hpp"

namespace vmm {

struct ExactStatistics {
  std::uint64_t instructions{};  ///< Done by the engine.
  std::uint64_t observed{};      ///< Of these: one at a time, as the PMU wanted to see them.
  std::uint64_t entries{};       ///< Times that the engine took the guest over.
  std::uint64_t in_place{};      ///< System instructions done without KVM.
  std::uint64_t vectors{};       ///< Times that the vector registers were fetched.
  std::uint64_t handed_over{};   ///< Instructions left to KVM: unknown to the engine, or at which it faults.
  std::map<std::string_view, std::uint64_t> left;  ///< The same, by mnemonic.
};

/// Counts every instruction while any counter counts: the engine runs the guest's code in place of the processor, and
/// KVM single-steps what the engine does not know. Exact, and the same every time for the same path. While nothing
/// counts, the guest runs freely.
///
/// Where no counter can overflow soon and none needs to see each instruction, the engine counts whole blocks. A cycle
/// is taken to be one instruction, and the guest's clock goes on by one tick with it.
///
/// What only a model of the processor can tell (hit levels, latencies, mispredictions) comes from
/// vpmu::uarch::ProcessorModel, while some counter wants it. It sees what the engine runs, not what KVM does. While
/// PEBS is armed, an instruction that accesses memory is left to KVM only if the engine does not know it.
///
/// While the guest has breakpoints, each instruction is looked at before it runs; KVM runs those that meet one.
///
/// Limits: those of StepSource for what is single-stepped.
class ExactSource final : public CountSource {
 public:
  ExactSource(std::unique_ptr<CpuTimer> timer, Breakpoints& breakpoints, GuestView& view, const LinearMemory& memory,
              const vpmu::GenerationDesc& generation, const SourceOptions& options, OthersMsrs others_msr = {},
              StorableBranches storable = {}, SharedCaches* caches = nullptr)
      : view_{&view},
        ram_{memory},
        platform_{*this},
        steps_{std::move(timer), breakpoints, view},
        engine_{ram_, platform_, &host_code_, options.compiling},
        generation_{&generation},
        model_log_{options.model_log},
        system_{view, generation, std::move(others_msr)},
        storable_{std::move(storable)},
        caches_{caches} {}
  ExactSource(const ExactSource&) = delete;
  ExactSource& operator=(const ExactSource&) = delete;
  ExactSource(ExactSource&&) = delete;
  ExactSource& operator=(ExactSource&&) = delete;
  ~ExactSource() override {
    if (caches_ != nullptr) caches_->keep(std::move(model_));
  }

  static constexpr SourceTraits description{.name = "exact", .exact_counts = true, .precise_ip = true, .latency = true};
  [[nodiscard]] const SourceTraits& traits() const override { return description; }

  Result<void> program(const vpmu::CountPlan& plan) override;
  Result<RunEnd> run(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most) override;
  /// What passed in whole blocks; what was observed comes as retirements.
  Result<vpmu::CountDeltas> sync(VcpuPort& port) override;
  Result<RunEnd> walk(VcpuPort& port) override;
  Result<RunEnd> come_out(VcpuPort& port) override;
  void raised() override { raised_ = true; }
  [[nodiscard]] bool is_idle() const override { return !inside_ && !raised_ && !system_.is_open() && steps_.is_idle(); }
  void left_open() override { steps_.left_open(); }
  /// The model's caches, TLBs and predictors.
  Result<Bytes> save(VcpuPort& port) override;
  Result<bool> restore(VcpuPort& port, std::span<const std::byte> image) override;
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

 private:
  /// Reads the TSC, and fetches the vector state; leaves every other system instruction to KVM.
  class Platform final : public vpmu::exec::NoPlatform {
   public:
    explicit Platform(ExactSource& owner) : owner_{&owner} {}
    vpmu::exec::Answer rdtsc(std::uint64_t& value) override;
    vpmu::exec::Answer rdtscp(std::uint64_t& value, std::uint64_t& aux) override;
    bool has(vpmu::exec::CpuFeature feature) override { return owner_->port_->has(feature); }
    bool runs_alone() override { return owner_->port_->runs_alone(); }
    vpmu::exec::VectorState* vectors() override;

   private:
    ExactSource* owner_;
  };

  /// How long the engine keeps the vCPU before KVM may look at interrupts and timers: well below a millisecond.
  static constexpr std::uint64_t burst = 50'000;

  /// Nothing but what StepSource::deliverable() tells stands between the vCPU and its next instruction.
  static bool undisturbed(const kvm_vcpu_events& events);
  Result<bool> enter(VcpuPort& port);
  Result<void> leave(VcpuPort& port);
  Result<std::optional<RunEnd>> interpret(VcpuPort& port);
  Result<std::optional<RunEnd>> run_in_place(VcpuPort& port);
  RunEnd exit_in_place(const Instruction& instruction);
  Result<std::optional<RunEnd>> finish(VcpuPort& port);
  Result<void> end_shadow(VcpuPort& port);
  Result<void> look_outside(VcpuPort& port);
  void pass(VcpuPort& port, std::uint64_t instructions);
  bool keeps_from_kvm();
  Result<RunEnd> hand_over(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most);
  void make_model();
  const vpmu::uarch::ProcessorModel* choose_model(const vpmu::CountPlan& plan);
  void run_blocks(std::uint64_t instructions);
  void run_watched(std::uint64_t instructions);
  [[nodiscard]] bool meets_breakpoint();
  [[nodiscard]] bool may_meet_data(const Instruction& instruction) const;
  std::optional<Retired> run_one();
  [[nodiscard]] bool is_fused(FusionPart first, vpmu::GuestLinear next);
  const Instruction* decode_at(vpmu::GuestLinear ip);
  void note_left();
  void note(const RunEnd& end);
  void log_modelled(const vpmu::Retirement& retirement) const;
  vpmu::exec::Stop run_engine(std::uint64_t instructions);

  GuestView* view_;
  EngineRam ram_;
  Platform platform_;
  MappedHostCode host_code_;
  StepSource steps_;
  vpmu::exec::Engine engine_;
  DecodedInstructions decoded_;
  const vpmu::GenerationDesc* generation_;
  ModelLog model_log_;
  std::unique_ptr<vpmu::uarch::ProcessorModel> model_;  ///< Made when first wanted.
  SystemInPlace system_;
  PlanProgress progress_;
  StorableBranches storable_;
  SharedCaches* caches_;                  ///< Null: no other vCPU's model is known to this one's.
  bool inside_{};                         ///< The engine holds the vCPU's state.
  bool for_kvm_{};                        ///< The next instruction is not the engine's.
  bool raised_{};                         ///< Something waits that the port must look at.
  Watch watch_{};                         ///< The guest's breakpoints, while inside_.
  bool shadow_{};                         ///< Interrupts are held off for one instruction, behind STI or MOV SS.
  std::uint64_t burst_left_{burst};       ///< Instructions until the next look at what waits outside.
  unsigned kept_from_kvm_{};              ///< Instructions that the engine did in KVM's turn.
  std::optional<std::uint64_t> tsc_aux_;  ///< IA32_TSC_AUX, as long as nobody else runs the guest.
  VcpuPort* port_{};                      ///< The one that is interpreted now.
  /// The instruction of an exit, and the registers that it found. It retires when it has its answer.
  struct Waiting {
    Instruction instruction;
    kvm_regs regs;
  };
  std::optional<Waiting> waiting_;
  std::uint64_t passed_time_{};  ///< Instructions since load() for which the guest's clock has gone on.
  kvm_regs regs_{};              ///< The vCPU's, while inside_.
  kvm_sregs sregs_{};
  std::optional<vpmu::exec::VectorState> vectors_;  ///< The vCPU's, once they were needed while inside_.
  vpmu::exec::Passed seen_{};                       ///< Of Engine::passed(): accounted for.
  ExactStatistics statistics_{};
};

}  // namespace vmm
