#include "exec/tap.hpp"

#include <algorithm>

#include "exec/access.hpp"
#include "exec/dispatch.hpp"

namespace vpmu::exec {
namespace {

constexpr std::uint64_t line_bytes = 64;
constexpr std::uint64_t word = 8;
/// Entries that are always free when a block begins: its ops' quick notes, two at most for each, do not look for room.
constexpr unsigned reserve = 100;
static_assert(reserve > 2 * Block::most_ops);

/// Tells the observer of all entries before `end`.
void tell_before(Tap& t, unsigned end) {
  t.observer->saw(std::span{t.seen}.first(end));
  std::copy(t.seen.begin() + end, t.seen.begin() + t.count, t.seen.begin());
  t.count -= end;
  t.first = t.first > end ? t.first - end : 0;
}

void make_room(Tap& t) {
  if (t.count + reserve > t.seen.size()) tell_before(t, t.running && t.first != 0 ? t.first : t.count);
}

Seen& add(Tap& t) {
  make_room(t);
  return t.seen[t.count++];
}

std::uint8_t flags_of(std::uint8_t events) {
  return static_cast<std::uint8_t>(((events & event_load) != 0 ? Seen::op_loads : 0) |
                                   ((events & event_store) != 0 ? Seen::op_stores : 0));
}

/// The op before has not given up: it has retired.
void finish_op(Tap& t) {
  if (!t.running) return;
  t.running = false;
  add(t) = {.kind = Seen::Kind::retired, .flags = flags_of(t.events)};
}

/// `now` instructions have retired, the branch among them.
void finish_branch(Tap& t, std::uint64_t to, std::uint64_t now) {
  const SeenBranch& b = t.branch;
  if (b.kind == BranchKind::none) return;
  const bool taken = b.kind != BranchKind::conditional || to != b.behind;
  add(t) = {.linear = b.at,
            .physical = to,
            .now = b.behind,
            .page_bytes = static_cast<std::uint32_t>(now),
            .bytes = static_cast<std::uint16_t>(b.kind),
            .kind = Seen::Kind::branch,
            .flags = static_cast<std::uint8_t>(taken ? Seen::taken : 0)};
  t.branch.kind = BranchKind::none;
}

/// An op whose accesses find_tapped() notes.
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

void fetch(Tap& t, const Block& block, std::uint64_t bytes) {
  for (std::uint64_t line = block.rip / line_bytes; line <= (block.rip + bytes - 1) / line_bytes; ++line) {
    if (line == t.line) continue;
    t.line = line;
    const std::uint64_t at = line * line_bytes;
    const SeenPage& page = at / page_size == block.rip / page_size || at < block.rip ? block.pages[0] : block.pages[1];
    add(t) = {.linear = at,
              .physical = page.physical + at % page_size,
              .page_bytes = static_cast<std::uint32_t>(page.page_bytes),
              .kind = Seen::Kind::code};
  }
}

void expect_branch(Tap& t, const Block& block, const Op& op) {
  if (block.branch == BranchKind::none || (op.events & event_branch) == 0) return;
  const std::uint64_t at = block.rip + op.offset;
  t.branch = {.at = at, .behind = at + op.length, .kind = block.branch};
}

void begin_block(Core& core) {
  Tap& t = *core.tap;
  const Block& block = *core.block;
  t.at_entry = t.passed + static_cast<std::uint64_t>(t.begun_with - core.left[count_instructions] -
                                                     block.counts[count_instructions]);
  finish_op(t);
  finish_branch(t, block.rip, t.at_entry);
  make_room(t);
  fetch(t, block, block.code.size());
  expect_branch(t, block, block.ops[block.real.size() - 1]);
}

VPMU_PART_OF_OP std::size_t index_of(const Op* op, const Core* c) {
  return static_cast<std::size_t>(op - c->block->ops.data());
}
VPMU_PART_OF_OP void run_really(const Op* op, Core* c) { return c->block->real[index_of(op, c)](op, c); }

enum class Place : std::uint8_t { operand, stack };
enum class Does : std::uint8_t { load, store, both };  // both: first the one, then the other

template <Place P, Does D>
VPMU_PART_OF_OP std::uint64_t place(const Op* op, const Core* c) {
  if constexpr (P == Place::operand) return address(op, c);
  return c->r[rsp] - (D == Does::store ? word : 0);
}

template <Place P, Does D>
VPMU_PART_OF_OP bool note_quickly(const Op* op, Core* c) {
  const std::uint64_t at = place<P, D>(op, c);
  const std::uint64_t bytes = P == Place::operand ? op->bytes : word;
  if (!(D == Does::load ? can_read_quickly(c, at, bytes) : can_write_quickly(c, at, bytes))) [[unlikely]]
    return false;
  Tap& t = *c->tap;
  const SeenPage& page = t.pages[static_cast<std::size_t>(c->tlb - c->tlbs.data())][tlb_place(at)];
  const std::uint8_t retires = Seen::retires | flags_of(op->events);
  Seen access{.linear = at,
              .physical = page.physical + at % page_size,
              .now = t.at_entry + index_of(op, c),
              .page_bytes = static_cast<std::uint32_t>(page.page_bytes),
              .bytes = static_cast<std::uint16_t>(bytes),
              .kind = Seen::Kind::access};
  if constexpr (D == Does::both) t.seen[t.count++] = access;
  access.flags = static_cast<std::uint8_t>((D == Does::load ? 0 : Seen::store) | retires);
  t.seen[t.count++] = access;
  return true;
}

template <bool First>
VPMU_PART_OF_OP void begin(Core* c) {
  if constexpr (First) begin_block(*c);
}

/// The op makes accesses of its own, or the TLB is empty or lacks the page.
void observe_slowly(const Op* op, Core* c) {
  begin_op(*c, *op, c->tap->at_entry + index_of(op, c));
  return run_really(op, c);
}
template <Place P, Does D>
void observe_again(const Op* op, Core* c) {
  finish_op(*c->tap);
  choose_tlb(c);
  if (!note_quickly<P, D>(op, c)) return observe_slowly(op, c);
  return run_really(op, c);
}

template <Place P, Does D, bool First>
void observe(const Op* op, Core* c) {
  begin<First>(c);
  // While an op is running the TLB is the empty one.
  if (!note_quickly<P, D>(op, c)) [[unlikely]]
    return observe_again<P, D>(op, c);
  return run_really(op, c);
}
template <bool First>
void observe_others(const Op* op, Core* c) {
  begin<First>(c);
  return observe_slowly(op, c);
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

void note_access(Tap& t, Seen access) {
  if (t.count > t.first) {
    const Seen& last = t.seen[t.count - 1];
    if (last.is(Seen::store) == access.is(Seen::store) && access.linear % page_size == 0 &&
        last.linear + last.bytes == access.linear)
      access.flags |= Seen::second_half;
  }
  add(t) = access;
}

}  // namespace

// All but the last op, which is no instruction.
void prepare(Block& block) {
  for (std::size_t i = 0; i + 1 < block.ops.size(); ++i) {
    Op& op = block.ops[i];
    block.real.push_back(op.run);
    if (i == 0)
      op.run = observer_of<true>(op.events);
    else if ((op.events & (event_load | event_store)) != 0)
      op.run = observer_of<false>(op.events);
  }
}

void begin_alone(Core& core, std::int64_t left) {
  Tap& t = *core.tap;
  const Block& block = *core.block;
  const Op& op = block.ops[0];
  const std::uint64_t now = t.passed + static_cast<std::uint64_t>(t.begun_with - left);
  finish_op(t);
  finish_branch(t, block.rip, now);
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
    if (t.partly) add(t) = {.kind = Seen::Kind::abandoned};
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

void note_flush(Core& core, std::uint64_t at) {
  Tap& t = *core.tap;
  finish_op(t);
  const SeenPage& page = t.pages[static_cast<unsigned>(rights_of(core))][tlb_place(at)];
  add(t) = {.linear = at, .physical = page.physical + at % page_size, .kind = Seen::Kind::flush};
  if (t.line == at / line_bytes) t.line = ~0ULL;  // the code that runs: it is fetched anew
}

void begin_run(Core& core) { core.tap->begun_with = core.left[count_instructions]; }

void end_run(Core& core) {
  Tap& t = *core.tap;
  t.passed += static_cast<std::uint64_t>(t.begun_with - core.left[count_instructions]);
  finish_op(t);
  finish_branch(t, core.rip, t.passed);
  tell_before(t, t.count);
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
  note_access(*c->tap, {.linear = at,
                        .physical = page.physical + at % page_size,
                        .now = c->tap->now,
                        .page_bytes = static_cast<std::uint32_t>(page.page_bytes),
                        .bytes = static_cast<std::uint16_t>(bytes),
                        .kind = Seen::Kind::access,
                        .flags = static_cast<std::uint8_t>(access == PagingAccess::write ? Seen::store : 0)});
  return host;
}

}  // namespace vpmu::exec
