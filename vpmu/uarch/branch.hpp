#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "uarch/profiles.hpp"
#include "uarch/state.hpp"
#include "vpmu/retirement.hpp"

namespace vpmu::uarch {

/// A branch that has retired.
struct Branch {
  std::uint64_t at{};            ///< Its address.
  std::uint64_t fall_through{};  ///< The address of the next instruction, where a call returns to.
  std::uint64_t to{};            ///< Where it went.
  BranchKind kind{};
  bool taken{};
};

/// The gshare predictor of conditional branches: two-bit counters by address and global history. A copy shares the
/// counters. A loop over many branches works on a local copy, which the compiler keeps in host registers.
struct Gshare {
  /// Counters go from 0, strongly not taken, to 3, strongly taken; from this one on they predict taken.
  static constexpr std::uint8_t weakly_taken = 2;
  /// The outcome of a branch as one number. The sum of the outcomes of fewer than 2^sum_bits branches tells how many
  /// were taken, mispredicted, and both.
  using Outcome = std::uint64_t;
  static constexpr unsigned sum_bits = 13;
  static constexpr unsigned mispredicted_at = 8, taken_sum_at = 24, mispredicted_sum_at = taken_sum_at + sum_bits,
                            both_sum_at = mispredicted_sum_at + sum_bits;
  static constexpr unsigned sum(Outcome of, unsigned at) {
    return static_cast<unsigned>(of >> at & ((1U << sum_bits) - 1));
  }
  static constexpr unsigned mispredicted(Outcome of) { return static_cast<unsigned>(of >> mispredicted_at & 1); }

  std::uint8_t* counters{};
  std::uint64_t history_mask{};
  std::uint64_t history{};  ///< Bits above history_mask are not used.

  [[nodiscard]] std::uint64_t slot(std::uint64_t at) const { return (at ^ at >> 16 ^ history) & history_mask; }
  /// Predicts the branch and learns from it; `taken` is 1 or 0. Uses a table, because the host would mispredict a
  /// branch here wherever the guest's is.
  Outcome retire(std::uint64_t at, unsigned taken) {
    std::uint8_t& counter = counters[slot(at)];
    const Outcome outcome = outcomes[taken * 4 + counter];
    counter = static_cast<std::uint8_t>(outcome);
    history = history << 1 | taken;
    return outcome;
  }

 private:
  /// By `taken` and the counter. The low byte is the counter's next value.
  static constexpr std::array<Outcome, 8> outcomes = [] {
    std::array<Outcome, 8> all{};
    for (std::uint64_t taken = 0; taken < 2; ++taken)
      for (std::uint64_t from = 0; from < 4; ++from) {
        const std::uint64_t missed = from / weakly_taken ^ taken;
        const std::uint64_t to = taken != 0 ? from + (from < 3 ? 1 : 0) : from - (from > 0 ? 1 : 0);
        all[taken * 4 + from] = to | missed << mispredicted_at | taken << taken_sum_at | missed << mispredicted_sum_at |
                                (taken & missed) << both_sum_at;
      }
    return all;
  }();
};

/// Predicts branches from those before them. Conditional: Gshare.
/// Indirect: targets by address and history. Returns: a stack that wraps around and forgets its oldest. Direct jumps
/// and calls are always predicted rightly; far branches never.
///
/// Intel does not document its predictors. What this one mispredicts shows how predictable branches are, not what a CPU
/// would do.
class BranchPredictor {
 public:
  explicit BranchPredictor(const BranchShapes& shapes);
  /// Whether the branch was mispredicted; learns from it.
  bool retire(const Branch& branch);
  /// The same for a conditional branch.
  bool conditional(std::uint64_t at, bool taken) {
    Gshare gshare = begin_conditional();
    const bool mispredicted = Gshare::mispredicted(gshare.retire(at, taken ? 1 : 0)) != 0;
    end_conditional(gshare);
    return mispredicted;
  }
  /// The same for a call, a return or a jump, which are always taken.
  bool unconditional(std::uint64_t at, std::uint64_t fall_through, std::uint64_t to, BranchKind kind) {
    if (is_near_call(kind)) push_return(fall_through);
    if (kind == BranchKind::near_ret) return return_from(at, to);
    if (kind == BranchKind::near_ind_call || kind == BranchKind::near_ind_jmp) return indirect(at, to);
    return kind == BranchKind::far;
  }
  /// For many conditional branches in a row: no other branch may be predicted in between.
  Gshare begin_conditional() { return {counters_.data(), history_mask_, history_}; }
  void end_conditional(const Gshare& gshare) { history_ = gshare.history & history_mask_; }
  /// What it has learnt. Any bytes are accepted: it then predicts something.
  void visit_state(const StateVisitor& visit);

 private:
  static constexpr unsigned max_returns = 32;
  bool indirect(std::uint64_t at, std::uint64_t to);
  void push_return(std::uint64_t to) {
    returns_[top_] = to;
    top_ = top_ + 1 == shapes_.return_stack ? 0 : top_ + 1;
    depth_ = std::min<unsigned>(depth_ + 1, shapes_.return_stack);
  }
  bool return_from(std::uint64_t at, std::uint64_t to) {
    if (depth_ == 0) [[unlikely]]
      return indirect(at, to);
    --depth_;
    top_ = (top_ == 0 ? shapes_.return_stack : top_) - 1;
    return returns_[top_] != to;
  }

  struct Target {
    std::uint64_t at{~0ULL};
    std::uint64_t to{};
  };
  BranchShapes shapes_;
  std::uint64_t history_mask_;
  std::uint64_t history_{};
  std::vector<std::uint8_t> counters_;
  std::vector<Target> targets_;
  std::array<std::uint64_t, max_returns> returns_{};
  unsigned top_{};    ///< Where the next return address goes.
  unsigned depth_{};  ///< Number of valid return addresses.
};

}  // namespace vpmu::uarch
