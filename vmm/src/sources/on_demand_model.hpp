#pragma once
#include <memory>
#include <span>

#include "decode/instruction.hpp"
#include "snapshot/byte_stream.hpp"
#include "sources/model_log.hpp"
#include "sources/plan_progress.hpp"
#include "sources/shared_caches.hpp"
#include "sources/source_options.hpp"
#include "timing/core_timer.hpp"
#include "uarch/processor_model.hpp"
#include "vpmu/generation.hpp"
#include "vpmu/plan.hpp"

namespace vmm {

/// The processor model of one vCPU, made when a plan first needs it. Until then nothing happens here.
class OnDemandModel {
 public:
  /// `generation`, whose model the changes must fit, and `caches` must outlive it. Without `caches` it shares none with
  /// others.
  OnDemandModel(const vpmu::GenerationDesc& generation, const SourceOptions& options, SharedCaches* caches,
                unsigned cpu)
      : generation_{&generation}, changes_{options.changes}, log_{options.model_log}, caches_{caches}, cpu_{cpu} {
    if (options.time == TimeModel::pipeline)
      timer_ = std::make_unique<vpmu::timing::CoreTimer>(vpmu::timing::changed_core(generation.name, changes_));
  }

  /// From here on the plan is this one, and others are counted beside it. Returns the model if they need it, else null.
  vpmu::uarch::ProcessorModel* choose(const vpmu::CountPlan& plan, std::span<const vpmu::CountPlan> beside);
  [[nodiscard]] bool is_made() const { return model_ != nullptr; }
  /// It must have been made.
  vpmu::uarch::ProcessorModel* operator->() const { return model_.get(); }
  vpmu::uarch::ProcessorModel& operator*() const { return *model_; }

  /// Whether it says how many cycles instructions take. Else each takes one.
  [[nodiscard]] bool keeps_time() const { return timer_ != nullptr; }
  /// Cycles since the last call, in which the engine ran that many instructions; `now` is Engine::observed().
  std::uint64_t take_cycles(std::uint64_t instructions, std::uint64_t now);
  /// The same, and take_cycles() still gives them.
  std::uint64_t look_at_cycles(std::uint64_t now) { return timer_->cycles(now) - taken_; }
  /// By how much take_cycles() can grow.
  [[nodiscard]] MaxCycles max_cycles() const;
  /// What it tells of the pipeline: it counts while the plan has an event for that.
  [[nodiscard]] PipelineTold pipeline() const;
  /// Somebody else runs an instruction, after `now` of the engine's.
  void pause(std::uint64_t now);
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const;

  /// Whether it has since the last call had a line that another core had changed.
  [[nodiscard]] bool took_changed_line() { return model_ != nullptr && model_->took_changed_line(); }

  /// The core's other thread may have run meanwhile, and runs beside this one from now on, or does not. `now` is
  /// Engine::observed().
  void begin_turn(bool is_beside, std::uint64_t now);
  void begin_instruction();
  /// That instruction has retired: sets what the model knows of it. `armed`: a record may show it, and it is logged.
  void complete(vpmu::Retirement& retirement, bool armed);
  /// Somebody else runs this instruction, and tells what the TLBs lose by it, or does not.
  void leave(const Instruction& instruction, const kvm_sregs& sregs, bool tells_lost);

  /// Its state; `now` as observers get it. restore() makes it; false: the bytes are not of this model.
  void save(ByteWriter& out, std::uint64_t now);
  bool restore(ByteReader& in, std::uint64_t now);

 private:
  void make();
  void log(const vpmu::Retirement& retirement) const;

  const vpmu::GenerationDesc* generation_;
  vpmu::uarch::ProfileChanges changes_;
  ModelLog log_;
  SharedCaches* caches_;
  CoreUses* uses_{};  ///< Of its core, if that has a model and other threads.
  unsigned cpu_;
  std::unique_ptr<vpmu::timing::CoreTimer> timer_;  ///< Null: an instruction is a cycle.
  std::unique_ptr<vpmu::uarch::ProcessorModel> model_;
  std::uint64_t taken_{};  ///< Of the timer's cycles: those that take_cycles() has given.
};

}  // namespace vmm
