#pragma once
#include <array>
#include <cstdint>

/// Branches of known addresses, in branches.S. Each function writes `debugctl` to IA32_DEBUGCTL, runs them, and writes
/// 0.
namespace gt {

extern "C" {
/// One branch of each kind: see branch_kinds().
void gt_branch_kinds(std::uint64_t debugctl);
extern const char gt_kind_jump[], gt_kind_function[], gt_kind_call[], gt_kind_behind_call[], gt_kind_indirect_call[],
    gt_kind_behind_indirect_call[], gt_kind_indirect_jump[], gt_kind_far_return[], gt_kind_behind_far_return[],
    gt_kind_loop[], gt_kind_conditional[];

/// A loop of DEC and JNZ, `rounds` times: one taken branch fewer than rounds.
void gt_branch_loop(std::uint64_t debugctl, std::uint64_t rounds);
extern const char gt_branch_loop_head[], gt_branch_loop_branch[];

/// UD2, whose handler continues after it.
void gt_branch_ud2(std::uint64_t debugctl);
extern const char gt_branch_ud2_at[], gt_branch_ud2_behind[];

/// Three nested calls, and a call to the next instruction on the way. Writes 0 at the innermost if `stop_inside`.
void gt_call_stack(std::uint64_t debugctl, std::uint64_t stop_inside);
extern const char gt_stack_outer[], gt_stack_middle[], gt_stack_inner[], gt_stack_zero[], gt_stack_behind_zero[];

extern const char gt_vector_stubs[], gt_user_trampoline[], gt_user_done[];
}

/// Where the handler of a vector begins.
inline std::uint64_t vector_stub(std::uint64_t vector) {
  return reinterpret_cast<std::uint64_t>(gt_vector_stubs) + vector * 16;
}

/// A taken branch, and the bit of MSR_LBR_SELECT that keeps its kind out. SDM 3B tables 17-11 to 17-13.
struct KnownBranch {
  std::uint64_t from, to;
  unsigned select_bit;
};

/// The taken branches of gt_branch_kinds in order.
inline std::array<KnownBranch, 9> branch_kinds() {
  const auto at = [](const char* label) { return reinterpret_cast<std::uint64_t>(label); };
  constexpr unsigned jcc = 2, rel_call = 3, ind_call = 4, ret = 5, ind_jmp = 6, rel_jmp = 7, far = 8;
  return {{{at(gt_kind_jump), at(gt_kind_call), rel_jmp},
           {at(gt_kind_call), at(gt_kind_function), rel_call},
           {at(gt_kind_function), at(gt_kind_behind_call), ret},
           {at(gt_kind_indirect_call), at(gt_kind_function), ind_call},
           {at(gt_kind_function), at(gt_kind_behind_indirect_call), ret},
           {at(gt_kind_indirect_jump), at(gt_kind_far_return), ind_jmp},
           {at(gt_kind_far_return), at(gt_kind_behind_far_return), far},
           {at(gt_kind_conditional), at(gt_kind_loop), jcc},
           {at(gt_kind_conditional), at(gt_kind_loop), jcc}}};
}

}  // namespace gt
