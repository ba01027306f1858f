#include <algorithm>
#include <span>
#include <utility>

#include "uarch/processor_model.hpp"

/// How the model predicts branches, and which of them it keeps for the LBR and BTS.
namespace vpmu::uarch {

void ProcessorModel::branched(const SeenBranch& b) {
  const Foreseen foreseen =
      predictor_.retire({.at = b.at, .fall_through = b.fall_through, .to = b.to, .kind = b.kind, .taken = b.taken});
  mispredicted_ = foreseen == Foreseen::by_execution;
  count_branch(b.kind, b.taken, mispredicted_);
  if (foreseen == Foreseen::by_decoder) {
    add(Counts::baclears);
    frontend_.baclears = 1;
  }
  if (clock_ != nullptr) {
    clock_->retire_to(b.now);
    expect_after(b, foreseen);
  } else if (mispredicted_) {
    hierarchy_.advance(hierarchy_.profile().branches.mispredict_penalty);
  }
  if (b.taken) keep(b, b.to, clock_ != nullptr ? clock_->at_part() : b.now, mispredicted_);
}

void ProcessorModel::count_branch(BranchKind kind, bool taken, bool mispredicted) {
  ++branches_[static_cast<unsigned>(kind)][branch_end(taken, mispredicted)];
}

void ProcessorModel::keep_branches(unsigned cpl, const LbrFilter& filter, std::uint64_t now) {
  kept_count_ = 0;
  kept_mask_ = (filter.call_stack ? max_of_call_stack : max_of_ring) - 1;
  kept_from_ = now;
  filter_ = filter;
  keeping_kinds_ = filter.kinds[cpl == 0 ? 0 : 1] & 0xFE;  // BranchKind::none is no branch
  keeping_cpl_ = static_cast<std::uint8_t>(cpl);
}

BranchRun ProcessorModel::kept_branches(std::uint64_t now) {
  keeping_kinds_ = 0;
  const std::uint64_t count = std::min<std::uint64_t>(kept_count_, filter_.call_stack ? kept_.size() : filter_.depth);
  const std::uint64_t missing = kept_count_ - count;
  auto since = static_cast<std::uint32_t>(missing == 0 ? kept_from_ : kept_[(missing - 1) & kept_mask_].cycles);
  std::span<PassedBranch> told{kept_.data(), count};
  if (!filter_.call_stack) {
    told = std::span{last_}.first(count);
    for (std::uint64_t n = 0; n < count; ++n) told[n] = kept_[(missing + n) & kept_mask_];
  }
  for (PassedBranch& passed : told) {
    const auto at = static_cast<std::uint32_t>(passed.cycles);
    passed.cycles = at - std::exchange(since, at);
  }
  return {.branches = told, .missing = missing, .cycles_behind = static_cast<std::uint32_t>(now) - since};
}

// The engine runs no far branches, so the privilege level stays. Written field by field: to copy a struct that was just
// put together of these fields would stall the host.
inline void ProcessorModel::put_kept(std::uint64_t n, const SeenBranch& b, std::uint64_t to, std::uint64_t now,
                                     bool mispredicted) {
  PassedBranch& kept = kept_[n & kept_mask_];
  kept.branch.from = GuestLinear{b.at};
  kept.branch.to = GuestLinear{to};
  kept.branch.cpl = keeping_cpl_;
  kept.branch.what.kind = b.kind;
  kept.branch.what.taken = true;
  kept.branch.what.mispredicted = mispredicted;
  kept.branch.what.target_cpl = keeping_cpl_;
  kept.branch.what.to_next = to == b.fall_through;
  kept.cycles = now;
}

void ProcessorModel::keep(const SeenBranch& b, std::uint64_t to, std::uint64_t now, bool mispredicted) {
  if ((keeping_kinds_ >> static_cast<unsigned>(b.kind) & 1) == 0) return;
  put_kept(kept_count_++, b, to, now, mispredicted);
}

// Which branches are kept is a number here, so that no host branch depends on it.
ProcessorModel::Predicted ProcessorModel::predict(const SeenBlocks& all) {
  const unsigned kinds = keeping_kinds_;
  Note* note = notes_.data();
  Foreseen* foreseen = foreseen_.data();
  Note here = 0;  // the note of a rightly predicted branch before this block
  std::uint64_t missed = 0, baclears = 0;
  const SeenBranch* branch = &all.branch;
  for (const SeenBlock* const block : all.blocks) {
    const bool taken = branch->kind != BranchKind::conditional || block->rip != branch->fall_through;
    const Foreseen how = predictor_.retire({.at = branch->at,
                                            .fall_through = branch->fall_through,
                                            .to = block->rip,
                                            .kind = branch->kind,
                                            .taken = taken});
    const unsigned mispredicted = how == Foreseen::by_execution ? 1 : 0;
    count_branch(branch->kind, taken, mispredicted != 0);
    missed += mispredicted;
    baclears += how == Foreseen::by_decoder ? 1 : 0;
    *note = here + mispredicted;
    note += (taken ? 1U : 0U) & kinds >> static_cast<unsigned>(branch->kind);
    *foreseen++ = how;
    here += next_place + (block->instructions << passed_at);
    branch = &block->branch;
  }
  counts_[static_cast<unsigned>(Counts::baclears)] += baclears;
  return {.instructions = passed_before(here), .missed = missed, .notes = std::span{notes_.data(), note}};
}

void ProcessorModel::saw_branches(SeenBlocks& all) {
  const Predicted p = predict(all);
  keep_noted(all, p.notes);
  hierarchy_.advance(p.missed * hierarchy_.profile().branches.mispredict_penalty);
  all.now += p.instructions;
  all.line = all.blocks.back()->lines.back().linear;
  all.branch = all.blocks.back()->branch;
}

/// With a clock, when times_ are known; without one, before SeenBlocks::now changes.
void ProcessorModel::keep_noted(const SeenBlocks& all, std::span<const Note> notes) {
  // Those that kept_branches() may return, and the one before them, for its time.
  const std::size_t wanted =
      filter_.call_stack ? notes.size() : std::min<std::size_t>(notes.size(), filter_.depth + 1U);
  kept_count_ += notes.size() - wanted;
  for (const Note note : notes.last(wanted)) {
    const std::size_t n = place_in(note);
    const SeenBranch& b = n == 0 ? all.branch : all.blocks[n - 1]->branch;
    put_kept(kept_count_++, b, all.blocks[n]->rip, clock_ != nullptr ? times_[n] : all.now + passed_before(note),
             note % 2 != 0);
  }
}

}  // namespace vpmu::uarch
