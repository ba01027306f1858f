#include "lockstep/overlay_ram.hpp"

#include <cstring>

namespace vmm {
namespace {

using vpmu::GuestPhysical;
using vpmu::page_size;

constexpr std::uint64_t accessed_bit = 1U << 5;

std::uint64_t page_at(std::uint64_t address) { return address & ~(page_size - 1); }

std::uint64_t word_at(std::span<const std::byte> page, std::uint64_t offset) {
  std::uint64_t word = 0;
  std::memcpy(&word, page.data() + offset, sizeof word);
  return word;
}

}  // namespace

std::optional<std::uint64_t> OverlayRam::read_word(GuestPhysical at, unsigned bytes) {
  const auto copy = copies_.find(page_at(at.value()));
  if (copy == copies_.end()) return memory_->physical().read_word(at, bytes);
  std::uint64_t word = 0;
  std::memcpy(&word, copy->second.now->data() + at.value() % page_size, bytes);
  return word;
}

bool OverlayRam::exchange_word(GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) {
  if (read_word(at, bytes) != expected) return false;
  Copy* const copy = copy_of(GuestPhysical{page_at(at.value())});
  if (copy == nullptr) return false;
  keep(*copy);
  copy->is_table = true;
  std::memcpy(copy->now->data() + at.value() % page_size, &desired, bytes);
  return true;
}

std::byte* OverlayRam::page(GuestPhysical page) {
  Copy* const copy = copy_of(page);
  return copy == nullptr ? nullptr : copy->now->data();
}

void OverlayRam::will_write(GuestPhysical page) {
  if (Copy* const copy = copy_of(page)) keep(*copy);
}

OverlayRam::Copy* OverlayRam::copy_of(GuestPhysical page) {
  if (const auto known = copies_.find(page.value()); known != copies_.end()) return &known->second;
  if (memory_->physical().host_page(page) == nullptr) return nullptr;
  Page* const copy = new_page();
  if (!memory_->physical().read(page, *copy)) return nullptr;
  return &(copies_[page.value()] = {.now = copy});
}

void OverlayRam::keep(Copy& copy) {
  if (copy.before != nullptr) return;
  copy.before = new_page();
  *copy.before = *copy.now;
}

OverlayRam::Page* OverlayRam::new_page() {
  if (used_ == pages_.size()) pages_.push_back(std::make_unique<Page>());
  return pages_[used_++].get();
}

void OverlayRam::begin() {
  copies_.clear();
  used_ = 0;
}

void OverlayRam::rewind() {
  for (auto& [address, copy] : copies_)
    if (copy.before != nullptr) *copy.now = *copy.before;
}

bool OverlayRam::restore_guest() {
  for (const auto& [address, copy] : copies_)
    if (!memory_->physical().write(GuestPhysical{address}, copy.before != nullptr ? *copy.before : *copy.now))
      return false;
  return true;
}

std::optional<GuestPhysical> OverlayRam::difference() const {
  Page theirs{};
  for (const auto& [address, copy] : copies_) {
    if (!memory_->physical().read(GuestPhysical{address}, theirs)) return GuestPhysical{address};
    if (std::memcmp(theirs.data(), copy.now->data(), page_size) == 0) continue;
    for (std::uint64_t offset = 0; offset < page_size; offset += 8) {
      const std::uint64_t differ = word_at(*copy.now, offset) ^ word_at(theirs, offset);
      if ((differ & ~(copy.is_table ? accessed_bit : 0)) != 0) return GuestPhysical{address + offset};
    }
  }
  return std::nullopt;
}

}  // namespace vmm
