#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "exec/observer.hpp"
#include "uarch/branch.hpp"
#include "uarch/hierarchy.hpp"
#include "vpmu/counts.hpp"
#include "vpmu/plan.hpp"

namespace vpmu::uarch {

/// How many accesses had which outcome.
class Outcomes {
 public:
  void add(HitLevel level, TlbResult tlb, std::uint64_t accesses = 1) {
    of_[static_cast<unsigned>(tlb)][static_cast<unsigned>(level)] += accesses;
  }
  /// Accesses with one of these levels and one of these TLB results: a bit each.
  [[nodiscard]] std::uint64_t with(unsigned levels, unsigned tlbs) const;

 private:
  std::array<std::array<std::uint64_t, hit_level_count>, 3> of_{};
};

/// The processor around the instructions: passes what it sees of an engine to the models of caches, TLBs and branch
/// prediction, counts the results, and describes the last instruction. The same trace gives the same numbers; they are
/// a model's, not a CPU's.
class ProcessorModel final : public exec::Observer {
 public:
  /// Cold. The profile must outlive it.
  explicit ProcessorModel(const Profile& profile) : hierarchy_{profile}, predictor_{profile.branches} {}

  /// From here on it is one of several models, whose caches are coherent. Both must outlive their use.
  void share(Sharing& with) { hierarchy_.share(with); }

  /// Whether the event is one that only a model can count, and this one does.
  [[nodiscard]] static bool tells(Counts counts);
  /// Whether count() has the event: those of tells(), and branches by their kind, all of which the model sees.
  [[nodiscard]] static bool has(Counts counts);
  /// Whether the plan needs the model: for a count, for a record, or for the branch stack.
  [[nodiscard]] static bool is_wanted(const CountPlan& plan);
  /// Takes from the plan the latency above which a load counts, and whether an entry needs caches and TLBs. While none
  /// does, they are not updated.
  void follow(const CountPlan& plan);
  /// Events of retired instructions since construction, as Pmu::retire() would count them; 0 unless has().
  [[nodiscard]] std::uint64_t count(Counts counts) const;

  /// The same for an entry of a plan.
  [[nodiscard]] std::uint64_t count(const PlanEntry& entry) const {
    return is_offcore(entry.counts) ? offcore_sum(hierarchy_.offcore(), entry.offcore) : count(entry.counts);
  }

  /// The LBR's call-stack mode needs every branch: at most this many instructions may retire between keep_branches()
  /// and kept_branches().
  static constexpr std::uint64_t most_of_call_stack = exec::SeenBlocks::most;
  /// From here on keeps taken branches for an LBR with this filter, as branches of code at this privilege level. `now`
  /// is Engine::observed().
  void keep_branches(unsigned cpl, const LbrFilter& filter, std::uint64_t now);
  /// The branches kept since then, with one cycle per instruction; keeps none from here on. To be called once; valid
  /// until the next keep_branches().
  BranchRun kept_branches(std::uint64_t now);

  /// complete() will describe the instruction that begins now.
  void begin_instruction();
  /// Adds to a retirement what was seen of it.
  void complete(Retirement& retirement);

  void saw(std::span<const exec::Seen> all) override;
  void saw_blocks(exec::SeenBlocks& all) override;
  void fetched(const exec::SeenCode& code) override;
  void accessed(const exec::SeenAccess& access, std::uint64_t now) override;
  void retired(bool load, bool store) override;
  void branched(const exec::SeenBranch& branch) override;
  void abandoned() override;
  void flushed_line(const exec::SeenFlush& flush) override { hierarchy_.flush_line(flush.linear, flush.physical); }
  void flushed() override { hierarchy_.flush_tlbs(); }
  void remapped() override { hierarchy_.remapped(); }
  /// What the caches, TLBs and predictors hold, between two instructions; `now` is Engine::observed(). The counts are
  /// not part of it. A model of the same profile that is given the same bytes goes on as this one does; with any other
  /// bytes it gives some results.
  void visit_state(const StateVisitor& visit, std::uint64_t now);
  /// The guest ran WBINVD or INVD outside the engine.
  void caches_flushed() { hierarchy_.flush_caches(); }

 private:
  using Result = DataResult;
  void add(Counts counts) { ++counts_[static_cast<unsigned>(counts)]; }
  bool saw_quickly(const exec::Seen& seen);
  void saw_access(const exec::SeenBlocks& blocks, const exec::BlockAccess& of, std::uint64_t at);
  void came_to(const exec::SeenAccess& access, const Result& result);
  void count_load(const Result& load);
  static constexpr unsigned branch_ends = 4;  ///< Taken: 2; mispredicted: 1.
  static constexpr unsigned branch_end(bool taken, bool mispredicted) {
    return (taken ? 2U : 0U) | (mispredicted ? 1U : 0U);
  }
  void count_branch(BranchKind kind, bool taken, bool mispredicted);
  struct Predicted {
    std::uint64_t instructions{}, missed{};
  };
  template <bool NotesMissed>
  Predicted predict(const exec::SeenBlocks& all);
  void predict_before(const exec::SeenBlocks& all);
  void saw_branches(exec::SeenBlocks& all);
  void count_conditional(Gshare::Outcome outcomes, std::uint64_t count);
  bool retire_unconditional(const exec::SeenBranch& branch, std::uint64_t to);
  /// `loads` loads hit the L1 and the first TLB.
  void count_hits(std::uint64_t loads);
  void keep(const exec::SeenBranch& branch, std::uint64_t to, std::uint64_t now, bool mispredicted);

  Hierarchy hierarchy_;
  BranchPredictor predictor_;
  Outcomes loads_, stores_;  ///< Of retired instructions.
  std::array<std::array<std::uint64_t, branch_ends>, static_cast<unsigned>(BranchKind::far) + 1> branches_{};
  std::array<std::uint64_t, counts_kinds> counts_{};  ///< Of events that the members above do not tell.
  std::uint64_t now_{};                               ///< Instructions that the hierarchy's clock has seen.
  std::optional<Result> load_, store_;                ///< Of the instruction that runs.
  std::optional<Result> last_load_, last_store_;      ///< Of the last one that complete() tells of.
  FrontendOutcome frontend_{};
  // The hierarchy's, when the instruction began.
  std::array<std::uint64_t, offcore_cell_count> offcore_before_{};
  std::uint64_t l1d_fills_before_{};
  void put_kept(std::uint64_t n, const exec::SeenBranch& branch, std::uint64_t to, std::uint64_t now,
                bool mispredicted);
  static constexpr std::uint64_t most_of_ring = 64;  ///< The deepest LBR's entries and the branch before them fit.
  /// A ring of most_of_ring entries; in call-stack mode all branches. `cycles`: its low half is SeenBranch::now.
  std::array<PassedBranch, most_of_call_stack> kept_{};
  std::array<PassedBranch, most_of_ring> last_{};  ///< Those of the ring that kept_branches() returns.
  std::uint64_t kept_count_{};                     ///< All branches since keep_branches().
  std::uint64_t kept_mask_{};
  std::uint64_t kept_from_{};  ///< `now` at keep_branches().
  LbrFilter filter_{};
  std::uint8_t keeping_kinds_{};  ///< LbrFilter::kinds of keeping_cpl_; 0: no branches are kept now.
  std::uint8_t keeping_cpl_{};
  /// A branch to be kept, which stands before a block of the present batch. Bit 0: it was mispredicted. Then the
  /// block's place in the batch. From passed_at on: how many instructions of the batch retired before the block.
  using Note = std::uint32_t;
  static constexpr Note next_place = 2;
  static constexpr unsigned passed_at = 16;
  static_assert(exec::SeenBlocks::most * next_place < 1U << passed_at);
  static constexpr std::size_t place_in(Note note) { return note % (1U << passed_at) / next_place; }
  static constexpr std::uint32_t passed_before(Note note) { return note >> passed_at; }
  void keep_noted(const exec::SeenBlocks& all, std::span<const Note> notes);
  std::array<Note, exec::SeenBlocks::most> notes_{};
  std::array<std::uint8_t, exec::SeenBlocks::most> missed_{};  ///< 1: the branch before the block was mispredicted.
  bool mispredicted_{};
  bool sees_memory_{true};
  bool telling_{};                ///< complete() will be called for the present instruction.
  std::uint16_t latency_over_{};  ///< PlanEntry::latency_over.
};

}  // namespace vpmu::uarch
