#include "exec/blocks/code_cache.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "exec/compile/jit.hpp"
#include "exec/decode/instruction_class.hpp"
#include "exec/memory/access.hpp"
#include "exec/observe/class_counts.hpp"
#include "exec/observe/tap.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec {
namespace {

/// Bytes that are fetched for one block.
constexpr std::size_t max_code = 256;
/// Slots that one find() may need: for a page, the next one, and a block in both.
constexpr unsigned max_new_slots = 3;

/// The code at core.rip: to the end of its page, and of the next page what an instruction that begins in this one may
/// need.
struct Fetched {
  std::size_t in_page{};  ///< Bytes from the first page.
  std::size_t size{};
  std::array<std::byte, max_code + max_instruction_bytes> bytes;
};

/// In the present address space.
void make_stale_here(Core& core, std::size_t slot) {
  for (auto& of_privilege : core.stale) of_privilege[slot] = 1;
}

}  // namespace

bool CodeCache::is_full(const Core& core) const {
  return core.jit->is_full() || (routines_.lacked_room() && (!routines_.is_empty() || core.jit->has_code()));
}

void CodeCache::drop_all(Core& core) {
  if (core.tap != nullptr) tell_all(core);  // of these blocks
  routines_.clear();
  core.jit->clear(core);
  pages_.clear();
  blocks_.clear();
  recent_ = {};
  watched_.clear();
  spaces_.clear();
  std::ranges::fill(models_, nullptr);
  slots_.clear();
  core.jumps.fill(nullptr);
  core.block = nullptr;
}

void CodeCache::doubt(Core& core) {
  spaces_.clear();
  for (auto& of_privilege : core.stale) std::fill_n(of_privilege.begin(), slots_.size(), std::uint8_t{1});
  std::fill_n(core.changed.begin(), slots_.size(), std::uint8_t{1});
}
void CodeCache::doubt_page(Core& core, std::uint64_t linear) {
  for (std::size_t slot = 1; slot < slots_.size(); ++slot)
    if (slots_.depends(slot, core.base[slot], linear)) make_stale_here(core, slot);
  spaces_.forget_page(linear);
}
void CodeCache::enter_space(Core& core, const PagingState& next, bool keeps) {
  const std::uint16_t from = x86::pcid_of(core.paging.cr3, core.paging.cr4), to = x86::pcid_of(next.cr3, next.cr4);
  if (keeps && core.paging.cr3 == next.cr3) return;
  if (from != to) spaces_.leave(core, slots_);
  if (!keeps || from == to) spaces_.forget(to);
  spaces_.enter(core, next.cr3, slots_);
}
CodeSlot CodeCache::new_slot(Core& core, const SeenPage& seen, bool in_two) {
  const CodeSlot slot = slots_.add(seen, in_two);
  core.changed[slot] = 1;
  make_stale(core, slot);
  return slot;
}
void CodeCache::make_stale(Core& core, CodeSlot slot) {
  make_stale_here(core, slot);
  core.spaces->forget_slot(slot);
}
/// In the page of `at`, and in no other one.
void CodeCache::make_fresh(Core& core, CodeSlot slot, std::uint64_t at) {
  const std::uint64_t base = at / page_size * page_size;
  if (core.base[slot] != base) make_stale_here(core, slot);
  core.base[slot] = base;
  core.stale[code_privilege(rights_of(core), core.mode)][slot] = 0;
}

CodeCache::Page* CodeCache::page_of(Core& core, std::uint64_t at) {
  const std::uint64_t linear = at / page_size;
  const bool observed = core.tap != nullptr;
  Page*& recent = recent_[linear % page_entries];
  if (recent != nullptr && core.base[recent->slot] == linear * page_size && core.is_stale[recent->slot] == 0)
    return recent;
  const auto privilege = core.cpl == 3 ? PagingPrivilege::user : PagingPrivilege::supervisor;
  const Walk walk =
      translate(core.paging, *core.ram, GuestLinear{at}, PagingAccess::execute, privilege, AccessedDirty::set);
  const auto* mapped = std::get_if<Mapped>(&walk);
  if (mapped == nullptr) return nullptr;
  const SeenPage seen = seen_page(*mapped, at);
  const std::byte* const host = core.ram->page(GuestPhysical{seen.physical});
  if (host == nullptr) return nullptr;
  const bool is_anywhere = !observed && core.mode == CodeMode::bits64;
  const PageKey key{.linear = is_anywhere ? 0 : linear,
                    .seen = seen,
                    .observed = observed,
                    .classed = core.counts_classes,
                    .mode = core.mode};
  auto& page = pages_[key];
  if (page == nullptr) {
    page = std::make_unique<Page>();
    page->key = key;
    page->slot = new_slot(core, seen, false);
  }
  page->host = host;
  if (core.changed[page->slot] != 0) {
    look_at(core, *page);
    watched_.add(core, page->slot, GuestPhysical{seen.physical});
    core.changed[page->slot] = 0;
  }
  make_fresh(core, page->slot, at);
  return recent = page.get();
}

/// Copies the bytes that are there now. Blocks that were decoded from other bytes must not run.
void CodeCache::look_at(Core& core, Page& page) {
  if (std::memcmp(page.bytes.data(), page.host, page_size) == 0) return;
  std::memcpy(page.bytes.data(), page.host, page_size);
  for (Block* const block : page.blocks.places()) {
    if (block == nullptr || block->slot != page.slot) continue;
    const auto stands = std::span{page.bytes}.subspan(block->offset, block->code_bytes);
    if (std::ranges::equal(block->code(), stands)) continue;
    outdate(core, *block);
  }
}

/// The block is not what stands in memory: it must not run, and nothing leads to it. It stays in its page with all that
/// was made of it until another block takes its place. If its bytes come back before, decode() lets it run again.
void CodeCache::outdate(Core& core, Block& block) {
  block.slot = never_fresh;
  make_stale(core, block.own);
  core.jit->unlink(core, block);
}

Block* CodeCache::find(Core& core) {
  Block* const at_hand = known(core);
  const bool full = is_full(core);
  if (at_hand != nullptr && !full) return at_hand;
  if (full || blocks_.bytes() >= max_bytes || watched_.size() >= max_watches ||
      slots_.size() + max_new_slots > code_slots)
    drop_all(core);
  Block* const block = find_anew(core);
  if (block == nullptr || !is_full(core)) return block;
  // An instruction seems unknown only because its routine found no room.
  drop_all(core);
  return find_anew(core);
}

Block* CodeCache::find_anew(Core& core) {
  core.stop = Stop::fault;
  Page* const page = page_of(core, core.rip);
  if (page == nullptr) return nullptr;
  Block* const last = core.jumps[jump_entry(core.rip)];
  return last != nullptr && core.is_fresh(*last, core.rip) ? last : decode(core, *page);
}

// Another vCPU may have written new code since the page was looked at.
Block* CodeCache::decode(Core& core, Page& page) {
  const std::size_t offset = core.rip % page_size;
  Block* known = page.blocks.find(offset);
  if (known != nullptr && known->slot == page.slot &&
      std::memcmp(known->code().data(), page.host + offset, known->code_bytes) == 0)
    return take(core, *known);
  Fetched f;
  const auto fetch = [&](Page& from, std::size_t begin, std::size_t size) {
    if (std::memcmp(from.bytes.data() + begin, from.host + begin, size) != 0) look_at(core, from);
    std::memcpy(f.bytes.data() + f.size, from.bytes.data() + begin, size);
    f.size += size;
  };
  f.in_page = std::min<std::size_t>(max_code, page_size - offset);
  fetch(page, offset, f.in_page);
  SeenPage next_page;
  if (f.in_page < max_instruction_bytes) {
    if (Page* const next = page_of(core, core.rip + f.in_page)) {
      next_page = next->key.seen;
      fetch(*next, 0, max_instruction_bytes);
    }
  }
  const bool same = known != nullptr && known->code_bytes <= f.size &&
                    std::memcmp(known->code().data(), f.bytes.data(), known->code_bytes) == 0;
  if (!same) known = decode_anew(core, known, page, std::span{f.bytes}.first(f.size));
  if (known == nullptr) return nullptr;
  Block& block = *known;
  if (block.code_bytes <= f.in_page) {
    block.slot = page.slot;
    return take(core, block);
  }
  // Rare, and the next page may be another one than last time, or in another address space.
  if (block.own == never_fresh)
    block.own = new_slot(core, page.key.seen, true);
  else
    make_stale(core, block.own);
  block.slot = block.own;
  if (block.observed != nullptr) block.observed->pages[1] = next_page;
  watched_.add(core, block.slot, GuestPhysical{page.key.seen.physical});
  watched_.add(core, block.slot, GuestPhysical{next_page.physical});
  make_fresh(core, block.slot, core.rip);
  return take(core, block);
}

namespace {

std::vector<InstructionClass> classes_of(const Block& block) {
  std::vector<InstructionClass> all;
  for (const Op& op : block.ops().first(block.ops().size() - 1U))
    all.push_back(instruction_class(block.code().subspan(op.offset, op.length), block.mode));
  return all;
}

}  // namespace

/// Replaces `before`, if there is one, which is out of date. Null: not even one whole instruction is there, and
/// `before` stays, for its bytes may come back.
Block* CodeCache::decode_anew(Core& core, Block* before, Page& page, std::span<const std::byte> code) {
  if (before != nullptr) outdate(core, *before);
  // Of others, one block is made.
  const Block** const model = page.key.observed ? &model_of(page.key.seen.physical + core.rip % page_size) : nullptr;
  const bool is_copied = model != nullptr && *model != nullptr && decoding_.copy(**model, core.rip, core.mode, code);
  if (!is_copied) {
    if (!decoding_.decode(core.rip, core.mode, code, routines_)) {
      core.stop = Stop::unsupported;
      return nullptr;
    }
    ++decoded_;
  }
  Block& block = blocks_.make(decoding_, code);
  page.blocks.put(block);
  if (before != nullptr) block.own = std::exchange(before->own, never_fresh);
  if (core.tap != nullptr) prepare(block, core.rip, page.key.seen);
  if (core.counts_classes) count_classes(block, classes_of(block));
  core.jit->expect(block);
  if (model != nullptr && !is_copied) *model = &block;
  return &block;
}

Block* CodeCache::take(Core& core, Block& block) {
  if (core.tap != nullptr) see_lines(block);
  core.jumps[jump_entry(core.rip)] = &block;
  return &block;
}

}  // namespace vpmu::exec
