#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "uarch/profiles.hpp"
#include "uarch/state.hpp"
#include "vpmu/retirement.hpp"

namespace vpmu::uarch {

/// A branch that has retired.
struct Branch {
  std::uint64_t at{};      ///< Its address,
  std::uint64_t behind{};  ///< that of the instruction behind it, where a call returns to,
  std::uint64_t to{};      ///< and where it went.
  BranchKind kind{};
  bool taken{};
};

/// Predicts branches from those before them. Conditional: gshare, two-bit counters by address and global history.
/// Indirect: targets by address and history. Returns: a stack that wraps around and forgets its oldest. Direct jumps
/// and calls are always predicted; far branches never.
///
/// Intel tells nothing of its predictors: which branches this one mispredicts says how predictable they are, not what a
/// CPU would do.
class BranchPredictor {
 public:
  explicit BranchPredictor(const BranchShapes& shapes);
  /// Whether the branch was predicted wrongly; it learns from it.
  bool retire(const Branch& branch);
  /// The same of a conditional one.
  bool conditional(std::uint64_t at, bool taken) {
    std::uint8_t& counter = counters_[slot(at)];
    const bool predicted = counter >= weakly_taken;
    // From a table: with branches of its own the host would mispredict where the guest does.
    constexpr std::array<std::array<std::uint8_t, 4>, 2> next{{{0, 0, 1, 2}, {1, 2, 3, 3}}};
    counter = next[taken ? 1 : 0][counter];
    history_ = (history_ << 1 | (taken ? 1 : 0)) & history_mask_;
    return predicted != taken;
  }
  void clear();
  /// What it has learnt. Behind values that are no predictor's it predicts something.
  void visit_state(const StateVisitor& visit);

 private:
  static constexpr unsigned most_returns = 32;
  /// Counters go from 0, strongly not taken, to 3, strongly taken; from this one on they predict taken.
  static constexpr std::uint8_t weakly_taken = 2;
  bool indirect(const Branch& branch);
  bool return_from(const Branch& branch);
  [[nodiscard]] std::uint64_t slot(std::uint64_t at) const { return (at ^ at >> 16 ^ history_) & history_mask_; }

  struct Target {
    std::uint64_t at{~0ULL};
    std::uint64_t to{};
  };
  BranchShapes shapes_;
  std::uint64_t history_mask_;
  std::uint64_t history_{};
  std::vector<std::uint8_t> counters_;
  std::vector<Target> targets_;
  std::array<std::uint64_t, most_returns> returns_{};
  unsigned top_{};    ///< Where the next return address goes.
  unsigned depth_{};  ///< Of those that are known.
};

}  // namespace vpmu::uarch
