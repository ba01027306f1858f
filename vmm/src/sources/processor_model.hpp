#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "exec/observer.hpp"
#include "uarch/branch.hpp"
#include "uarch/hierarchy.hpp"
#include "vpmu/event.hpp"
#include "vpmu/plan.hpp"

namespace vmm {

/// The processor around the instructions: gives what an engine lets it see to the models of caches, TLBs and branch prediction, counts
/// what comes of it, and tells of the last instruction. The same trace gives the same numbers; they are a model's, not a CPU's.
class ProcessorModel final : public vpmu::exec::Observer {
 public:
  /// Cold. The profile must outlive it.
  explicit ProcessorModel(const vpmu::uarch::Profile& profile) : hierarchy_{profile}, predictor_{profile.branches} {}

  /// Whether the event is one that only a model can tell, and this one does, so that count() has it.
  [[nodiscard]] static bool tells(vpmu::Counts counts);
  /// Whether a counter of the plan needs what only a model can tell: of each instruction if not in bulk.
  [[nodiscard]] static bool is_wanted(const vpmu::CountPlan& plan);
  /// What depends on the plan, the latency from which on a load counts, is taken from this one.
  void follow(const vpmu::CountPlan& plan);
  /// The most of these events that one instruction makes.
  [[nodiscard]] static std::uint64_t most_per_instruction(vpmu::Counts counts);
  /// Those of retired instructions since construction, as Pmu::retire() would count them.
  [[nodiscard]] std::uint64_t count(vpmu::Counts counts) const { return counts_[static_cast<unsigned>(counts)]; }

  /// From here on complete() tells of the next instruction.
  void begin_instruction();
  /// Adds to a retirement what was seen of it.
  void complete(vpmu::Retirement& retirement) const;

  void saw(std::span<const vpmu::exec::Seen> all) override { tell(all, *this); }
  void fetched(const vpmu::exec::SeenCode& code) override;
  void accessed(const vpmu::exec::SeenAccess& access, std::uint64_t now) override;
  void retired(bool load, bool store) override;
  void branched(const vpmu::exec::SeenBranch& branch) override;
  void abandoned() override;
  void flushed() override { hierarchy_.flush_tlbs(); }

 private:
  using Result = vpmu::uarch::DataResult;
  static constexpr unsigned vocabulary = static_cast<unsigned>(vpmu::Counts::offcore) + 1;
  void add(vpmu::Counts counts) { ++counts_[static_cast<unsigned>(counts)]; }
  void count_level(vpmu::HitLevel level);

  vpmu::uarch::Hierarchy hierarchy_;
  vpmu::uarch::BranchPredictor predictor_;
  std::array<std::uint64_t, vocabulary> counts_{};
  std::uint64_t now_{};  ///< Instructions that the hierarchy's clock has seen.
  std::optional<Result> load_, store_;  ///< Of the instruction that runs.
  std::optional<Result> last_load_, last_store_;  ///< Of the last one that complete() tells of.
  vpmu::FrontendOutcome frontend_{};
  bool mispredicted_{};
  std::uint16_t latency_over_{};  ///< PlanEntry::latency_over.
};

/// Whether the instruction is one after which a CPU has fewer translations: MOV to a control register, INVLPG. 64-bit code.
bool drops_translations(std::span<const std::byte> instruction);

}  // namespace vmm
