#include "uarch/tlb.hpp"

namespace vpmu::uarch {
namespace {

/// Set in the key of a large page.
constexpr std::uint64_t large_bit = 1ULL << Tlb::page_bits;

}  // namespace

bool SecondLevel::look_up(std::uint64_t page, PageSize size) {
  if (size == PageSize::large && !shapes_.holds_large) return false;
  RecencySets& table = size == PageSize::huge ? huge_ : shared_;
  // Pages of both sizes share the sets; a bit that no page number has keeps them apart.
  const std::uint64_t key = size == PageSize::large ? page | large_bit : page;
  if (table.touch(key)) return true;
  table.insert(key);
  return false;
}

void SecondLevel::clear() {
  shared_.clear();
  huge_.clear();
}

Tlb::Tlb(const TlbShapes& shapes, SecondLevel& second)
    : small_{shapes.small}, large_{shapes.large}, huge_{shapes.huge}, second_{&second} {}

TlbResult Tlb::look_up_older(std::uint64_t linear, PageSize size) {
  const std::uint64_t page = page_of(linear, size);
  RecencySets& first = table(size);
  if (first.touch_older(page)) return TlbResult::hit;
  const bool second = second_->look_up(page, size);
  first.insert(page);
  return second ? TlbResult::stlb_hit : TlbResult::walk;
}

void Tlb::clear() {
  small_.clear();
  large_.clear();
  huge_.clear();
}

}  // namespace vpmu::uarch
