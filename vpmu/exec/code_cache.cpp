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

const std::byte* executable_page(Core& core, std::uint64_t at, SeenPage& page) {
  const auto privilege = core.cpl == 3 ? PagingPrivilege::user : PagingPrivilege::supervisor;
  const Walk walk = translate(core.paging, *core.ram, GuestLinear{at}, PagingAccess::execute, privilege, AccessedDirty::set);
  const auto* mapped = std::get_if<Mapped>(&walk);
  if (mapped == nullptr) return nullptr;
  page = {.physical = mapped->address.value() - at % page_size, .page_bytes = mapped->page_bytes};
  return core.ram->page(GuestPhysical{page.physical});
}

/// The code at core.rip: to the end of its page, and of the next page what an instruction that begins in this one may need.
struct Fetched {
  SeenPage page, next_page;
  std::size_t in_page{};  ///< Bytes from the first page.
  std::size_t size{};
  std::array<std::byte, most_code> bytes;
};
std::optional<Fetched> fetch(Core& core) {
  Fetched f;
  const std::byte* const page = executable_page(core, core.rip, f.page);
  if (page == nullptr) return std::nullopt;
  const std::size_t offset = core.rip % page_size;
  f.size = f.in_page = std::min<std::size_t>(most_code, page_size - offset);
  std::copy_n(page + offset, f.in_page, f.bytes.begin());
  if (f.in_page >= longest_instruction) return f;
  const std::byte* const next = executable_page(core, core.rip + f.in_page, f.next_page);
  if (next == nullptr) return f;
  std::copy_n(next, longest_instruction, f.bytes.begin() + static_cast<std::ptrdiff_t>(f.in_page));
  f.size += longest_instruction;
  return f;
}

}  // namespace

bool CodeCache::is_full(const Core& core) const { return routines_.is_full() || core.jit->is_full(); }

Block* CodeCache::find(Core& core) {
  Block* const known = core.jumps[jump_entry(core.rip)];
  if (known != nullptr && known->rip == core.rip && known->epoch == core.epoch && !is_full(core)) return known;
  core.stop = Stop::fault;
  const auto fetched = fetch(core);
  if (!fetched) return nullptr;
  if (blocks_.size() >= most_blocks || is_full(core)) {
    routines_.clear();
    core.jit->clear(core);
    blocks_.clear();
    pages_.clear();
    core.jumps.fill(nullptr);
    core.block = nullptr;
  }
  auto& slot = blocks_[Key{core.rip, fetched->page.physical, core.tap != nullptr}];
  if (slot == nullptr) slot = std::make_unique<Block>();
  Block& block = *slot;
  const bool same = !block.ops.empty() && block.code.size() <= fetched->size &&
                    std::equal(block.code.begin(), block.code.end(), fetched->bytes.begin());
  // Whoever is linked to it does not look again. An older generation's links are cut.
  if (block.compiled != nullptr && block.epoch / 2 == core.epoch / 2 && (!same || block.epoch != core.epoch)) core.jit->cut_links(core);
  if (!same) {
    const bool watched = block.watched;
    block = Block{};
    block.watched = watched;
    block.rip = core.rip;
    block.code.assign(fetched->bytes.begin(), fetched->bytes.begin() + static_cast<std::ptrdiff_t>(fetched->size));
    if (!decode_block(block, routines_)) {
      block.ops.clear();
      core.stop = Stop::unsupported;
      return nullptr;
    }
    if (core.tap != nullptr) prepare(block);
    else core.jit->expect(block);
    ++decoded_;
  }
  block.pages = {fetched->page, fetched->next_page};
  if (!block.watched) watch(core, block, GuestPhysical{fetched->page.physical});
  block.watched = true;
  // Rare, and the next page may be another one than last time.
  if (block.code.size() > fetched->in_page) watch(core, block, GuestPhysical{fetched->next_page.physical});
  block.epoch = core.epoch;
  core.jumps[jump_entry(block.rip)] = &block;
  return &block;
}

void CodeCache::watch(Core& core, Block& block, GuestPhysical page) {
  auto& of_page = pages_[page.value()];
  if (of_page.empty()) flush_tlb(&core);  // it may have been open for writing
  if (std::find(of_page.begin(), of_page.end(), &block) == of_page.end()) of_page.push_back(&block);
}

void CodeCache::forget(Core& core, GuestPhysical page) {
  const auto found = pages_.find(page.value());
  if (found == pages_.end()) return;
  core.jit->cut_links(core);
  for (Block* const block : found->second) {
    block->epoch = 0;
    block->watched = false;
  }
  pages_.erase(found);
}

}  // namespace vpmu::exec
