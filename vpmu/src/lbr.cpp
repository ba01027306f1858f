#include <algorithm>

#include "boundary.hpp"
#include "vpmu/pmu.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {
namespace {

namespace ls = reg::lbr_select;

// SDM 3B table 17-13: a set bit filters that kind out. The CPL bits apply to the level of the branch's target.
bool filtered(std::uint64_t select, const BranchOutcome& b) {
  if (b.target_cpl == 0 ? ls::CPL_EQ_0::test(select) : ls::CPL_NEQ_0::test(select)) return true;
  switch (b.kind) {
    case BranchKind::none: return true;
    case BranchKind::conditional: return ls::JCC::test(select);
    case BranchKind::near_rel_call: return ls::NEAR_REL_CALL::test(select);
    case BranchKind::near_ind_call: return ls::NEAR_IND_CALL::test(select);
    case BranchKind::near_ret: return ls::NEAR_RET::test(select);
    case BranchKind::near_ind_jmp: return ls::NEAR_IND_JMP::test(select);
    case BranchKind::near_rel_jmp: return ls::NEAR_REL_JMP::test(select);
    case BranchKind::far: return ls::FAR_BRANCH::test(select);
  }
  return true;
}

}  // namespace

bool Pmu::records_branches() const {
  return desc_.lbr_depth != 0 && reg::debugctl::LBR::test(state_.debugctl) &&
         !reg::global_status::LBR_FRZ::test(state_.global_status);
}

void Pmu::record_branch(const TakenBranch& branch, GuestEnv& env) {
  if (!branch.what.taken) return;
  push_branch(branch);
  Boundary b;
  store_branch(branch, b, env);
  request_pmis(b, env);
}

// SDM 3B 17.4.2.
LbrFilter Pmu::lbr_filter() const {
  LbrFilter filter{.depth = desc_.lbr_depth, .call_stack = ls::EN_CALLSTACK::test(state_.lbr_select)};
  if (!records_branches()) return filter;
  constexpr std::uint8_t user = 3;
  for (const std::uint8_t cpl : {std::uint8_t{0}, user})
    for (unsigned kind = 0; kind <= static_cast<unsigned>(BranchKind::far); ++kind)
      if (!filtered(state_.lbr_select, {.kind = static_cast<BranchKind>(kind), .target_cpl = cpl}))
        filter.kinds[cpl == 0 ? 0 : 1] |= static_cast<std::uint8_t>(1U << kind);
  return filter;
}

// Rule Z5: same effect as retire() for each branch. Branches that were left out would have been overwritten: they only
// move TOS.
void Pmu::record_branches(const BranchRun& run, GuestEnv& env) {
  const bool records = records_branches();
  if (run.missing != 0 && records) {
    state_.lbr_tos = (state_.lbr_tos + run.missing) & (desc_.lbr_depth - 1U);
    state_.lbr_cycles = 0;
  }
  for (const PassedBranch& passed : run.branches) {
    state_.lbr_cycles += passed.cycles;
    if (records) push_branch(passed.branch);
  }
  state_.lbr_cycles += run.cycles_behind;
  store_branches(run, env);
}

// Rule Z5. SDM 3B 17.4.8; call-stack mode 17.9; LBR_INFO 17.10.
void Pmu::push_branch(const TakenBranch& taken) {
  const BranchOutcome& branch = taken.what;
  if (!records_branches() || filtered(state_.lbr_select, branch)) return;
  const std::uint64_t last = desc_.lbr_depth - 1U;
  const bool call_stack = ls::EN_CALLSTACK::test(state_.lbr_select);
  if (call_stack && branch.to_next && is_near_call(branch.kind)) return;
  if (call_stack && branch.kind == BranchKind::near_ret) {
    state_.lbr_from[state_.lbr_tos] = 0;
    state_.lbr_to[state_.lbr_tos] = 0;
    state_.lbr_info[state_.lbr_tos] = 0;
    state_.lbr_tos = (state_.lbr_tos - 1) & last;
    return;
  }
  state_.lbr_tos = (state_.lbr_tos + 1) & last;
  const std::uint64_t mispredicted = branch.mispredicted ? 1 : 0;
  std::uint64_t& entry_from = state_.lbr_from[state_.lbr_tos];
  entry_from = taken.from.value();
  state_.lbr_to[state_.lbr_tos] = taken.to.value();
  if (desc_.lbr_format == LbrFormat::eip_with_info)
    state_.lbr_info[state_.lbr_tos] = reg::lbr_info::MISPRED::make(mispredicted) |
                                      std::min<std::uint64_t>(state_.lbr_cycles, reg::lbr_info::CYCLES::mask);
  else
    entry_from = Bits<63>::set(taken.from.value(), mispredicted);
  state_.lbr_cycles = 0;
}

}  // namespace vpmu
