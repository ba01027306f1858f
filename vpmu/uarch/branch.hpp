#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "uarch/conditional.hpp"
#include "uarch/path_history.hpp"
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

/// When the front end learns where a branch goes.
enum class Foreseen : std::uint8_t {
  by_prediction,  ///< Before it is fetched.
  by_decoder,     ///< When it is decoded: no one knew that there is a branch that is taken (BACLEARS).
  by_execution,   ///< It was mispredicted.
};

/// Which branches are known to be taken somewhere, by the 16 bytes in which they begin: up to four of them.
class TargetBuffer {
 public:
  explicit TargetBuffer(const BranchShapes& shapes)
      : sets_{shapes.buffer.sets}, is_hashed_{shapes.buffer_is_hashed}, tags_(shapes.buffer.entries()) {}
  /// Whether the branch is there; afterwards it is.
  bool touch(std::uint64_t at) {
    const std::uint64_t block = at >> 4, folded = is_hashed_ ? block ^ block >> 10 ^ block >> 20 : block;
    const auto tag = static_cast<std::uint32_t>((at + 1) * 0x9E37'79B9'7F4A'7C15ULL >> 32) | 1U;
    std::uint32_t* const tags = tags_.data() + (folded & (sets_ - 1)) * ways;
    return tags[0] == tag || bring_forward(tags, tag);
  }
  void visit_state(const StateVisitor& visit) { visit(state_bytes(tags_)); }

 private:
  static constexpr unsigned ways = 4;
  static bool bring_forward(std::uint32_t* tags, std::uint32_t tag) {
    std::uint32_t* const found = std::find(tags + 1, tags + ways, tag);
    const bool is_there = found != tags + ways;
    std::copy_backward(tags, is_there ? found : found - 1, is_there ? found + 1 : found);
    tags[0] = tag;
    return is_there;
  }
  std::uint64_t sets_;
  bool is_hashed_;
  std::vector<std::uint32_t> tags_;  ///< Of each set the latest first. 0: none.
};

/// Targets by some key that is not 0.
class TargetTable {
 public:
  explicit TargetTable(Shape shape) : shape_{shape}, entries_(shape.entries()) {}
  /// Null if it is not there; valid until put().
  [[nodiscard]] const std::uint64_t* find(std::uint64_t key) const;
  /// Instead of the one of its set that was put there first, if it is not there.
  void put(std::uint64_t key, std::uint64_t to);
  void visit_state(const StateVisitor& visit) { visit(state_bytes(entries_)); }

 private:
  struct Entry {
    std::uint64_t key{}, to{};
  };
  [[nodiscard]] std::size_t first_of(std::uint64_t key) const { return (key >> 20) % shape_.sets * shape_.ways; }
  Shape shape_;
  std::vector<Entry> entries_;
};

/// Predicts branches from those before them: conditional ones by ConditionalPredictor, indirect ones by address and
/// history, returns by a stack that wraps around and forgets its oldest. Direct jumps and calls are predicted when
/// their target is known, and otherwise by the decoder; far branches never.
///
/// What is published of Intel's predictors is in here, with its source; the rest is no CPU's.
class BranchPredictor {
 public:
  explicit BranchPredictor(const BranchShapes& shapes);
  /// When it was known where the branch goes; learns from it.
  Foreseen retire(const Branch& branch) {
    const bool is_conditional = branch.kind == BranchKind::conditional;
    const bool mispredicted =
        is_conditional ? conditional_.retire(branch.at, branch.taken, path_) : mispredicts(branch);
    Foreseen foreseen = mispredicted ? Foreseen::by_execution : Foreseen::by_prediction;
    if (!branch.taken || branch.kind == BranchKind::none || branch.kind == BranchKind::far) return foreseen;
    if (shapes_.outcomes == 0) path_.took(branch.fall_through - 1, branch.to);
    // Of an indirect branch the decoder does not know more.
    if (!buffer_.touch(branch.at) && !mispredicted && !is_indirect(branch.kind)) foreseen = Foreseen::by_decoder;
    return foreseen;
  }
  /// What it has learnt. Any bytes are accepted: it then predicts something.
  void visit_state(const StateVisitor& visit);

 private:
  static constexpr unsigned max_returns = 32;
  static bool is_indirect(BranchKind kind) {
    return kind == BranchKind::near_ind_call || kind == BranchKind::near_ind_jmp;
  }
  /// Of a branch that is not conditional.
  bool mispredicts(const Branch& b) {
    if (is_near_call(b.kind)) push_return(b.fall_through);
    if (b.kind == BranchKind::near_ret) return return_from(b.at, b.to);
    if (is_indirect(b.kind)) return indirect(b.at, b.to);
    return b.kind == BranchKind::far;
  }
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

  BranchShapes shapes_;
  ConditionalPredictor conditional_;
  PathHistory path_;
  TargetBuffer buffer_;
  /// The targets of indirect branches: the last one of each; and those that were not that, by history.
  TargetTable last_targets_, targets_;
  std::array<std::uint64_t, max_returns> returns_{};
  unsigned top_{};    ///< Where the next return address goes.
  unsigned depth_{};  ///< Number of valid return addresses.
};

}  // namespace vpmu::uarch
