#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "uarch/branch.hpp"
#include "uarch/core_clock.hpp"
#include "uarch/hierarchy.hpp"
#include "vpmu/counts.hpp"
#include "vpmu/observer.hpp"
#include "vpmu/plan.hpp"

namespace vpmu::uarch {

/// How many accesses had which outcome.
class Outcomes {
 public:
  void add(HitLevel level, TlbResult tlb, PageSize page, std::uint64_t accesses = 1) {
    of_[place(tlb, page)][static_cast<unsigned>(level)] += accesses;
  }
  /// The accesses with this outcome.
  [[nodiscard]] std::uint64_t of(HitLevel level, TlbResult tlb, PageSize page) const {
    return of_[place(tlb, page)][static_cast<unsigned>(level)];
  }

 private:
  static constexpr unsigned sizes = 3;
  static constexpr unsigned place(TlbResult tlb, PageSize page) {
    return static_cast<unsigned>(tlb) * sizes + static_cast<unsigned>(page);
  }
  std::array<std::array<std::uint64_t, hit_level_count>, 3 * sizes> of_{};
};

/// The processor around the instructions: passes what it sees of an engine to the models of caches, TLBs and branch
/// prediction, counts the results, and describes the last instruction. The same trace gives the same numbers; they are
/// a model's, not a CPU's.
class ProcessorModel final : public Observer, private CodeFetcher {
 public:
  /// With a core of its own, which has one thread. Cold.
  explicit ProcessorModel(const Profile& profile) : own_{profile}, hierarchy_{*own_}, predictor_{profile.branches} {}
  /// Of a thread of this core, which must outlive it; models of the same core run one at a time. The predictor is the
  /// thread's own.
  ProcessorModel(Hierarchy& core, unsigned thread)
      : hierarchy_{core}, thread_{thread}, predictor_{core.profile().branches} {}
  ProcessorModel(const ProcessorModel&) = delete;
  ProcessorModel& operator=(const ProcessorModel&) = delete;
  ProcessorModel(ProcessorModel&&) = delete;
  ProcessorModel& operator=(ProcessorModel&&) = delete;
  ~ProcessorModel() override = default;

  /// Whether the core has since the last call had a line that another core had changed.
  bool took_changed_line() { return hierarchy_.took_changed_line(); }
  /// The core's other thread may have run since this one last did. Costs a comparison if it has not.
  void begin_turn() { hierarchy_.run_thread(thread_); }

  /// From here on this clock, which must outlive the model, says how long everything takes, and sees all that the model
  /// sees. Without one an instruction takes a cycle, and a mispredicted branch the penalty.
  void keep_time(CoreClock& clock) {
    clock_ = &clock;
    clock.fetch_by(*this, hierarchy_.transfer_times());
    hierarchy_.keep_time_outside();
  }
  /// Cycles after `now` instructions, from the beginning on. The caches' clock is then up to date: the core's other
  /// thread may run, or the model be saved, and no time passes there that does not otherwise.
  std::uint64_t cycles(std::uint64_t now);

  /// Whether the event is one that only a model can count, and this one does.
  [[nodiscard]] static bool tells(Counts counts);
  /// Whether count() has the event: those of tells(), and branches by their kind, all of which the model sees.
  [[nodiscard]] static bool has(Counts counts);
  /// The same for all that an entry of a plan counts.
  [[nodiscard]] static bool has(const PlanEntry& entry);
  /// Whether the plan needs the model: for a count, for a record, or for the branch stack.
  [[nodiscard]] static bool is_wanted(const CountPlan& plan);
  /// Takes from the plan the latency above which a load counts, and whether an entry needs caches and TLBs. While none
  /// does, they are not updated.
  void follow(const CountPlan& plan);
  /// After follow(): this plan's events are counted, too. Nothing else is taken from it.
  void follow_beside(const CountPlan& plan);
  /// Events of retired instructions since construction, as Pmu::retire() would count them; 0 unless has().
  [[nodiscard]] std::uint64_t count(Counts counts) const;

  /// The same for an entry of a plan.
  [[nodiscard]] std::uint64_t count(const PlanEntry& entry) const;

  /// The LBR's call-stack mode needs every branch: at most this many instructions may retire between keep_branches()
  /// and kept_branches().
  static constexpr std::uint64_t max_of_call_stack = SeenBlocks::max;
  /// From here on keeps taken branches for an LBR with this filter, as branches of code at this privilege level. `now`
  /// is cycles().
  void keep_branches(unsigned cpl, const LbrFilter& filter, std::uint64_t now);
  /// The branches kept since then, with their cycles; keeps none from here on. To be called once; valid
  /// until the next keep_branches().
  BranchRun kept_branches(std::uint64_t now);

  /// The last load of those that retired since the last call while CountPlan::last_load_wanted, but for those that
  /// complete() tells.
  std::optional<MemAccess> take_last_load() { return std::exchange(kept_load_, std::nullopt); }

  /// complete() will describe the instruction that begins now, or it and the branch that it is fused with.
  void begin_instruction();
  /// Adds to a retirement what was seen of it.
  void complete(Retirement& retirement);

  void saw(std::span<const Seen> all) override;
  void saw_blocks(SeenBlocks& all) override;
  void fetched(const SeenCode& code) override;
  void accessed(const SeenAccess& access, std::uint64_t now) override;
  void retired(bool load, bool store) override;
  void branched(const SeenBranch& branch) override;
  void abandoned() override;
  void begun(const SeenBlock& block, std::uint64_t now) override;
  void flushed_line(const SeenFlush& flush) override {
    if (clock_ != nullptr) clock_->reach(flush.now);
    hierarchy_.flush_line(flush.linear, flush.physical);
    front_.line = ~0ULL;
  }
  void flushed(const TlbFlush& flush) override {
    begin_turn();
    if (hierarchy_.flush_tlbs(flush)) front_.line = ~0ULL;  // the same address may be another line
  }
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
  bool saw_fast(const Seen& seen);
  void pass_to(std::uint64_t now);
  DataResult saw_access(const SeenBlocks& blocks, const BlockAccess& of, std::uint64_t at);
  void saw_blocks_in_time(SeenBlocks& all);
  void saw_part(const SeenBlocks& all, const SeenBlock& block, const BlockCode& code, std::size_t number,
                std::span<const std::uint64_t> addresses);
  void saw_in_pieces(const SeenBlocks& all, const SeenBlock& block, std::size_t first,
                     std::span<const std::uint64_t> addresses);
  CodeArrival arrive(std::uint64_t rip, const SeenCode& line) override;
  void arrive(std::uint64_t rip, const SeenCode& line, CodeArrival& arrival);
  bool saw_hit(const BlockAccess& a, std::uint64_t at);
  static ClockedAccess hit(const SeenBlocks& all, const BlockAccess& a, std::uint64_t at);
  FetchResult fetch(const SeenCode& code);
  [[nodiscard]] ClockedAccess clocked(std::uint64_t physical, std::uint16_t bytes, const DataResult& result) const;
  /// The block that begins now comes after this branch.
  void expect_after(const SeenBranch& branch, Foreseen foreseen) {
    front_.is_after_branch = 1;
    front_.foreseen = static_cast<std::uint8_t>(foreseen);
    front_.falls_through_to = branch.fall_through;
  }
  /// Code behind a branch that is not taken is decoded as the code before it.
  [[nodiscard]] bool goes_on_decoded(std::uint64_t rip) const {
    return front_.is_decoded != 0 || rip != front_.falls_through_to;
  }
  void came_to(const SeenAccess& access, const Result& result);
  void join_store(Result& loaded, const Result& stored) const;
  void prefetched(const SeenAccess& a, const DataAccess& access, std::uint64_t now);
  void count_load(const Result& load);
  void keep_load(std::uint64_t at, const Result& load, bool locked);
  void keep_hit(std::uint64_t at, bool locked);
  [[nodiscard]] std::uint64_t count_alone(Counts counts) const;
  [[nodiscard]] std::uint64_t count_union(std::span<const Counts> kinds) const;
  /// Far more than a block's instructions make.
  static constexpr std::size_t max_accesses_of_block = 256;
  static constexpr unsigned branch_ends = 4;  ///< Taken: 2; mispredicted: 1.
  static constexpr unsigned branch_end(bool taken, bool mispredicted) {
    return (taken ? 2U : 0U) | (mispredicted ? 1U : 0U);
  }
  void count_branch(BranchKind kind, bool taken, bool mispredicted);
  void saw_branches(SeenBlocks& all);
  /// `loads` loads hit the L1 and the first TLB.
  void count_hits(std::uint64_t loads);
  void keep(const SeenBranch& branch, std::uint64_t to, std::uint64_t now, bool mispredicted);

  std::optional<Hierarchy> own_;
  Hierarchy& hierarchy_;  ///< Its core's.
  unsigned thread_{};     ///< Of the core.
  BranchPredictor predictor_;
  Outcomes loads_, stores_;  ///< Of retired instructions.
  std::array<std::array<std::uint64_t, branch_ends>, static_cast<unsigned>(BranchKind::far) + 1> branches_{};
  std::array<std::uint64_t, counts_kinds> counts_{};  ///< Of events that the members above do not tell.
  std::uint64_t now_{};                               ///< Instructions that the hierarchy's clock has seen.
  /// An access of an instruction: of several, the last one (rule S4).
  struct Access {
    std::uint64_t at{};  ///< Linear.
    Result result;
    bool locked{}, prefetches{};
    /// Adds it to what is known of the access.
    void fill_in(MemAccess& access) const;
  };
  std::optional<Access> load_, store_;            ///< Of the instruction that runs.
  std::optional<Access> last_load_, last_store_;  ///< Of the last one that complete() tells of.
  FrontendOutcome frontend_{};
  // The hierarchy's, when the instruction began.
  std::array<std::uint64_t, offcore_cell_count> offcore_before_{};
  std::array<std::uint64_t, cache_event_count> caches_before_{};
  std::uint64_t l1d_fills_before_{};
  void put_kept(std::uint64_t n, const SeenBranch& branch, std::uint64_t to, std::uint64_t now, bool mispredicted);
  static constexpr std::uint64_t max_of_ring = 64;  ///< The deepest LBR's entries and the branch before them fit.
  /// A ring of max_of_ring entries; in call-stack mode all branches. `cycles`: its low half is SeenBranch::now.
  std::array<PassedBranch, max_of_call_stack> kept_{};
  std::array<PassedBranch, max_of_ring> last_{};  ///< Those of the ring that kept_branches() returns.
  std::uint64_t kept_count_{};                    ///< All branches since keep_branches().
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
  static_assert(SeenBlocks::max * next_place < 1U << passed_at);
  static constexpr std::size_t place_in(Note note) { return note % (1U << passed_at) / next_place; }
  static constexpr std::uint32_t passed_before(Note note) { return note >> passed_at; }
  struct Predicted {
    std::uint64_t instructions{}, missed{};
    std::span<const Note> notes;
  };
  Predicted predict(const SeenBlocks& all);
  void keep_noted(const SeenBlocks& all, std::span<const Note> notes);
  std::array<Note, SeenBlocks::max> notes_{};
  std::array<Foreseen, SeenBlocks::max> foreseen_{};    ///< The branch before the block.
  CoreClock* clock_{};                                  ///< Null: an instruction is a cycle.
  std::uint64_t hierarchy_at_{};                        ///< The clock's cycles that the hierarchy's has seen.
  std::array<std::uint32_t, SeenBlocks::max> times_{};  ///< When the branch before the block retired: the low half.
  std::array<ClockedAccess, max_accesses_of_block> clocked_{};
  /// What the clock must know of the code before the present block. Part of the state.
  struct Front {
    std::uint64_t line{~0ULL};         ///< The line that was fetched last.
    std::uint64_t falls_through_to{};  ///< Of the branch before.
    std::uint8_t is_decoded{1};        ///< The code of that line was in the micro-op cache.
    std::uint8_t is_after_branch{};    ///< Nothing has come after it yet.
    std::uint8_t foreseen{};           ///< That branch: Foreseen.
    std::array<std::uint8_t, 5> unused{};
  };
  static_assert(std::has_unique_object_representations_v<Front>, "its bytes are saved");
  Front front_;
  bool mispredicted_{};
  bool sees_memory_{true};
  bool keeps_last_load_{};
  std::optional<MemAccess> kept_load_;  ///< take_last_load().
  bool telling_{};                      ///< complete() will be called for the present instruction.
  std::uint16_t latency_over_{};        ///< PlanEntry::latency_over.
};

}  // namespace vpmu::uarch
