#include "attach/slot_memory.hpp"

#include <atomic>
#include <cstring>
#include <utility>

#include "vpmu/bits.hpp"
#include "vpmu/paging.hpp"

namespace vmm {
namespace {

/// The address space is in the upper half of a slot's number.
constexpr std::uint32_t first_of_other_spaces = 1U << 16U;
constexpr std::uint64_t word_bits = 64;

template <class Word>
std::uint64_t load(const std::byte* at) {
  return __atomic_load_n(reinterpret_cast<const Word*>(at), __ATOMIC_ACQUIRE);
}

template <class Word>
bool exchange(std::byte* at, std::uint64_t expected, std::uint64_t desired) {
  auto known = static_cast<Word>(expected);
  return __atomic_compare_exchange_n(reinterpret_cast<Word*>(at), &known, static_cast<Word>(desired), false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

}  // namespace

void SlotMemory::set(std::uint32_t slot, std::uint32_t flags, vpmu::GuestPhysical at, std::uint64_t bytes,
                     std::byte* host) {
  if (slot >= first_of_other_spaces) return;
  auto before = slots_.extract(slot);
  if (bytes == 0) return;
  const bool logged = (flags & KVM_MEM_LOG_DIRTY_PAGES) != 0;
  const std::uint64_t words = logged ? (bytes / vpmu::page_size + word_bits - 1) / word_bits : 0;
  const bool keeps_log = logged && !before.empty() && before.mapped().written.size() == words;
  slots_.emplace(slot, Slot{.first = at.value(),
                            .bytes = bytes,
                            .host = host,
                            .read_only = (flags & KVM_MEM_READONLY) != 0,
                            .written = keeps_log ? std::move(before.mapped().written)
                                                 : std::vector<std::atomic<std::uint64_t>>(words)});
}

void SlotMemory::written(vpmu::GuestPhysical page) {
  for (auto& [number, slot] : slots_) {
    const std::uint64_t offset = page.value() - slot.first;
    if (offset >= slot.bytes || slot.written.empty()) continue;
    const std::uint64_t index = offset / vpmu::page_size;
    slot.written[index / word_bits] |= vpmu::bit(index % word_bits);
  }
}

void SlotMemory::add_written(std::uint32_t slot, std::uint64_t* bitmap) {
  const auto found = slots_.find(slot);
  if (found == slots_.end()) return;
  for (auto& word : found->second.written) *bitmap++ |= word.exchange(0);
}

const SlotMemory::Slot* SlotMemory::find(vpmu::GuestPhysical at, std::uint64_t bytes) const {
  for (const auto& [number, slot] : slots_) {
    const std::uint64_t offset = at.value() - slot.first;
    if (offset < slot.bytes && bytes <= slot.bytes - offset) return &slot;
  }
  return nullptr;
}

std::byte* SlotMemory::place(vpmu::GuestPhysical at, std::uint64_t bytes, bool for_write) const {
  const Slot* const slot = find(at, bytes);
  if (slot == nullptr || (for_write && slot->read_only)) return nullptr;
  return slot->host + (at.value() - slot->first);
}

bool SlotMemory::read(vpmu::GuestPhysical at, std::span<std::byte> out) {
  const std::byte* const from = place(at, out.size(), false);
  if (from == nullptr) return false;
  std::memcpy(out.data(), from, out.size());
  // The guest may change the bytes now: the compiler must use the copy and never go back for them.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return true;
}

bool SlotMemory::write(vpmu::GuestPhysical at, std::span<const std::byte> in) {
  std::byte* const to = place(at, in.size(), true);
  if (to == nullptr) return false;
  std::memcpy(to, in.data(), in.size());
  return true;
}

bool SlotMemory::contains(vpmu::GuestPhysical at, std::uint64_t bytes) const {
  return place(at, bytes, true) != nullptr;
}

// Only of writable RAM: the engine may write to the page.
std::byte* SlotMemory::host_page(vpmu::GuestPhysical page) { return place(page, vpmu::page_size, true); }

std::optional<std::uint64_t> SlotMemory::read_word(vpmu::GuestPhysical at, unsigned bytes) {
  const std::byte* const from = place(at, bytes, false);
  if (from == nullptr || at.value() % bytes != 0) return std::nullopt;
  if (bytes == sizeof(std::uint32_t)) return load<std::uint32_t>(from);
  if (bytes == sizeof(std::uint64_t)) return load<std::uint64_t>(from);
  return std::nullopt;
}

bool SlotMemory::exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) {
  std::byte* const to = place(at, bytes, true);
  if (to == nullptr || at.value() % bytes != 0) return false;
  if (bytes == sizeof(std::uint32_t)) return exchange<std::uint32_t>(to, expected, desired);
  return bytes == sizeof(std::uint64_t) && exchange<std::uint64_t>(to, expected, desired);
}

}  // namespace vmm
