#include "exec/code_cache.hpp"

#include <algorithm>

#include "exec/access.hpp"
#include "exec/jit.hpp"
#include "exec/tap.hpp"

namespace vpmu::exec {
namespace {

/// Bytes that are fetched for one block.
constexpr std::size_t most_code = 256;
constexpr std::size_t longest_instruction = 15;

/// The code at core.rip: to the end of its page, and of the next page what an instruction that begins in this one may
/// need.
struct Fetched {
  std::size_t in_page{};  ///< Bytes from the first page.
  std::size_t size{};
  std::array<std::byte, most_code> bytes;
};

}  // namespace

bool CodeCache::is_full(const Core& core) const {
  return core.jit->is_full() || (routines_.lacked_room() && (!routines_.is_empty() || core.jit->has_code()));
}

void CodeCache::drop_all(Core& core) {
  routines_.clear();
  core.jit->clear(core);
  blocks_.clear();
  pages_.clear();
  watches_ = 0;
  core.jumps.fill(nullptr);
  core.block = nullptr;
}

const CodeCache::Page* CodeCache::page_of(Core& core, std::uint64_t at) {
  Page& page = code_pages_[at / page_size % page_entries];
  if (page.epoch == core.epoch && page.linear == at / page_size) return &page;
  const auto privilege = core.cpl == 3 ? PagingPrivilege::user : PagingPrivilege::supervisor;
  const Walk walk =
      translate(core.paging, *core.ram, GuestLinear{at}, PagingAccess::execute, privilege, AccessedDirty::set);
  const auto* mapped = std::get_if<Mapped>(&walk);
  if (mapped == nullptr) return nullptr;
  const SeenPage seen{.physical = mapped->address.value() - at % page_size, .page_bytes = mapped->page_bytes};
  const std::byte* const host = core.ram->page(GuestPhysical{seen.physical});
  if (host == nullptr) return nullptr;
  page = {.linear = at / page_size, .epoch = core.epoch, .seen = seen, .host = host};
  return &page;
}

Block* CodeCache::find(Core& core) {
  Block* const known = core.jumps[jump_entry(core.rip)];
  const bool full = is_full(core);
  if (known != nullptr && known->rip == core.rip && known->epoch == core.epoch && !full) return known;
  if (full || blocks_.size() >= most_blocks || watches_ >= most_watches) drop_all(core);
  Block* const block = find_anew(core);
  if (block == nullptr || !is_full(core)) return block;
  // An instruction seems unknown only because its routine found no room.
  drop_all(core);
  return find_anew(core);
}

Block* CodeCache::find_anew(Core& core) {
  core.stop = Stop::fault;
  const Page* const page = page_of(core, core.rip);
  if (page == nullptr) return nullptr;
  Block* const last = core.jumps[jump_entry(core.rip)];
  return last != nullptr && is_still_there(*last, core, *page) ? take(core, *last, page->seen) : decode(core, *page);
}

/// Whether it is what stands at core.rip, in one page. A block without ops was given up when it was decoded, and is
/// nothing to run.
bool CodeCache::is_still_there(const Block& block, const Core& core, const Page& page) {
  const std::size_t offset = core.rip % page_size;
  return !block.ops.empty() && block.rip == core.rip && block.pages[0].physical == page.seen.physical &&
         (block.observed != nullptr) == (core.tap != nullptr) && block.code.size() <= page_size - offset &&
         std::equal(block.code.begin(), block.code.end(), page.host + offset);
}

/// Trusts it for this epoch.
Block* CodeCache::take(Core& core, Block& block, const SeenPage& page) {
  // Whoever is linked to it does not look again. An older generation's links are cut.
  if (block.compiled != nullptr && block.epoch / 2 == core.epoch / 2 && block.epoch != core.epoch)
    core.jit->cut_links(core);
  block.pages[0] = page;
  if (core.tap != nullptr) see_lines(block);
  if (!block.watched) watch(core, block, GuestPhysical{page.physical});
  block.watched = true;
  block.epoch = core.epoch;
  core.jumps[jump_entry(block.rip)] = &block;
  return &block;
}

Block* CodeCache::decode(Core& core, Page page) {
  Fetched f;
  const std::size_t offset = core.rip % page_size;
  f.size = f.in_page = std::min<std::size_t>(most_code, page_size - offset);
  std::copy_n(page.host + offset, f.in_page, f.bytes.begin());
  SeenPage next_page;
  if (f.in_page < longest_instruction) {
    if (const Page* const next = page_of(core, core.rip + f.in_page)) {
      next_page = next->seen;
      std::copy_n(next->host, longest_instruction, f.bytes.begin() + static_cast<std::ptrdiff_t>(f.in_page));
      f.size += longest_instruction;
    }
  }
  auto& slot = blocks_[Key{core.rip, page.seen.physical, core.tap != nullptr}];
  if (slot == nullptr) slot = std::make_unique<Block>();
  Block& block = *slot;
  const bool same = !block.ops.empty() && block.code.size() <= f.size &&
                    std::equal(block.code.begin(), block.code.end(), f.bytes.begin());
  if (!same) {
    if (block.compiled != nullptr) core.jit->cut_links(core);
    const bool watched = block.watched;
    block = Block{};
    block.watched = watched;
    block.rip = core.rip;
    block.code.assign(f.bytes.begin(), f.bytes.begin() + static_cast<std::ptrdiff_t>(f.size));
    if (!decode_block(block, routines_)) {
      block.ops.clear();
      core.stop = Stop::unsupported;
      return nullptr;
    }
    if (core.tap != nullptr) prepare(block);
    core.jit->expect(block);
    ++decoded_;
  }
  block.pages[1] = next_page;
  // Rare, and the next page may be another one than last time.
  if (block.code.size() > f.in_page) watch(core, block, GuestPhysical{next_page.physical});
  return take(core, block, page.seen);
}

void CodeCache::watch(Core& core, Block& block, GuestPhysical page) {
  auto& of_page = pages_[page.value()];
  if (of_page.empty()) flush_tlb(&core);  // it may have been open for writing
  if (std::ranges::find(of_page, &block) != of_page.end()) return;
  of_page.push_back(&block);
  ++watches_;
}

void CodeCache::forget(Core& core, GuestPhysical page) {
  const auto found = pages_.find(page.value());
  if (found == pages_.end()) return;
  core.jit->cut_links(core);
  for (Block* const block : found->second) {
    block->epoch = 0;
    block->watched = false;
  }
  watches_ -= found->second.size();
  pages_.erase(found);
}

}  // namespace vpmu::exec
