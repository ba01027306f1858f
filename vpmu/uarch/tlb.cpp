#include "uarch/tlb.hpp"

namespace vpmu::uarch {
namespace {

/// Set in the key of a large page.
constexpr std::uint64_t large_bit = 1ULL << Tlb::page_bits;

}  // namespace

/// Pages of both sizes share the sets; a bit that no page number has keeps them apart.
std::uint64_t SecondLevel::key_of(std::uint64_t page, PageSize size) {
  return size == PageSize::large ? page | large_bit : page;
}

bool SecondLevel::look_up(std::uint64_t page, PageSize size) {
  if (size == PageSize::large && !shapes_.holds_large) return false;
  RecencySets& of_size = table(size);
  const std::uint64_t key = key_of(page, size);
  if (of_size.touch(key)) return true;
  of_size.insert(key);
  return false;
}

void SecondLevel::forget(std::uint64_t page, PageSize size) { table(size).remove(key_of(page, size)); }

void SecondLevel::clear() {
  shared_.clear();
  huge_.clear();
}

Tlb::Tlb(const TlbShapes& shapes, SecondLevel& second)
    : small_{shapes.small}, large_{shapes.large}, huge_{shapes.huge}, second_{&second} {}

TlbResult Tlb::look_up_older(std::uint64_t linear, PageSize size, bool global) {
  const std::uint64_t page = page_of(linear, size, global);
  RecencySets& first = table(size);
  if (first.touch_older(page)) return TlbResult::hit;
  const bool second = second_->look_up(page, size);
  first.insert(page);
  return second ? TlbResult::stlb_hit : TlbResult::walk;
}

void Tlb::forget(std::uint64_t linear) {
  for (const PageSize size : {PageSize::small, PageSize::large, PageSize::huge})
    for (const bool global : {false, true}) {
      const std::uint64_t page = page_of(linear, size, global);
      table(size).remove(page);
      second_->forget(page, size);
    }
}

void Tlb::clear() {
  small_.clear();
  large_.clear();
  huge_.clear();
}

}  // namespace vpmu::uarch
