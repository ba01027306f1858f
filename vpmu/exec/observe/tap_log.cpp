#include <utility>

#include "exec/observe/tap_notes.hpp"

/// What compiled code logs for an observer: see tap.hpp.
namespace vpmu::exec {
namespace {

/// Accesses of the running block whose addresses are known, before those of op `end`.
void note_logged(Core& core, const Block& block, std::span<const std::uint64_t> addresses, std::size_t end) {
  Tap& t = *core.tap;
  const std::size_t rights = rights_in(core.tlb, core);
  make_room(t);
  for (const BlockAccess& a : std::span{block.observed->seen.accesses}.last(addresses.size())) {
    if (a.instruction >= end) return;
    Seen::Access access = access_of(t, rights, addresses.front(), a.bytes, t.at_entry + a.instruction);
    addresses = addresses.subspan(1);
    if (a.both) t.seen[t.count++].access = access;
    access.flags |= a.flags;
    t.seen[t.count++].access = access;
  }
}
/// Blocks that ran to their ends.
void tell_blocks(Core& core, std::span<const SeenBlock* const> blocks, std::span<const std::uint64_t> addresses) {
  if (blocks.empty()) return;
  Tap& t = *core.tap;
  tell_before(t, t.count);
  SeenBlocks all{.blocks = blocks,
                 .addresses = addresses,
                 .pages = t.pages[rights_in(core.tlb, core)],
                 .now = t.at_next,
                 .line = t.line,
                 .branch = t.branch};
  t.observer->saw_blocks(all);
  t.at_next = all.now;
  t.line = all.line;
  t.branch = all.branch;
}

}  // namespace

void begin_log(Core& core) {
  Tap& t = *core.tap;
  t.at_next = retired_before_block(core);
  t.resumed = nullptr;
  core.compiled.logged_blocks = t.blocks.data();
  core.compiled.logged_addresses = t.addresses.data();
}

void tell_log(Core& core, const Site* site) {
  Tap& t = *core.tap;
  const std::span<const SeenBlock* const> blocks{t.blocks.data(), core.compiled.logged_blocks};
  std::span<const std::uint64_t> addresses{t.addresses.data(), core.compiled.logged_addresses};
  const bool is_cut = site != nullptr && (site->why == Site::Why::op || site->why == Site::Why::alone);
  const std::size_t done = is_cut ? static_cast<std::size_t>(site->op - site->block->ops().data()) : Block::max_ops;
  if (const Site* const resumed = std::exchange(t.resumed, nullptr)) {
    note_logged(core, *resumed->block, addresses.first(resumed->addresses), blocks.empty() ? done : Block::max_ops);
    addresses = addresses.subspan(resumed->addresses);
  }
  if (!is_cut) {
    tell_blocks(core, blocks, addresses);
  } else if (!blocks.empty()) {
    const std::size_t of_last = site->block->observed->seen.accesses.size();
    tell_blocks(core, blocks.first(blocks.size() - 1), addresses.first(addresses.size() - of_last));
    note_beginning(t, *site->block, t.at_next);
    t.at_next += site->block->observed->seen.instructions;
    note_logged(core, *site->block, addresses.last(of_last), done);
  }
  make_room(t);
}

void begin_alone_in_log(Core& core, const Site& site) {
  tell_log(core, &site);
  if ((site.op->events & (event_load | event_store)) == 0 || note_if_fast(site.op, &core)) return;
  begin_op(core, *site.op, core.tap->at_entry + index_of(site.op, &core));
}

void go_on_in_log(Core& core, const Site& site) {
  end_op(core);
  core.tap->resumed = &site;
  core.compiled.logged_blocks = core.tap->blocks.data();
  core.compiled.logged_addresses = core.tap->addresses.data() + site.addresses;
}

}  // namespace vpmu::exec
