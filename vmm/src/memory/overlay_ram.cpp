#include "memory/overlay_ram.hpp"

#include <algorithm>
#include <cstring>

namespace vmm {
namespace {

using vpmu::GuestPhysical;
using vpmu::page_size;

constexpr std::uint64_t accessed_bit = 1U << 5;

std::uint64_t page_at(std::uint64_t address) { return address & ~(page_size - 1); }

}  // namespace

std::optional<std::uint64_t> OverlayRam::read_word(GuestPhysical at, unsigned bytes) {
  const auto copy = copies_.find(page_at(at.value()));
  if (copy == copies_.end()) return memory_->physical().read_word(at, bytes);
  std::uint64_t word = 0;
  std::memcpy(&word, copy->second->data() + at.value() % page_size, bytes);
  return word;
}

bool OverlayRam::exchange_word(GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) {
  if (read_word(at, bytes) != expected) return false;
  std::byte* const copy = copy_of(GuestPhysical{page_at(at.value())});
  if (copy == nullptr) return false;
  std::memcpy(copy + at.value() % page_size, &desired, bytes);
  table_words_.push_back(at.value() & ~7ULL);
  return true;
}

std::byte* OverlayRam::page(GuestPhysical page) { return copy_of(page); }

std::byte* OverlayRam::copy_of(GuestPhysical page) {
  if (const auto known = copies_.find(page.value()); known != copies_.end()) return known->second->data();
  if (memory_->physical().host_page(page) == nullptr) return nullptr;
  if (copies_.size() == pages_.size()) pages_.push_back(std::make_unique<Page>());
  Page& copy = *pages_[copies_.size()];
  if (!memory_->physical().read(page, copy)) return nullptr;
  copies_[page.value()] = &copy;
  return copy.data();
}

void OverlayRam::begin() {
  copies_.clear();
  table_words_.clear();
}

std::optional<GuestPhysical> OverlayRam::difference() const {
  Page now{};
  for (const auto& [address, copy] : copies_) {
    if (!memory_->physical().read(GuestPhysical{address}, now)) return GuestPhysical{address};
    if (std::ranges::equal(now, *copy)) continue;
    for (std::uint64_t offset = 0; offset < page_size; offset += 8) {
      std::uint64_t ours = 0;
      std::uint64_t theirs = 0;
      std::memcpy(&ours, copy->data() + offset, 8);
      std::memcpy(&theirs, now.data() + offset, 8);
      const bool is_table = std::ranges::find(table_words_, address + offset) != table_words_.end();
      if (is_table ? ((ours ^ theirs) & ~accessed_bit) != 0 : ours != theirs) return GuestPhysical{address + offset};
    }
  }
  return std::nullopt;
}

}  // namespace vmm
