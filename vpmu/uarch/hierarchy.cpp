#include "uarch/hierarchy.hpp"

#include <algorithm>
#include <span>

namespace vpmu::uarch {

namespace {

/// A thread's part of what two threads share by halves.
Shape part_of(Shape whole, unsigned threads) { return {.sets = whole.sets / threads, .ways = whole.ways}; }
TlbShapes part_of(const TlbShapes& whole, unsigned threads) {
  return {.small = part_of(whole.small, threads), .large = whole.large, .huge = whole.huge};
}

}  // namespace

Hierarchy::Hierarchy(const Profile& profile, unsigned threads)
    : profile_{&profile},
      threads_{threads},
      l1i_{profile.l1i},
      l1d_{profile.l1d},
      l2_{profile.l2},
      l3_{profile.l3},
      decoded_{RecencySets{part_of(profile.decoded, threads)}, RecencySets{part_of(profile.decoded, threads)}},
      stlb_{profile.stlb},
      dtlb_{profile.dtlb, stlb_},
      itlb_{Tlb{part_of(profile.itlb, threads), stlb_}, Tlb{part_of(profile.itlb, threads), stlb_}},
      owned_{{.sets = 0, .ways = 0}},
      repeated_data_{profile.dtlb.small.sets},
      repeated_code_{profile.itlb.small.sets},
      repeated_stores_{profile.dtlb.small.sets} {
  tag_pages();
}

// What repeats for one thread, by linear address, need not repeat for the other.
void Hierarchy::change_thread(unsigned thread) {
  thread_ = thread;
  tag_pages();
  remapped();
}

// The low bits of a product with an odd number differ for different factors. A single thread needs no tag.
void Hierarchy::tag_pages() {
  if (threads_ == 1) return;
  constexpr std::uint64_t odd = 0x9E37'79B9'7F4A'7C15;
  const std::uint64_t tag = (2 * flushes_[thread_] + thread_ + 1) * odd & Tlb::tag_bits;
  dtlb_.tag_pages(tag);
  itlb_[thread_].tag_pages(tag);
}

// Lines of the L1 need not be in the L2: owned_ has room for the lines of both.
void Hierarchy::share(Sharing& with) {
  sharing_ = &with;
  const Shape l2 = profile_->l2, l1 = profile_->l1d;
  owned_ = RecencySets{{.sets = l2.sets, .ways = std::min(l2.ways + l1.ways, RecencySets::max_ways)}};
  remapped();
  with.add(*this);
}

Snoop Hierarchy::snooped(std::uint64_t line, bool loses_it) {
  using Found = Snoop::Found;
  const bool here = l1d_.contains(line) || l2_.contains(line) || l1i_.contains(line);
  const bool changed = owned_.remove(line) && here;
  repeated_stores_.drop(line);
  if (loses_it && here) {
    for (RecencySets* const cache : {&l1i_, &l1d_, &l2_}) cache->remove(line);
    repeated_data_.drop(line);
    repeated_code_.drop(line);
  }
  return {.in_core = changed ? Found::changed : here ? Found::unchanged : Found::nothing, .in_l3 = l3_.contains(line)};
}

void Hierarchy::own(std::uint64_t line) {
  if (owned_.touch(line)) return;
  sharing_->own(*this, line);
  owned_.insert(line);
}

// For a line that the L1 and the L2 lack.
Snoop Hierarchy::ask_others(std::uint64_t line, OffcoreRequest request) {
  if (sharing_ == nullptr) return {};
  owned_.remove(line);  // from before it was written back
  if (request != OffcoreRequest::demand_rfo) return sharing_->read(*this, line);
  owned_.insert(line);
  return sharing_->own(*this, line);
}

void Hierarchy::visit_state(const StateVisitor& visit) {
  for (RecencySets* const cache : {&l1i_, &l1d_, &l2_, &l3_, &owned_}) cache->visit_state(visit);
  stlb_.visit_state(visit);
  dtlb_.visit_state(visit);
  for (unsigned thread = 0; thread < threads_; ++thread) {
    decoded_[thread].visit_state(visit);
    itlb_[thread].visit_state(visit);
    visit(state_bytes(flushes_[thread]));
  }
  for (FillBuffer& f : fills_) {
    visit(state_bytes(f.line));
    visit(state_bytes(f.ready));
    visit(state_bytes(f.prefetch));
  }
  for (std::uint64_t* const word : {&now_, &in_flight_, &last_ready_}) visit(state_bytes(*word));
  visit(state_bytes(last_fill_));
  last_fill_ %= profile_->fill_buffers;
  tag_pages();
  remapped();
}

// A fill of the line that is in flight keeps its buffer until it is ready, but no later access waits for it.
void Hierarchy::flush_line(std::uint64_t linear, std::uint64_t physical) {
  const std::uint64_t line = physical / line_bytes;
  for (RecencySets* const cache : {&l1i_, &l1d_, &l2_, &l3_}) cache->remove(line);
  for (std::uint64_t i = 0; i < windows_in_line; ++i)
    for (RecencySets& decoded : decoded_) decoded.remove(linear / line_bytes * windows_in_line + i);
  for (FillBuffer& f : fills_)
    if (f.line == line) f.line = FillBuffer{}.line;
  remapped();
}

void Hierarchy::flush_caches() {
  for (RecencySets* const cache : {&l1i_, &l1d_, &l2_, &l3_, &decoded_[0], &decoded_[1]}) cache->clear();
  for (FillBuffer& f : fills_) f.line = FillBuffer{}.line;
  remapped();
}

void Hierarchy::flush_tlbs() {
  if (threads_ == 1) {
    dtlb_.clear();
    stlb_.clear();
  } else {
    ++flushes_[thread_];
    tag_pages();
  }
  itlb_[thread_].clear();
  remapped();
}

std::uint16_t Hierarchy::latency_of(HitLevel level) const {
  const Latencies& l = profile_->latency;
  if (level == HitLevel::l1) return l.l1;
  if (level == HitLevel::l2) return l.l2;
  if (level == HitLevel::l3_shared) return static_cast<std::uint16_t>(l.l3 + l.shared);
  if (level == HitLevel::l3_modified) return static_cast<std::uint16_t>(l.l3 + l.modified);
  return level == HitLevel::l3 ? l.l3 : l.dram;
}

// What an inclusive L3 evicts leaves the levels above, too.
void Hierarchy::fill_l3(std::uint64_t line) {
  const std::uint64_t victim = l3_.insert(line);
  if (victim == RecencySets::nothing || profile_->last_level != LastLevel::inclusive) return;
  l2_.remove(victim);
  l1d_.remove(victim);
  l1i_.remove(victim);
  repeated_data_.drop(victim);
  repeated_stores_.drop(victim);
  repeated_code_.drop(victim);
}

void Hierarchy::fill_l2(std::uint64_t line) {
  const std::uint64_t victim = l2_.insert(line);
  const bool goes_on = victim != RecencySets::nothing && profile_->last_level == LastLevel::victim;
  if (goes_on && !l3_.touch(victim)) fill_l3(victim);
}

namespace {

struct Answer {
  HitLevel level;
  OffcoreSupplier supplier;
};

Answer answer_of(const Snoop& others, bool in_l3) {
  if (others.in_core == Snoop::Found::changed) return {HitLevel::l3_modified, OffcoreSupplier::l3_modified};
  if (others.in_core == Snoop::Found::unchanged) return {HitLevel::l3_shared, OffcoreSupplier::l3_shared};
  return in_l3 ? Answer{HitLevel::l3, OffcoreSupplier::l3} : Answer{HitLevel::dram, OffcoreSupplier::local_dram};
}

}  // namespace

/// Where a line that the L1 lacks is found; afterwards the L2 has it.
HitLevel Hierarchy::below_l1(std::uint64_t line, OffcoreRequest request) {
  l3_.prefetch(line);
  if (l2_.touch(line)) {
    if (sharing_ != nullptr && request == OffcoreRequest::demand_rfo) own(line);
    return HitLevel::l2;
  }
  const Snoop others = ask_others(line, request);
  const bool in_l3 = l3_.touch(line);
  if (!in_l3 && profile_->last_level == LastLevel::inclusive) fill_l3(line);
  fill_l2(line);
  const Answer answer = answer_of(others, in_l3 || others.in_l3);
  const unsigned cell = offcore_cell(request, answer.supplier);
  ++offcore_[thread_][cell];
  ++llc_.slices[(line ^ line >> 7 ^ line >> 13) % slice_count_][cell];
  return answer.level;
}

/// Takes a fill buffer: a free one, or else the first to become free. Returns for how many cycles it waits, if they do
/// not pass here.
std::uint32_t Hierarchy::begin_fill(std::uint64_t line, std::uint16_t latency) {
  const std::span buffers{fills_.data(), std::min<std::size_t>(profile_->fill_buffers, fills_.size())};
  const unsigned next = last_fill_ + 1 < buffers.size() ? last_fill_ + 1 : 0;
  auto found = buffers.begin() + next;
  if (found->ready > now_) found = std::ranges::min_element(buffers, {}, &FillBuffer::ready);
  FillBuffer& buffer = *found;
  last_fill_ = static_cast<unsigned>(found - buffers.begin());
  const std::uint64_t begins = std::max(now_, buffer.ready);
  if (keeps_time_) now_ = begins;
  if (now_ >= last_ready_) in_flight_ = 0;
  in_flight_ |= flight_bit(line);
  buffer = {.line = line, .ready = begins + latency};
  last_ready_ = std::max(last_ready_, buffer.ready);
  return static_cast<std::uint32_t>(begins - now_);
}

/// The fill buffer of a line that is in flight, or null. Most often the last fill is the one asked for.
const Hierarchy::FillBuffer* Hierarchy::in_flight(std::uint64_t line) const {
  const auto brings = [&](const FillBuffer& f) { return f.line == line && f.ready > now_; };
  if (brings(fills_[last_fill_])) return &fills_[last_fill_];
  const auto* const found = std::ranges::find_if(fills_, brings);
  return found == fills_.end() ? nullptr : found;
}

DataResult Hierarchy::prefetch(const DataAccess& access, OffcoreRequest request, bool into_l1) {
  const std::uint64_t line = access.physical / line_bytes;
  if (into_l1) {
    const std::uint64_t fills = l1d_fills_[thread_];
    const DataResult result = do_access(access, request);
    if (l1d_fills_[thread_] != fills) fills_[last_fill_].prefetch = 1;
    return result;
  }
  DataResult result{.level = HitLevel::l1, .tlb = TlbResult::hit};
  if (!l1d_.contains(line)) result.level = below_l1(line, request);
  if (dtlb_.is_latest(access.linear, access.page)) return result;
  drop_pages(repeated_data_, access.linear, access.page);
  drop_pages(repeated_stores_, access.linear, access.page);
  result.tlb = dtlb_.look_up_older(access.linear, access.page);
  return result;
}

// Lines whose windows share a set of the decoded micro-op cache with this one's are no longer that set's latest.
FetchResult Hierarchy::fetch(std::uint64_t linear, std::uint64_t physical, PageSize page) {
  Tlb& itlb = itlb_[thread_];
  RecencySets& decoded = decoded_[thread_];
  if (!itlb.is_latest(linear, page)) drop_pages(repeated_code_, linear, page);
  const std::uint64_t line = physical / line_bytes;
  repeated_code_.drop(line);
  FetchResult result{.level = HitLevel::l1, .tlb = itlb.look_up(linear, page), .decoded = has_decoded()};
  if (!l1i_.touch(line)) {
    result.level = below_l1(line, OffcoreRequest::demand_code_read);
    l1i_.insert(line);
  }
  for (std::uint64_t i = 0; has_decoded() && i < windows_in_line; ++i) {
    const std::uint64_t window = linear / line_bytes * windows_in_line + i;
    if (decoded.is_latest(window)) continue;
    const std::uint64_t lines = std::max<std::uint64_t>(decoded.shape().sets / windows_in_line, 1);
    for (std::uint64_t other = linear / line_bytes % lines; other < Repeats::places; other += lines)
      repeated_code_.drop(other);
    if (decoded.touch(window)) continue;
    result.decoded = false;
    decoded.insert(window);
  }
  return result;
}

}  // namespace vpmu::uarch
