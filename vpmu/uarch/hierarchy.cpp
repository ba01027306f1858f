#include "uarch/hierarchy.hpp"

#include <algorithm>
#include <span>

namespace vpmu::uarch {

Hierarchy::Hierarchy(const Profile& profile)
    : profile_{&profile},
      l1i_{profile.l1i},
      l1d_{profile.l1d},
      l2_{profile.l2},
      l3_{profile.l3},
      decoded_{profile.decoded},
      stlb_{profile.stlb},
      dtlb_{profile.dtlb, stlb_},
      itlb_{profile.itlb, stlb_},
      repeated_data_{profile.dtlb.small.sets},
      repeated_code_{profile.itlb.small.sets} {}

void Hierarchy::clear() {
  flush_caches();
  flush_tlbs();
  fills_.fill({});
  offcore_.fill(0);
  l1d_fills_ = 0;
  now_ = last_ready_ = last_fill_ = 0;
}

// What is on its way is not waited for again: the buffer stays taken, and the line is not there when it comes.
void Hierarchy::flush_line(std::uint64_t linear, std::uint64_t physical) {
  const std::uint64_t line = physical / line_bytes;
  for (RecencySets* const cache : {&l1i_, &l1d_, &l2_, &l3_}) cache->remove(line);
  for (std::uint64_t i = 0; i < windows_in_line; ++i) decoded_.remove(linear / line_bytes * windows_in_line + i);
  for (FillBuffer& f : fills_)
    if (f.line == line) f.line = FillBuffer{}.line;
  remapped();
}

void Hierarchy::flush_caches() {
  for (RecencySets* const cache : {&l1i_, &l1d_, &l2_, &l3_, &decoded_}) cache->clear();
  for (FillBuffer& f : fills_) f.line = FillBuffer{}.line;
  remapped();
}

void Hierarchy::flush_tlbs() {
  dtlb_.clear();
  itlb_.clear();
  stlb_.clear();
  remapped();
}

std::uint16_t Hierarchy::latency_of(HitLevel level) const {
  const Latencies& l = profile_->latency;
  if (level == HitLevel::l1) return l.l1;
  if (level == HitLevel::l2) return l.l2;
  return level == HitLevel::l3 ? l.l3 : l.dram;
}

// What an inclusive L3 loses leaves the levels above.
void Hierarchy::fill_l3(std::uint64_t line) {
  const std::uint64_t victim = l3_.insert(line);
  if (victim == RecencySets::nothing || profile_->last_level != LastLevel::inclusive) return;
  l2_.remove(victim);
  l1d_.remove(victim);
  l1i_.remove(victim);
  repeated_data_.drop(victim);
  repeated_code_.drop(victim);
}

void Hierarchy::fill_l2(std::uint64_t line) {
  const std::uint64_t victim = l2_.insert(line);
  const bool goes_on = victim != RecencySets::nothing && profile_->last_level == LastLevel::victim;
  if (goes_on && !l3_.touch(victim)) fill_l3(victim);
}

/// Where a line that the L1 lacks is found; afterwards the L2 has it.
HitLevel Hierarchy::below_l1(std::uint64_t line, OffcoreRequest request) {
  l3_.prefetch(line);
  if (l2_.touch(line)) return HitLevel::l2;
  const bool in_l3 = l3_.touch(line);
  if (!in_l3 && profile_->last_level == LastLevel::inclusive) fill_l3(line);
  fill_l2(line);
  ++offcore_[offcore_cell(request, in_l3 ? OffcoreSupplier::l3 : OffcoreSupplier::local_dram)];
  return in_l3 ? HitLevel::l3 : HitLevel::dram;
}

/// Takes a fill buffer: one that is free, or else that which is first, and time passes until then.
void Hierarchy::begin_fill(std::uint64_t line, std::uint16_t latency) {
  const std::span buffers{fills_.data(), std::min<std::size_t>(profile_->fill_buffers, fills_.size())};
  const unsigned next = last_fill_ + 1 < buffers.size() ? last_fill_ + 1 : 0;
  auto found = buffers.begin() + next;
  if (found->ready > now_) found = std::ranges::min_element(buffers, {}, &FillBuffer::ready);
  FillBuffer& buffer = *found;
  last_fill_ = static_cast<unsigned>(found - buffers.begin());
  now_ = std::max(now_, buffer.ready);
  if (now_ >= last_ready_) in_flight_ = 0;
  in_flight_ |= flight_bit(line);
  buffer = {.line = line, .ready = now_ + latency};
  last_ready_ = std::max(last_ready_, buffer.ready);
}

/// Cycles until a line is there; 0: it is not in flight. Most often it is the last one.
std::uint64_t Hierarchy::rest_of_flight(std::uint64_t line) const {
  const auto rest = [&](const FillBuffer& f) { return f.line == line && f.ready > now_ ? f.ready - now_ : 0; };
  if (const std::uint64_t cycles = rest(fills_[last_fill_]); cycles != 0) return cycles;
  for (const FillBuffer& f : fills_)
    if (const std::uint64_t cycles = rest(f); cycles != 0) return cycles;
  return 0;
}

// Lines whose windows share a set of the decoded micro-op cache with this one's are no longer that set's latest.
FetchResult Hierarchy::fetch(std::uint64_t linear, std::uint64_t physical, PageSize page) {
  if (!itlb_.is_latest(linear, page)) drop_pages(repeated_code_, linear, page);
  const std::uint64_t line = physical / line_bytes;
  repeated_code_.drop(line);
  FetchResult result{.level = HitLevel::l1, .tlb = itlb_.look_up(linear, page), .decoded = has_decoded()};
  if (!l1i_.touch(line)) {
    result.level = below_l1(line, OffcoreRequest::demand_code_read);
    l1i_.insert(line);
  }
  for (std::uint64_t i = 0; has_decoded() && i < windows_in_line; ++i) {
    const std::uint64_t window = linear / line_bytes * windows_in_line + i;
    if (decoded_.is_latest(window)) continue;
    const std::uint64_t lines = std::max<std::uint64_t>(decoded_.shape().sets / windows_in_line, 1);
    for (std::uint64_t other = linear / line_bytes % lines; other < Repeats::places; other += lines)
      repeated_code_.drop(other);
    if (decoded_.touch(window)) continue;
    result.decoded = false;
    decoded_.insert(window);
  }
  return result;
}

}  // namespace vpmu::uarch
