#include "vpmu/event.hpp"

#include <algorithm>
#include <array>

#include "event_table.hpp"
#include "vpmu/counts.hpp"
#include "vpmu/generation.hpp"

namespace vpmu {
namespace {

/// The ability of an event that has both rows: `yes` wins over `only`, `only` over `disputed`, and any of them over
/// `no`.
PebsAbility widest(PebsAbility a, PebsAbility b) {
  if (a == PebsAbility::no) return b;
  return b == PebsAbility::no ? a : std::min(a, b);
}
static_assert(PebsAbility::yes < PebsAbility::only && PebsAbility::only < PebsAbility::disputed);

/// A code and umask that counts and has no name of its own.
struct Part {
  std::uint8_t code, umask;
  Counts counts;
};
/// From Sandy Bridge on umask bits qualify each other. Locked stores have no row, though LOCK may be combined with
/// STORES; of branches only conditional ones can be not taken. SDM 3B tables 19-13 (88H, 89H, D0H), 19-9, 19-5.
constexpr std::array parts{Part{0x88, 0x42, Counts::never},
                           Part{0x88, 0x44, Counts::never},
                           Part{0x88, 0x48, Counts::never},
                           Part{0x88, 0x50, Counts::never},
                           Part{0x88, 0x60, Counts::never},
                           Part{0x89, 0x41, Counts::mispredicts_not_taken},
                           Part{0x89, 0x42, Counts::never},
                           Part{0x89, 0x44, Counts::never},
                           Part{0x89, 0x48, Counts::never},
                           Part{0x89, 0x50, Counts::never},
                           Part{0x89, 0x60, Counts::never},
                           Part{0x89, 0x82, Counts::mispredicts_jump_direct},
                           Part{0x89, 0x90, Counts::mispredicts_call_direct},
                           Part{0x89, 0xA0, Counts::mispredicts_call_indirect},
                           Part{0xD0, 0x22, Counts::locked_stores}};

/// The outcomes that branches can have: only a conditional one can be not taken.
constexpr auto branch_outcomes = [] {
  constexpr auto kinds = static_cast<unsigned>(BranchKind::far);
  std::array<BranchOutcome, 2 * (kinds + 1)> all{};
  std::size_t n = 0;
  for (const bool mispredicted : {false, true}) {
    for (unsigned kind = 1; kind <= kinds; ++kind)
      all[n++] = {.kind = static_cast<BranchKind>(kind), .taken = true, .mispredicted = mispredicted};
    all[n++] = {.kind = BranchKind::conditional, .taken = false, .mispredicted = mispredicted};
  }
  return all;
}();

/// Whether all that `a` counts is counted by `b` too.
bool is_within(const CountsDesc& a, const CountsDesc& b) {
  if (a.counts == b.counts || a.counts == Counts::never) return true;
  if (b.counts == Counts::instructions) return !a.instructions.empty() && a.instructions.twice == 0;
  if (a.more != nullptr || b.more != nullptr || !b.caches.contains(a.caches)) return false;
  for (const BranchOutcome& branch : branch_outcomes)
    if (a.branches.matches(branch) && !b.branches.matches(branch)) return false;
  const AccessPattern& x = a.accesses;
  const AccessPattern& y = b.accesses;
  const bool has_access = x.loads || x.stores;
  if (has_access &&
      ((x.loads && !y.loads) || (x.stores && !y.stores) || (x.levels & ~y.levels) != 0 || (x.pages & ~y.pages) != 0 ||
       (y.tlb != TlbMiss::any && y.tlb != x.tlb && (y.tlb != TlbMiss::first || x.tlb == TlbMiss::any)) ||
       (y.only_locked && !x.only_locked) || (y.only_split && !x.only_split) || x.once != y.once || (x.each && !y.each)))
    return false;
  return (a.instructions | b.instructions) == b.instructions;
}

/// Whether a union of the kind with others is well defined: no second MSR selects what counts, it is no clock, no
/// cycles or slots of a pipeline, of which it is not known how often two come together, and nothing that some sources
/// do not tell, of which the rest would not be the union.
bool can_be_united(Counts counts) {
  const CountsDesc& desc = describe(counts);
  return counts != Counts::unmodelled && counts != Counts::load_latency && counts != Counts::frontend &&
         !is_offcore(counts) && desc.told_by != ToldBy::clock && desc.told_by != ToldBy::timed_caches &&
         desc.pipeline.of.empty();
}

/// The rows and parts that a union is made of.
struct Union {
  EventClass result{};
  CountsList kinds{};
  std::uint8_t umask{};  ///< The bits that are made up.
  bool is_whole{true};   ///< All kinds found room.

  void add(Counts counts, std::uint8_t bits) {
    umask |= bits;
    for (const Counts kind : kinds.all())
      if (is_within(describe(counts), describe(kind))) return;
    CountsList left;
    for (const Counts kind : kinds.all())
      if (!is_within(describe(kind), describe(counts))) left.add(kind);
    is_whole = is_whole && left.add(counts);
    kinds = left;
  }
};

/// The plain kind that counts the same as the list: of branches, or of classes of instructions; else `several`.
Counts single(const CountsList& kinds) {
  if (kinds.all().size() == 1) return kinds.all().front();
  const bool are_accesses = std::ranges::all_of(kinds.all(), [](Counts kind) {
    return describe(kind).branches.kinds.empty() && describe(kind).instructions.empty();
  });
  if (are_accesses) return Counts::several;
  for (unsigned i = 0; i < counts_kinds; ++i) {
    const CountsDesc& whole = describe(static_cast<Counts>(i));
    if (whole.more != nullptr || whole.accesses.loads || whole.accesses.stores) continue;
    if (whole.branches.kinds.empty() && whole.instructions.empty()) continue;
    InstructionPattern instructions;
    bool is_same = true;
    for (const Counts kind : kinds.all()) {
      is_same = is_same && is_within(describe(kind), whole);
      instructions = instructions | describe(kind).instructions;
    }
    for (const BranchOutcome& branch : branch_outcomes)
      if (whole.branches.matches(branch) && occurrences(kinds.all(), {.branch = branch}) == 0) is_same = false;
    if (is_same && instructions == whole.instructions) return whole.counts;
  }
  return Counts::several;
}

EventClass unite(const GenerationDesc& generation, const EventSpec& spec) {
  Union all;
  const auto is_part = [&spec](std::uint8_t code, std::uint8_t umask) {
    return code == spec.code && umask != 0 && (umask & ~spec.umask) == 0;
  };
  const auto first = std::ranges::lower_bound(generation.events, spec.code, {}, &EventDesc::code);
  for (const EventDesc& row : std::span{first, generation.events.end()}) {
    if (row.code != spec.code) break;
    if (!is_part(row.code, row.umask) || !can_be_united(row.counts)) continue;
    all.add(row.counts, row.umask);
    all.result.pebs = widest(all.result.pebs, row.pebs);
    all.result.data_la |= row.data_la;
    all.result.l1_hit_indication |= row.l1_hit_indication;
  }
  if (generation.features.qualifying_umasks)
    for (const Part& part : parts)
      if (is_part(part.code, part.umask)) all.add(part.counts, part.umask);
  if (all.umask != spec.umask || !all.is_whole) return {};
  all.result.counts = single(all.kinds);
  if (all.result.counts == Counts::several) all.result.kinds = all.kinds;
  return all.result;
}

}  // namespace

EventClass classify(const GenerationDesc& generation, const EventSpec& spec) {
  if (spec.code == 0) return {};
  const std::span<const EventDesc> rows = events::rows_of(generation.events, spec.code, spec.umask);
  if (rows.empty()) return spec.umask == 0 ? EventClass{} : unite(generation, spec);
  EventClass result{.counts = rows.front().counts};
  for (const EventDesc& row : rows) {
    result.pebs = widest(result.pebs, row.pebs);
    result.data_la |= row.data_la;
    result.l1_hit_indication |= row.l1_hit_indication;
  }
  return result;
}

const EventDesc* find_event(const GenerationDesc& generation, std::string_view name) {
  const auto row = std::ranges::find(generation.events, name, &EventDesc::name);
  return row == generation.events.end() ? nullptr : &*row;
}

}  // namespace vpmu
