#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "uarch/profiles.hpp"
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
  void clear();

 private:
  static constexpr unsigned most_returns = 32;
  bool conditional(const Branch& branch);
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
