#include "exec/tap.hpp"

#include "exec/access.hpp"

namespace vpmu::exec {
namespace {

constexpr std::uint64_t line_bytes = 64;

void tell_accesses(Tap& t) {
  for (unsigned i = 0; i < t.pending_count; ++i) t.observer->accessed(t.pending[i], t.now);
  t.pending_count = 0;
}

/// The op before has not given up: it has retired.
void finish_op(Tap& t) {
  if (!t.running) return;
  t.running = false;
  tell_accesses(t);
  t.observer->retired((t.events & event_load) != 0, (t.events & event_store) != 0);
}

void finish_branch(Tap& t, std::uint64_t to) {
  if (t.branch.kind == BranchKind::none) return;
  SeenBranch branch = t.branch;
  t.branch.kind = BranchKind::none;
  branch.to = to;
  branch.taken = branch.kind != BranchKind::conditional || to != branch.behind;
  t.observer->branched(branch);
}

void begin_op(Tap& t, const Op& op, std::uint64_t now) {
  finish_op(t);
  if ((op.events & (event_load | event_store)) == 0) return;
  t.running = true;
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
    t.observer->fetched({.linear = at, .physical = page.physical + at % page_size, .page_bytes = page.page_bytes});
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
  finish_op(t);
  finish_branch(t, block.rip);
  t.at_entry = t.passed + static_cast<std::uint64_t>(t.begun_with - core.left[count_instructions] - block.counts[count_instructions]);
  fetch(t, block, block.code.size());
  expect_branch(t, block, block.ops[block.real.size() - 1]);
}

void observe(const Op* op, Core* c) {
  const auto index = static_cast<std::size_t>(op - c->block->ops.data());
  if (index == 0) begin_block(*c);
  begin_op(*c->tap, *op, c->tap->at_entry + index);
  // Else an op that asks for flags would settle them and come here again.
  if (!c->flags.is_handy() || !c->flags.knows_cf()) c->flags.settle();
  return c->block->real[index](op, c);
}

void note_access(Tap& t, const SeenAccess& access) {
  if (t.pending_count == Tap::most_pending) tell_accesses(t);
  SeenAccess& next = t.pending[t.pending_count];
  next = access;
  if (t.pending_count > 0) {
    const SeenAccess& last = t.pending[t.pending_count - 1];
    next.second_half = last.store == access.store && access.linear % page_size == 0 && last.linear + last.bytes == access.linear;
  }
  ++t.pending_count;
}

}  // namespace

// All but the last op, which is no instruction.
void prepare(Block& block) {
  for (std::size_t i = 0; i + 1 < block.ops.size(); ++i) {
    Op& op = block.ops[i];
    block.real.push_back(op.run);
    if (i == 0 || (op.events & (event_load | event_store)) != 0) op.run = observe;
  }
}

void begin_alone(Core& core, std::int64_t left) {
  Tap& t = *core.tap;
  const Block& block = *core.block;
  const Op& op = block.ops[0];
  finish_op(t);
  finish_branch(t, block.rip);
  fetch(t, block, op.length);
  expect_branch(t, block, op);
  begin_op(t, op, t.passed + static_cast<std::uint64_t>(t.begun_with - left));
}

// What was noted of the op did not happen; what ran before it in the block did.
void note_left(Core& core, const Op& op) {
  Tap& t = *core.tap;
  t.branch.kind = BranchKind::none;
  if (!t.running || t.offset != op.offset) return finish_op(t);
  t.pending_count = 0;
  t.running = false;
  t.observer->abandoned();
}

void note_element(Core& core) { tell_accesses(*core.tap); }

void begin_run(Core& core) { core.tap->begun_with = core.left[count_instructions]; }

void end_run(Core& core) {
  Tap& t = *core.tap;
  finish_op(t);
  finish_branch(t, core.rip);
  t.passed += static_cast<std::uint64_t>(t.begun_with - core.left[count_instructions]);
}

std::byte* find_tapped(Core* c, std::uint64_t at, PagingAccess access, unsigned bytes) {
  const Rights rights = rights_of(*c);
  const std::uint64_t place = at / page_size % tlb_entries;
  const TlbEntry& e = c->tlbs[static_cast<unsigned>(rights)][place];
  const std::uint64_t tag = access == PagingAccess::write ? e.write_tag : e.read_tag;
  std::byte* const host = tag == at / page_size ? host_address(at, e.add) : find_in_tables(c, rights, at, access);
  if (host == nullptr || bytes == 0) return host;
  const SeenPage& page = c->tap->pages[static_cast<unsigned>(rights)][place];
  note_access(*c->tap, {.linear = at,
                          .physical = page.physical + at % page_size,
                          .page_bytes = page.page_bytes,
                          .bytes = static_cast<std::uint16_t>(bytes),
                          .store = access == PagingAccess::write});
  return host;
}

}  // namespace vpmu::exec
