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
  std::uint64_t instructions{};  ///< Run by the engine.
  std::uint64_t observed{};      ///< Of these: run one at a time, because the PMU needs each one.
  std::uint64_t entries{};       ///< Times that the engine took over from KVM.
  std::uint64_t in_place{};      ///< System instructions emulated without KVM.
  std::uint64_t vectors{};       ///< Times that the vector registers were read from the port.
  std::uint64_t handed_over{};   ///< Instructions left to KVM: unknown to the engine, or faulting in it.
  std::map<std::string_view, std::uint64_t> left;  ///< The same, by mnemonic.
};

/// Counts every instruction while any counter counts: the engine runs the guest's code instead of the processor, and
/// KVM single-steps the instructions that the engine does not know. Counts are exact, and the same for the same path.
/// While no counter counts, the guest runs freely.
///
/// If no counter can overflow soon and none needs each instruction, the engine counts whole blocks. One instruction is
/// one cycle, and advances the guest's clock by one tick.
///
/// Hit levels, latencies and mispredictions come from vpmu::uarch::ProcessorModel, which runs while some counter needs
/// it. The model sees the instructions that the engine runs, not those that KVM runs. While PEBS is armed, KVM
/// therefore gets an instruction that accesses memory only if the engine does not know it.
///
/// While the guest has breakpoints, the engine checks each instruction before it runs; KVM runs those that hit one.
///
/// For single-stepped instructions the limits of StepSource apply.
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
  /// The events of whole blocks; instructions that ran one at a time were reported as retirements.
  Result<vpmu::CountDeltas> sync(VcpuPort& port) override;
  Result<RunEnd> walk(VcpuPort& port) override;
  Result<RunEnd> come_out(VcpuPort& port) override;
  void raised() override { raised_ = true; }
  [[nodiscard]] bool is_idle() const override { return !inside_ && !raised_ && !system_.is_open() && steps_.is_idle(); }
  void left_open() override { steps_.left_open(); }
  /// The contents of the model's caches, TLBs and predictors.
  Result<Bytes> save(VcpuPort& port) override;
  Result<bool> restore(VcpuPort& port, std::span<const std::byte> image) override;
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

 private:
  /// Emulates RDTSC and RDTSCP, and provides the vector registers; leaves every other system instruction to the owner.
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

  /// Instructions that the engine runs before KVM gets a turn for interrupts and timers: well below a millisecond.
  static constexpr std::uint64_t burst = 50'000;

  /// Whether nothing comes before the vCPU's next instruction, except for what StepSource::deliverable() reports.
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
  std::unique_ptr<vpmu::uarch::ProcessorModel> model_;  ///< Created when first needed.
  SystemInPlace system_;
  PlanProgress progress_;
  StorableBranches storable_;
  SharedCaches* caches_;                  ///< Null: this vCPU's model shares no caches with others.
  bool inside_{};                         ///< The engine holds the vCPU's state.
  bool for_kvm_{};                        ///< KVM must run the next instruction.
  bool raised_{};                         ///< An event is pending that the port must handle first.
  Watch watch_{};                         ///< The guest's breakpoints, while inside_.
  bool shadow_{};                         ///< The interrupt shadow of STI or MOV SS: it lasts for one instruction.
  std::uint64_t burst_left_{burst};       ///< Instructions until KVM's next turn.
  unsigned kept_from_kvm_{};              ///< Instructions by which the engine has delayed KVM's turn.
  std::optional<std::uint64_t> tsc_aux_;  ///< Cached IA32_TSC_AUX, while the engine runs the guest.
  VcpuPort* port_{};                      ///< The port whose guest the engine runs.
  /// The instruction that caused an exit, and the registers before it. It retires when the exit has been answered.
  struct Waiting {
    Instruction instruction;
    kvm_regs regs;
  };
  std::optional<Waiting> waiting_;
  std::uint64_t passed_time_{};  ///< Instructions since load() by which the guest's clock was advanced.
  kvm_regs regs_{};              ///< The vCPU's registers, while inside_.
  kvm_sregs sregs_{};
  std::optional<vpmu::exec::VectorState> vectors_;  ///< The vCPU's, once needed while inside_.
  vpmu::exec::Passed seen_{};                       ///< The part of Engine::passed() that has been counted.
  ExactStatistics statistics_{};
};

}  // namespace vmm
