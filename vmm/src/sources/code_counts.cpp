#include "sources/code_counts.hpp"

#include <algorithm>

#include "snapshot/checksum.hpp"

namespace vmm {
namespace {

constexpr std::uint64_t page_of(std::uint64_t at) { return at - at % vpmu::page_size; }

}  // namespace

void CodeCounts::visit(const std::function<void(const CodePlace&, std::span<const std::uint64_t>)>& visit) const {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const auto counts = std::span{counts_}.subspan(i * events_.size(), events_.size());
    if (std::ranges::any_of(counts, [](std::uint64_t n) { return n != 0; })) visit(places_[i], counts);
  }
}

void CodeCounts::begin(std::vector<Column> columns, vpmu::Observer* next, std::uint64_t now) {
  columns_ = std::move(columns);
  next_ = next;
  for (std::size_t i = 0; i < columns_.size(); ++i) last_[i] = columns_[i].total ? columns_[i].total(now) : 0;
}

// An instruction of a program that the engine does not run comes after others of its page.
void CodeCounts::ran_elsewhere(std::uint64_t rip, std::optional<std::uint64_t> now) {
  const auto page = pages_.find(page_of(rip));
  open_ = find({.rip = rip, .physical = page == pages_.end() ? 0 : page->second});
  if (now) end_block(*now);
  is_between_runs_ = true;
  if (!collects_) return;
  const bool is_kernels = places_[open_].is_kernels();
  for (std::size_t i = 0; i < columns_.size(); ++i)
    if (columns_[i].are_instructions && (is_kernels ? columns_[i].kernel : columns_[i].user))
      ++counts_[open_ * events_.size() + i];
}

void CodeCounts::end_block(std::uint64_t now) {
  const bool is_kernels = places_[open_].is_kernels();
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const Column& column = columns_[i];
    if (!column.total) continue;
    const std::uint64_t total = column.total(now), before = std::exchange(last_[i], total);
    if (collects_ && (is_kernels ? column.kernel : column.user)) counts_[open_ * events_.size() + i] += total - before;
  }
}

CodeCounts::Place CodeCounts::place_of(const vpmu::SeenBlock& block) {
  const Key key{.rip = block.rip, .physical = block.lines.empty() ? 0 : page_of(block.lines.front().physical)};
  Recent& recent = recent_[block.rip % recent_places];
  if (recent.key == key && recent.place != 0) return recent.place;
  pages_[page_of(key.rip)] = key.physical;
  recent = {.key = key, .place = find(key)};
  return recent.place;
}

CodeCounts::Place CodeCounts::find(const Key& key) {
  const auto found = found_.find(key);
  if (found != found_.end()) return found->second;
  if (places_.size() > max_places) return 0;
  CodePlace place{.rip = key.rip};
  if (!place.is_kernels() && key.physical != 0) {
    const auto [checksum, is_new] = checksums_.try_emplace({.rip = page_of(key.rip), .physical = key.physical});
    if (is_new) checksum->second = checksum_of(key.physical);
    place.page = checksum->second;
  }
  const Place n = add_place(place);
  found_.emplace(key, n);
  return n;
}

CodeCounts::Place CodeCounts::add_place(const CodePlace& place) {
  places_.push_back(place);
  counts_.resize(counts_.size() + events_.size());
  return static_cast<Place>(places_.size() - 1);
}

std::uint64_t CodeCounts::checksum_of(std::uint64_t page) const {
  constexpr std::size_t word = sizeof(std::uint64_t);
  std::array<std::uint64_t, vpmu::page_size / word> words{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto read = read_(vpmu::GuestPhysical{page + i * word});
    if (!read) return 0;
    words[i] = *read;
  }
  Checksum sum;
  sum.add(std::as_bytes(std::span{words}));
  return sum.value();
}

// What has passed between two runs of the engine, where an exception comes, is of the level that goes on: so the
// counters have it.
void CodeCounts::begun(const vpmu::SeenBlock& block, std::uint64_t now) {
  const Place next = place_of(block);
  if (!std::exchange(is_between_runs_, false) || places_[next].is_kernels() == places_[open_].is_kernels())
    end_block(now);
  open_ = next;
}

void CodeCounts::ran(std::uint64_t now) {
  end_block(now);
  is_between_runs_ = true;
}

void CodeCounts::saw(std::span<const vpmu::Seen> all) {
  std::size_t told = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].kind() != vpmu::Seen::Kind::block) continue;
    if (next_ != nullptr && i != told) next_->saw(all.subspan(told, i - told));
    told = i;
    begun(*all[i].begun.block, all[i].begun.now);
  }
  if (next_ != nullptr && told != all.size()) next_->saw(all.subspan(told));
}

// The next observer is told each block alone, and before it the branch that leads to it, which is the last block's.
void CodeCounts::saw_blocks(vpmu::SeenBlocks& all) {
  const auto blocks = all.blocks;
  const auto addresses = all.addresses;
  std::size_t first = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const vpmu::SeenBlock& block = *blocks[i];
    if (next_ == nullptr) {
      begun(block, all.now);
      all.now += block.instructions;
      all.branch = block.branch;
      if (!block.lines.empty()) all.line = block.lines.back().linear;
      continue;
    }
    if (all.branch.kind != vpmu::BranchKind::none) next_->branched(all.branch_to(block));
    all.branch.kind = vpmu::BranchKind::none;
    begun(block, all.now);
    all.blocks = blocks.subspan(i, 1);
    all.addresses = addresses.subspan(first, block.accesses.size());
    first += block.accesses.size();
    next_->saw_blocks(all);
  }
  all.blocks = blocks;
  all.addresses = addresses;
}

void CodeCounts::fetched(const vpmu::SeenCode& code) {
  if (next_ != nullptr) next_->fetched(code);
}

void CodeCounts::accessed(const vpmu::SeenAccess& access, std::uint64_t now) {
  if (next_ != nullptr) next_->accessed(access, now);
}

void CodeCounts::retired(bool load, bool store) {
  if (next_ != nullptr) next_->retired(load, store);
}

void CodeCounts::branched(const vpmu::SeenBranch& branch) {
  if (next_ != nullptr) next_->branched(branch);
}

void CodeCounts::abandoned() {
  if (next_ != nullptr) next_->abandoned();
}

void CodeCounts::flushed_line(const vpmu::SeenFlush& flush) {
  if (next_ != nullptr) next_->flushed_line(flush);
}

void CodeCounts::flushed(const vpmu::TlbFlush& flush) {
  if (next_ != nullptr) next_->flushed(flush);
}

void CodeCounts::remapped() {
  if (next_ != nullptr) next_->remapped();
}

}  // namespace vmm
