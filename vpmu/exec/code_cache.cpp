#include "exec/code_cache.hpp"

#include <algorithm>

#include "exec/access.hpp"

namespace vpmu::exec {
namespace {

/// Bytes that are fetched for one block.
constexpr std::size_t most_code = 256;

const std::byte* executable_page(Core& core, std::uint64_t at, GuestPhysical& page) {
  const auto privilege = core.cpl == 3 ? PagingPrivilege::user : PagingPrivilege::supervisor;
  const Walk walk = translate(core.paging, *core.ram, GuestLinear{at}, PagingAccess::execute, privilege, AccessedDirty::set);
  const auto* mapped = std::get_if<Mapped>(&walk);
  if (mapped == nullptr) return nullptr;
  page = GuestPhysical{mapped->address.value() - at % page_size};
  return core.ram->page(page);
}

/// The code from core.rip to the end of its page, at most most_code bytes.
struct Fetched {
  GuestPhysical page;
  const std::byte* bytes{};
  std::size_t size{};
};
std::optional<Fetched> fetch(Core& core) {
  Fetched f;
  const std::byte* const page = executable_page(core, core.rip, f.page);
  if (page == nullptr) return std::nullopt;
  const std::size_t in_page = core.rip % page_size;
  f.bytes = page + in_page;
  f.size = std::min<std::size_t>(most_code, page_size - in_page);
  return f;
}

}  // namespace

Block* CodeCache::find(Core& core) {
  core.stop = Stop::fault;
  const auto fetched = fetch(core);
  if (!fetched) return nullptr;
  if (blocks_.size() >= most_blocks) {
    blocks_.clear();
    pages_.clear();
    core.jumps.fill(nullptr);
    core.block = nullptr;
  }
  auto& slot = blocks_[Key{core.rip, fetched->page.value()}];
  const bool fresh = slot == nullptr;
  if (fresh) slot = std::make_unique<Block>();
  Block& block = *slot;
  const bool same = !fresh && block.code.size() <= fetched->size && block.ops.size() > 1 &&
                    std::equal(block.code.begin(), block.code.end(), fetched->bytes);
  if (!same || fresh) {
    const bool watched = block.watched;
    block = Block{};
    block.watched = watched;
    block.rip = core.rip;
    block.physical = fetched->page + core.rip % page_size;
    block.code.assign(fetched->bytes, fetched->bytes + fetched->size);
    if (!build(core, block)) return nullptr;
  }
  if (!block.watched) {
    auto& of_page = pages_[fetched->page.value()];
    if (of_page.empty()) flush_tlb(&core);  // it may have been open for writing
    of_page.push_back(&block);
    block.watched = true;
  }
  block.epoch = core.epoch;
  core.jumps[(block.rip ^ block.rip >> 12) % jump_entries] = &block;
  return &block;
}

// An instruction across a page boundary is left to others: rare, and its second half may change under us.
bool CodeCache::build(Core& core, Block& block) {
  if (!decode_block(block)) {
    core.stop = Stop::unsupported;
    block.ops.clear();
    block.code.clear();
    return false;
  }
  ++decoded_;
  return true;
}

void CodeCache::forget(GuestPhysical page) {
  const auto found = pages_.find(page.value());
  if (found == pages_.end()) return;
  for (Block* const block : found->second) {
    block->epoch = 0;
    block->watched = false;
  }
  pages_.erase(found);
}

}  // namespace vpmu::exec
