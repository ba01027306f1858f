#include "exec/observe/tap_notes.hpp"

#include <algorithm>
#include <utility>

#include "exec/memory/access.hpp"
#include "exec/state/dispatch.hpp"

namespace vpmu::exec {
namespace {

constexpr std::uint64_t line_bytes = 64;
constexpr std::uint64_t word = 8;
/// Entries that are always free when a block begins: the quick notes of its ops, two at most for each, do not check for
/// room.
constexpr unsigned reserve = 100;
static_assert(reserve > 2 * Block::max_ops);

}  // namespace

void tell_before(Tap& t, unsigned end) {
  t.observer->saw(std::span{t.seen}.first(end));
  std::copy(t.seen.begin() + end, t.seen.begin() + t.count, t.seen.begin());
  t.count -= end;
  t.first = t.first > end ? t.first - end : 0;
}

void make_room(Tap& t) {
  if (t.count + reserve > t.seen.size()) tell_before(t, t.running && t.first != 0 ? t.first : t.count);
}

namespace {

Seen& add(Tap& t) {
  make_room(t);
  return t.seen[t.count++];
}

std::uint8_t flags_of(std::uint8_t events) {
  return static_cast<std::uint8_t>(((events & event_load) != 0 ? Seen::op_loads : 0) |
                                   ((events & event_store) != 0 ? Seen::op_stores : 0));
}

/// The op before has retired, since it has not given up.
void finish_op(Tap& t) {
  if (!t.running) return;
  t.running = false;
  add(t).retired = {.flags = flags_of(t.events)};
}

/// `now` instructions have retired, the branch among them.
void finish_branch(Tap& t, std::uint64_t to, std::uint64_t now) {
  const SeenBranch& b = t.branch;
  if (b.kind == BranchKind::none) return;
  const bool taken = b.kind != BranchKind::conditional || to != b.fall_through;
  add(t).branch = {.branch_kind = b.kind,
                   .taken = taken,
                   .now = static_cast<std::uint32_t>(now),
                   .at = b.at,
                   .fall_through = b.fall_through,
                   .to = to};
  t.branch.kind = BranchKind::none;
}

}  // namespace

void begin_op(Core& c, const Op& op, std::uint64_t now) {
  Tap& t = *c.tap;
  finish_op(t);
  if ((op.events & (event_load | event_store)) == 0) return;
  c.tlb = &t.closed;
  t.running = true;
  t.partly = false;
  t.first = t.count;
  t.events = op.events;
  t.offset = op.offset;
  t.now = now;
}

namespace {

/// Notes the fetch of the first `bytes` of the block.
void fetch(Tap& t, const Block& block, std::uint64_t bytes) {
  for (const SeenCode& line : block.observed->seen.lines) {
    if (line.linear >= block.observed->seen.rip + bytes) return;
    if (line.linear == t.line) continue;
    t.line = line.linear;
    add(t).code = {.global = line.global,
                   .page_bytes = static_cast<std::uint32_t>(line.page_bytes),
                   .linear = line.linear,
                   .physical = line.physical};
  }
}

void expect_branch(Tap& t, const Block& block, const Op& op) {
  if ((op.events & event_branch) != 0) t.branch = block.observed->seen.branch;
}

}  // namespace

std::uint64_t retired_before_block(const Core& core) {
  const Tap& t = *core.tap;
  return t.passed + static_cast<std::uint64_t>(t.begun_with - core.left[count_instructions] -
                                               core.block->counts[count_instructions]);
}
void note_beginning(Tap& t, const Block& block, std::uint64_t at_entry) {
  t.at_entry = at_entry;
  finish_branch(t, block.observed->seen.rip, at_entry);
  add(t).begun = {.block = &block.observed->seen, .now = at_entry};
  make_room(t);
  fetch(t, block, block.code().size());
  t.branch = block.observed->seen.branch;
}

namespace {

void begin_block(Core& core) {
  finish_op(*core.tap);
  note_beginning(*core.tap, *core.block, retired_before_block(core));
}

VPMU_PART_OF_OP void run_really(const Op* op, Core* c) { return c->block->observed->real[index_of(op, c)](op, c); }

enum class Place : std::uint8_t { operand, stack };
enum class Does : std::uint8_t { load, store, both };  // both: first the one, then the other

template <Place P, Does D>
VPMU_PART_OF_OP std::uint64_t place(const Op* op, const Core* c) {
  if constexpr (P == Place::operand) return address(op, c);
  return c->r[rsp] - (D == Does::store ? word : 0);
}

template <Place P, Does D>
VPMU_PART_OF_OP bool note_fast(const Op* op, Core* c) {
  const std::uint64_t at = place<P, D>(op, c);
  const std::uint64_t bytes = P == Place::operand ? op->bytes : word;
  if (!(D == Does::load ? can_read_fast(c, at, bytes) : can_write_fast(c, at, bytes))) [[unlikely]]
    return false;
  Tap& t = *c->tap;
  const std::uint8_t retires = Seen::retires | flags_of(op->events);
  Seen::Access access = access_of(t, rights_in(c->tlb, *c), at, bytes, t.at_entry + index_of(op, c));
  if constexpr (D == Does::both) t.seen[t.count++].access = access;
  access.flags |= static_cast<std::uint8_t>((D == Does::load ? 0 : Seen::store) | retires);
  t.seen[t.count++].access = access;
  return true;
}

template <bool First>
VPMU_PART_OF_OP void begin(Core* c) {
  if constexpr (First) begin_block(*c);
}

/// For an op whose accesses are not known beforehand, and where the TLB lacks the page.
void observe_slow_path(const Op* op, Core* c) {
  begin_op(*c, *op, c->tap->at_entry + index_of(op, c));
  return run_really(op, c);
}
template <Place P, Does D>
void observe_again(const Op* op, Core* c) {
  finish_op(*c->tap);
  choose_tlb(c);
  if (!note_fast<P, D>(op, c)) return observe_slow_path(op, c);
  return run_really(op, c);
}

template <Place P, Does D, bool First>
void observe(const Op* op, Core* c) {
  begin<First>(c);
  // While an op is running the TLB is the empty one.
  if (!note_fast<P, D>(op, c)) [[unlikely]]
    return observe_again<P, D>(op, c);
  return run_really(op, c);
}
template <bool First>
void observe_others(const Op* op, Core* c) {
  begin<First>(c);
  return observe_slow_path(op, c);
}
/// The first op of a block, when it makes no access.
void observe_beginning(const Op* op, Core* c) {
  begin_block(*c);
  return run_really(op, c);
}

Does does(std::uint8_t events) {
  if ((events & event_store) == 0) return Does::load;
  return (events & event_load) == 0 ? Does::store : Does::both;
}

template <bool First>
Run observer_of(std::uint8_t events) {
  if ((events & (event_load | event_store)) == 0) return observe_beginning;
  if ((events & event_at_stack) != 0)
    return does(events) == Does::load ? observe<Place::stack, Does::load, First>
                                      : observe<Place::stack, Does::store, First>;
  if ((events & event_at_operand) == 0) return observe_others<First>;
  switch (does(events)) {
    case Does::load: return observe<Place::operand, Does::load, First>;
    case Does::store: return observe<Place::operand, Does::store, First>;
    case Does::both: return observe<Place::operand, Does::both, First>;
  }
  return nullptr;
}

}  // namespace

bool note_if_fast(const Op* op, Core* c) {
  const Does d = does(op->events);
  if ((op->events & event_at_stack) != 0)
    return d == Does::load ? note_fast<Place::stack, Does::load>(op, c) : note_fast<Place::stack, Does::store>(op, c);
  if ((op->events & event_at_operand) == 0) return false;
  switch (d) {
    case Does::load: return note_fast<Place::operand, Does::load>(op, c);
    case Does::store: return note_fast<Place::operand, Does::store>(op, c);
    case Does::both: return note_fast<Place::operand, Does::both>(op, c);
  }
  return false;
}

namespace {

void note_access(Tap& t, Seen::Access access) {
  if (t.count > t.first) {
    const Seen::Access& last = t.seen[t.count - 1].access;
    if (last.is(Seen::store) == access.is(Seen::store) && access.linear % page_size == 0 &&
        last.linear + last.bytes == access.linear)
      access.flags |= Seen::second_half;
  }
  add(t).access = access;
}

}  // namespace

// All but the last op, which is no instruction.
void prepare(Block& block, std::uint64_t rip, const SeenPage& page) {
  block.observed = std::make_unique<Observed>();
  block.observed->pages[0] = page;
  SeenBlock& seen = block.observed->seen;
  seen.rip = rip;
  seen.instructions = static_cast<std::uint32_t>(block.counts[count_instructions]);
  seen.bits = block.mode == CodeMode::bits64 ? 64 : block.mode == CodeMode::bits32 ? 32 : 16;
  seen.code = block.code();
  for (std::size_t i = 0; i + 1 < block.ops().size(); ++i) {
    Op& op = block.ops()[i];
    block.observed->real.push_back(op.run);
    if (i == 0)
      op.run = observer_of<true>(op.events);
    else if ((op.events & (event_load | event_store)) != 0)
      op.run = observer_of<false>(op.events);
  }
  const Op& last = block.ops()[block.observed->real.size() - 1];
  const std::uint64_t at = rip + last.offset;
  if ((last.events & event_branch) != 0)
    seen.branch = {.at = at, .fall_through = at + last.length, .kind = block.branch};
}

void see_lines(Block& block) {
  std::vector<SeenCode>& lines = block.observed->lines;
  lines.clear();
  const std::uint64_t rip = block.observed->seen.rip;
  for (std::uint64_t at = rip & ~(line_bytes - 1); at < rip + block.code().size(); at += line_bytes) {
    const SeenPage& page = at / page_size == rip / page_size ? block.observed->pages[0] : block.observed->pages[1];
    lines.push_back({.linear = at,
                     .physical = page.physical + at % page_size,
                     .page_bytes = page.page_bytes,
                     .global = page.global});
  }
  block.observed->seen.lines = lines;
}

void begin_alone(Core& core, std::int64_t left) {
  Tap& t = *core.tap;
  const Block& block = *core.block;
  const Op& op = block.ops()[0];
  const std::uint64_t now = t.passed + static_cast<std::uint64_t>(t.begun_with - left);
  finish_op(t);
  finish_branch(t, block.observed->seen.rip, now);
  add(t).begun = {.block = &block.observed->seen, .now = now};
  t.at_entry = now;
  fetch(t, block, op.length);
  expect_branch(t, block, op);
  begin_op(core, op, now);
}

// What was noted of the op did not happen; what ran before it in the block did.
void note_left(Core& core, const Op& op) {
  Tap& t = *core.tap;
  t.branch.kind = BranchKind::none;
  if (t.running && t.offset == op.offset) {
    t.count = t.first;
    t.running = false;
    if (t.partly) add(t).abandoned = {};
  } else if (t.running) {
    finish_op(t);
  } else if ((op.events & (event_at_operand | event_at_stack)) != 0) {
    t.count -= does(op.events) == Does::both ? 2 : 1;
  }
}

void note_element(Core& core) {
  Tap& t = *core.tap;
  t.partly = true;
  tell_before(t, t.count);
}

void note_flush(Core& core, const Op& op, std::uint64_t at) {
  Tap& t = *core.tap;
  finish_op(t);
  const SeenPage& page = t.pages[static_cast<unsigned>(rights_of(core))][tlb_place(at)];
  const std::size_t before = core.stepping ? 0 : index_of(&op, &core);  // stepping, it is not one of the block's
  add(t).flush = {.linear = at, .physical = page.physical + at % page_size, .now = t.at_entry + before};
  if (t.line == (at & ~(line_bytes - 1))) t.line = ~0ULL;  // the code that runs: it is fetched anew
}

// Translated as a load of a byte; what would make a load stop is forgotten.
void note_prefetch(Core& core, std::uint64_t at, Prefetch to) {
  const Stop stop = core.stop;
  const auto missing = core.missing;
  const bool is_mapped = find_tapped(&core, at, PagingAccess::read, 0) != nullptr;
  core.stop = stop;
  core.missing = missing;
  Tap& t = *core.tap;
  const SeenPage page = is_mapped ? t.pages[static_cast<unsigned>(rights_of(core))][tlb_place(at)] : SeenPage{};
  const unsigned flags = static_cast<unsigned>(to) << Seen::prefetch_at | global_flag(page);
  add(t).access = {.flags = static_cast<std::uint8_t>(flags),
                   .bytes = 1,
                   .page_bytes = page.page_bytes,
                   .linear = at,
                   .physical = page.physical + at % page_size,
                   .now = t.now};
}

void begin_run(Core& core) {
  Tap& t = *core.tap;
  t.held = std::max<std::int64_t>(core.left[count_instructions] - Tap::max_logged, 0);
  core.left -= only_instructions(t.held);
  core.aside += t.held;
  t.begun_with = core.left[count_instructions];
}

void continue_run(Core& core) {
  Tap& t = *core.tap;
  const std::int64_t left = core.left[count_instructions];
  if (t.held == 0 || left >= static_cast<std::int64_t>(Block::max_ops)) return;
  const std::int64_t more = std::min(t.held, Tap::max_logged - left);
  t.held -= more;
  core.aside -= more;
  core.left += only_instructions(more);
  t.begun_with += more;
}

void end_run(Core& core) {
  Tap& t = *core.tap;
  t.passed += static_cast<std::uint64_t>(t.begun_with - core.left[count_instructions]);
  finish_op(t);
  finish_branch(t, core.rip, t.passed);
  tell_before(t, t.count);
}

void tell_all(Core& core) {
  finish_op(*core.tap);
  tell_before(*core.tap, core.tap->count);
}

void end_op(Core& core) {
  finish_op(*core.tap);
  choose_tlb(&core);
}

Run observed_run(const Block& block, std::size_t op) {
  const std::uint8_t events = block.ops()[op].events;
  return (events & (event_load | event_store)) == 0 ? block.observed->real[op] : observer_of<false>(events);
}

std::byte* find_tapped(Core* c, std::uint64_t at, PagingAccess access, unsigned bytes) {
  const Rights rights = rights_of(*c);
  const std::size_t place = tlb_place(at);
  const Tlb& tlb = c->tlbs[static_cast<unsigned>(rights)];
  const std::uint64_t tag = access == PagingAccess::write ? tlb.write[place] : tlb.read[place];
  std::byte* const host =
      is_tagged(tag, at, 1) ? host_address(at, tlb.add[place]) : find_in_tables(c, rights, at, access);
  if (host == nullptr || bytes == 0 || !c->tap->running) return host;
  const SeenPage& page = c->tap->pages[static_cast<unsigned>(rights)][place];
  const unsigned stores = Seen::store | ((c->tap->events & event_locked) != 0 ? unsigned{Seen::locked} : 0U);
  const unsigned flags = (access == PagingAccess::write ? stores : 0U) | global_flag(page);
  note_access(*c->tap, {.flags = static_cast<std::uint8_t>(flags),
                        .bytes = static_cast<std::uint16_t>(bytes),
                        .page_bytes = page.page_bytes,
                        .linear = at,
                        .physical = page.physical + at % page_size,
                        .now = c->tap->now});
  return host;
}

}  // namespace vpmu::exec
