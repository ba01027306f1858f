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
    : profile_{profile},
      threads_{threads},
      l1i_{profile.l1i},
      l1d_{profile.l1d},
      l2_{profile.l2},
      own_l3_{profile.l3},
      decoded_{RecencySets{part_of(profile.decoded, threads)}, RecencySets{part_of(profile.decoded, threads)}},
      stlb_{profile.stlb},
      dtlb_{profile.dtlb, stlb_},
      itlb_{Tlb{part_of(profile.itlb, threads), stlb_}, Tlb{part_of(profile.itlb, threads), stlb_}},
      owned_{{.sets = 0, .ways = 0}},
      repeated_data_{profile.dtlb.small.sets},
      repeated_code_{profile.itlb.small.sets},
      repeated_stores_{profile.dtlb.small.sets},
      directories_{{.sets = 8, .ways = 4}},
      directory_pointers_{{.sets = 1, .ways = 4}} {
  turn_off(0);
  tag_pages();
}

// What repeats for one thread, by linear address, need not repeat for the other.
void Hierarchy::change_thread(unsigned thread) {
  thread_ = thread;
  tag_pages();
  remapped();
}

void Hierarchy::tag_pages() {
  const AddressSpaces& spaces = spaces_[thread_];
  for (Tlb* const tlb : {&dtlb_, &itlb_[thread_]}) tlb->tag_pages(spaces.tag(thread_), spaces.global_tag(thread_));
}

// Lines of the L1 need not be in the L2: owned_ has room for the lines of both.
void Hierarchy::share(Sharing& with) {
  sharing_ = &with;
  const Shape l2 = profile_.l2, l1 = profile_.l1d;
  owned_ = RecencySets{{.sets = l2.sets, .ways = std::min(l2.ways + l1.ways, RecencySets::max_ways)}};
  remapped();
  with.add(*this, own_l3_);
  if (&l3() != &own_l3_) own_l3_ = RecencySets{{}};  // it will not be used
}

template <class Do>
void Hierarchy::for_each_core(const Do& act) {
  if (sharing_ == nullptr) return act(*this);
  for (Hierarchy* const core : sharing_->cores()) act(*core);
}

/// The core has the line no longer.
void Hierarchy::lose(std::uint64_t line) {
  for (RecencySets* const cache : {&l1i_, &l1d_, &l2_}) cache->remove(line);
  for (Repeats* const repeats : {&repeated_data_, &repeated_stores_, &repeated_code_}) repeats->drop(line);
}

Snoop Hierarchy::snooped(std::uint64_t line, bool loses_it) {
  const bool here = l1d_.contains(line) || l2_.contains(line) || l1i_.contains(line);
  const bool changed = owned_.remove(line) && here;
  repeated_stores_.drop(line);
  if (loses_it && here) lose(line);
  if (changed) return Snoop::changed;
  return here ? Snoop::unchanged : Snoop::nothing;
}

/// Before a store to a line that the L1 or the L2 has: the others lose it. Returns for how many cycles it waits for
/// them; for a line that no one else has it does not.
std::uint32_t Hierarchy::own(std::uint64_t line) {
  if (owned_.touch(line)) return 0;
  const Snoop others = sharing_->own(*this, line);
  owned_.insert(line);
  if (others == Snoop::nothing) return 0;
  count_off_core(line, OffcoreRequest::demand_rfo, OffcoreSupplier::l3_shared);
  return std::uint32_t{profile_.latency.l3} + profile_.latency.shared;
}

// For a line that the L1 and the L2 lack.
Snoop Hierarchy::ask_others(std::uint64_t line, OffcoreRequest request) {
  if (sharing_ == nullptr) return {};
  owned_.remove(line);  // from before it was written back
  const bool owns = request == OffcoreRequest::demand_rfo;
  if (owns) owned_.insert(line);
  const Snoop others = owns ? sharing_->own(*this, line) : sharing_->read(*this, line);
  if (others == Snoop::changed) took_changed_line_ = 1;
  return others;
}

void Hierarchy::visit_state(const StateVisitor& visit) {
  for (RecencySets* const cache : {&l1i_, &l1d_, &l2_, &l3(), &owned_, &directories_, &directory_pointers_})
    cache->visit_state(visit);
  stlb_.visit_state(visit);
  dtlb_.visit_state(visit);
  for (unsigned thread = 0; thread < threads_; ++thread) {
    decoded_[thread].visit_state(visit);
    itlb_[thread].visit_state(visit);
    spaces_[thread].visit_state(visit);
  }
  visit(state_bytes(fills_));
  visit(state_bytes(took_changed_line_));
  transfers_.visit_state(visit);
  prefetchers_.visit_state(visit);
  tag_pages();
  remapped();
}

void Hierarchy::drop_code(std::uint64_t linear, std::uint64_t line) {
  l1i_.remove(line);
  for (std::uint64_t i = 0; i < windows_in_line; ++i)
    for (RecencySets& decoded : decoded_) decoded.remove(linear / line_bytes * windows_in_line + i);
  repeated_code_.drop(line);
}

// A fill of the line that is in flight keeps its buffer until it is ready, but no later access waits for it.
void Hierarchy::flush_line(std::uint64_t linear, std::uint64_t physical) {
  const std::uint64_t line = physical / line_bytes;
  l3().remove(l3_key(line));
  for_each_core([line](Hierarchy& core) { core.lose(line); });
  drop_code(linear, line);
  transfers_.forget(line);
  remapped();
}

void Hierarchy::flush_caches() {
  l3().clear();
  if (profile_.last_level == LastLevel::inclusive)
    for_each_core([](Hierarchy& core) { core.empty(); });
  else
    empty();
}

void Hierarchy::empty() {
  for (RecencySets* const cache : {&l1i_, &l1d_, &l2_}) cache->clear();
  for (RecencySets& decoded : decoded_) decoded.clear();
  transfers_.forget_all();
  remapped();
}

// SDM 3A 4.10.4.1. INVLPG removes a PCID's paging-structure entries whatever the address.
bool Hierarchy::flush_tlbs(const TlbFlush& flush) {
  using enum TlbFlush::Of;
  AddressSpaces& spaces = spaces_[thread_];
  if (flush.of == nothing && flush.pcid == spaces.used()) return false;
  if (flush.of == page) {
    for (Tlb* const tlb : {&dtlb_, &itlb_[thread_]}) tlb->forget(flush.linear);
  } else {
    spaces.use(flush.pcid);
    if (flush.of == address_space) spaces.flush(flush.pcid);
  }
  if (flush.of == everything) {
    itlb_[thread_].clear();
    if (threads_ == 1) {
      dtlb_.clear();
      stlb_.clear();
    } else {
      spaces.flush_all();  // the other thread keeps its own
    }
  }
  if (flush.of == everything || flush.of == page) {
    directories_.clear();
    directory_pointers_.clear();
  }
  tag_pages();
  remapped();
  return true;
}

std::uint16_t Hierarchy::latency_of(HitLevel level) const {
  const Latencies& l = profile_.latency;
  if (level == HitLevel::l1) return l.l1;
  if (level == HitLevel::l2) return l.l2;
  if (level == HitLevel::l3_shared) return static_cast<std::uint16_t>(l.l3 + l.shared);
  if (level == HitLevel::l3_modified) return static_cast<std::uint16_t>(l.l3 + l.modified);
  return level == HitLevel::l3 ? l.l3 : l.dram;
}

// What an inclusive L3 evicts leaves the levels above, too.
void Hierarchy::fill_l3(std::uint64_t line) {
  const std::uint64_t evicted = l3().insert(l3_key(line));
  if (evicted == RecencySets::nothing || profile_.last_level != LastLevel::inclusive) return;
  const std::uint64_t victim = l3_line(evicted);
  for_each_core([victim](Hierarchy& core) { core.lose(victim); });
}

void Hierarchy::fill_l2(std::uint64_t line) {
  const std::uint64_t victim = l2_.insert(line);
  const bool goes_on = victim != RecencySets::nothing && profile_.last_level == LastLevel::victim;
  if (goes_on && !l3().touch(l3_key(victim))) fill_l3(victim);
}

namespace {

struct Answer {
  HitLevel level;
  OffcoreSupplier supplier;
};

Answer answer_of(Snoop others, bool in_l3) {
  if (others == Snoop::changed) return {HitLevel::l3_modified, OffcoreSupplier::l3_modified};
  if (others == Snoop::unchanged) return {HitLevel::l3_shared, OffcoreSupplier::l3_shared};
  return in_l3 ? Answer{HitLevel::l3, OffcoreSupplier::l3} : Answer{HitLevel::dram, OffcoreSupplier::local_dram};
}

CacheEvent in_l2(OffcoreRequest request, bool hit) {
  switch (request) {
    case OffcoreRequest::demand_data_read: return hit ? CacheEvent::l2_data_read_hit : CacheEvent::l2_data_read_miss;
    case OffcoreRequest::demand_rfo: return hit ? CacheEvent::l2_rfo_hit : CacheEvent::l2_rfo_miss;
    case OffcoreRequest::demand_code_read: return hit ? CacheEvent::l2_code_read_hit : CacheEvent::l2_code_read_miss;
    case OffcoreRequest::prefetch_data_read: break;
  }
  return hit ? CacheEvent::l2_prefetch_hit : CacheEvent::l2_prefetch_miss;
}

}  // namespace

void Hierarchy::count_off_core(std::uint64_t line, OffcoreRequest request, OffcoreSupplier supplier) {
  const unsigned cell = offcore_cell(request, supplier);
  ++offcore_[thread_][cell];
  ++llc_.slices[(line ^ line >> 7 ^ line >> 13) % slice_count_][cell];
}

/// Where a line that the L2 lacks is found; afterwards the L2 has it.
HitLevel Hierarchy::below_l2(std::uint64_t line, OffcoreRequest request) {
  count(in_l2(request, false));
  const Snoop others = ask_others(line, request);
  const bool in_l3 = l3().touch(l3_key(line));
  if (!in_l3 && profile_.last_level == LastLevel::inclusive) fill_l3(line);
  fill_l2(line);
  const Answer answer = answer_of(others, in_l3);
  count_off_core(line, request, answer.supplier);
  return answer.level;
}

/// Where a line that the L1 lacks is found; afterwards the L2 has it.
HitLevel Hierarchy::below_l1(std::uint64_t line, OffcoreRequest request) {
  l3().prefetch(l3_key(line));
  if (l2_.touch(line)) {
    count(in_l2(request, true));
    return HitLevel::l2;
  }
  return below_l2(line, request);
}

namespace {

Transfers::From from_of(HitLevel level) {
  if (level == HitLevel::l2) return Transfers::l2;
  return level == HitLevel::dram ? Transfers::memory : Transfers::l3;
}

}  // namespace

TransferTimes Hierarchy::transfer_times() const {
  const Latencies& l = profile_.latency;
  return {.from = {0, l.l2, l.l3, l.dram}, .channel = profile_.channel};
}

Hierarchy::Line Hierarchy::slower(const Line& first, const Line& second) {
  Line line = second.latency > first.latency ? second : first;
  line.transfers = first.transfers;
  line.transfers.append(second.transfers);
  return line;
}

/// For a line that the L1 has, or that is on its way there.
Hierarchy::Line Hierarchy::hit_line(std::uint64_t line, Part part, OffcoreRequest request) {
  const std::uint32_t l1 = profile_.latency.l1;
  Line result{HitLevel::l1, l1};
  const LineTransfers::Transfer* const transfer = transfers_.find(line);
  const bool is_on_its_way = transfer != nullptr && transfer->to_l1 != 0;
  const bool stores = request == OffcoreRequest::demand_rfo;
  if (is_on_its_way && stores) transfers_.store(line, part.mask(), thread_);
  if (is_on_its_way && !stores && transfer->holds(part.mask(), thread_)) {
    result.is_forwarded = true;
  } else if (is_on_its_way) {
    const std::uint32_t latency = rest_of(*transfer, l1);
    result = {HitLevel::lfb, latency, static_cast<Prefetched>(transfer->prefetched)};
    if (!keeps_time_) {
      result.waits = static_cast<std::uint16_t>(latency - l1);
      result.transfers.wait_for(transfers_.name_of(*transfer));
    }
  }
  if (keeps_time_) return result;
  if (const auto next = prefetchers_.accessed(line, part.offset)) prefetch_next(*next, result.transfers);
  return result;
}

Hierarchy::Line Hierarchy::missed_line(std::uint64_t line, Part part, OffcoreRequest request) {
  const LineTransfers::Transfer* const transfer = transfers_.find(line);
  const bool is_on_its_way = !keeps_time_ && transfer != nullptr && transfer->to_l1 == 0;
  Line result{below_l1(line, request), 0};
  result.latency = latency_of(result.level);
  if (result.level == HitLevel::l2 && is_to_be_owned(request)) result.latency += own(line);
  l1d_.insert(line);
  ++l1d_fills_[thread_];
  if (is_on_its_way && result.level == HitLevel::l2) {
    result.level = static_cast<HitLevel>(transfer->level);
    const std::uint32_t latency = rest_of(*transfer, result.latency);
    result.waits = static_cast<std::uint16_t>(latency - result.latency);
    result.latency = latency;
    result.transfers.wait_for(transfers_.name_of(*transfer));
  }
  if (keeps_time_) take_fill_buffer(result.latency);
  const auto& fill = transfers_.begin(line, result.level, result.latency, true);
  if (request == OffcoreRequest::demand_rfo) transfers_.store(line, part.mask(), thread_);
  if (keeps_time_) return result;
  result.transfers.begin(fill.number, from_of(result.level));
  prefetchers_.filled(line, part.offset);
  prefetch_for(line, result.transfers);
  return result;
}

/// What the prefetchers bring into the L2 because of a line that the L1 lacked.
void Hierarchy::prefetch_for(std::uint64_t line, Transfers& transfers) {
  const PrefetchedLines wanted = prefetchers_.missed_l1(line);
  for (const std::uint64_t next : wanted.all()) {
    if (l2_.contains(next)) {
      count(CacheEvent::l2_prefetch_hit);
      continue;
    }
    const HitLevel level = below_l2(next, OffcoreRequest::prefetch_data_read);
    transfers.begin(transfers_.begin(next, level, latency_of(level), false).number, from_of(level));
  }
}

/// The line goes into the L1, if it lacks it.
void Hierarchy::prefetch_next(std::uint64_t line, Transfers& transfers) {
  if (l1d_.contains(line)) return count(CacheEvent::l1d_prefetch_hit);
  count(CacheEvent::l1d_prefetch_miss);
  const LineTransfers::Transfer* const transfer = transfers_.find(line);
  HitLevel level = below_l1(line, OffcoreRequest::demand_data_read);
  // One that is on its way to the L2 comes as late as it would if it began now: no one waits for two.
  if (level == HitLevel::l2 && transfer != nullptr) level = static_cast<HitLevel>(transfer->level);
  l1d_.insert(line);
  repeated_data_.drop(line);
  repeated_stores_.drop(line);
  ++l1d_fills_[thread_];
  transfers.begin(transfers_.begin(line, level, latency_of(level), true).number, from_of(level));
  transfers_.mark_prefetched(line, Prefetched::by_hardware);
  prefetchers_.expect(line);
  prefetch_for(line, transfers);
}

/// Cycles of a page walk: those of the second level TLB, which does not have the page, and the loads of the entries
/// that the paging-structure caches do not have. SDM 3A 4.10.3.
std::uint16_t Hierarchy::walk(std::uint64_t linear, PageSize size, bool for_code) {
  if (keeps_time_) return profile_.latency.walk;
  constexpr unsigned page_table = 0, directory = 1, directory_pointer = 2;
  const std::uint64_t tag = spaces_[thread_].tag(thread_);
  const auto misses = [linear, tag](RecencySets& cache, unsigned level) {
    const std::uint64_t key = (linear & ((1ULL << 48) - 1)) >> (12 + 9 * level) ^ tag;
    if (cache.touch(key)) return false;
    cache.insert(key);
    return true;
  };
  unsigned cycles = profile_.latency.stlb_hit;
  if (size == PageSize::small) {
    if (misses(directories_, directory)) {
      if (misses(directory_pointers_, directory_pointer)) cycles += load_entry(linear, directory_pointer, for_code);
      cycles += load_entry(linear, directory, for_code);
    }
    cycles += load_entry(linear, page_table, for_code);
  } else if (size == PageSize::large) {
    if (misses(directory_pointers_, directory_pointer)) cycles += load_entry(linear, directory_pointer, for_code);
    cycles += load_entry(linear, directory, for_code);
  } else {
    cycles += load_entry(linear, directory_pointer, for_code);
  }
  return static_cast<std::uint16_t>(cycles);
}

/// Loads a paging-structure entry. Where the guest has it is not known here: each level's entries have a place of their
/// own, far above RAM, in the order of the linear addresses that they are for.
std::uint16_t Hierarchy::load_entry(std::uint64_t linear, unsigned level, bool for_code) {
  using enum CacheEvent;
  const auto found = [&](CacheEvent for_data_there, CacheEvent for_code_there, HitLevel there) {
    count(for_code ? for_code_there : for_data_there);
    return latency_of(there);
  };
  constexpr std::uint64_t above_ram = 1ULL << 36, entries_of_line = 8;
  const std::uint64_t entry = (linear & ((1ULL << 48) - 1)) >> (12 + 9 * level);
  const std::uint64_t line = above_ram | std::uint64_t{level} << 34 | entry / entries_of_line;
  repeated_data_.drop(line);
  repeated_stores_.drop(line);
  if (l1d_.touch(line)) return found(data_walk_l1d, code_walk_l1d, HitLevel::l1);
  l1d_.insert(line);
  if (l2_.touch(line)) return found(data_walk_l2, code_walk_l2, HitLevel::l2);
  const bool in_l3 = l3().touch(l3_key(line));
  if (!in_l3 && profile_.last_level == LastLevel::inclusive) fill_l3(line);
  fill_l2(line);
  count_off_core(line, OffcoreRequest::demand_data_read, in_l3 ? OffcoreSupplier::l3 : OffcoreSupplier::local_dram);
  return in_l3 ? found(data_walk_l3, code_walk_l3, HitLevel::l3)
               : found(data_walk_memory, code_walk_memory, HitLevel::dram);
}

/// Takes a fill buffer: a free one, or else the first to become free, for which it waits.
void Hierarchy::take_fill_buffer(std::uint32_t cycles) {
  const std::span buffers{fills_.data(), std::min<std::size_t>(profile_.fill_buffers, fills_.size())};
  std::uint64_t& buffer = *std::ranges::min_element(buffers);
  if (buffer > transfers_.now()) transfers_.advance(buffer - transfers_.now(), false);
  buffer = transfers_.now() + cycles;
}

DataResult Hierarchy::prefetch(const DataAccess& access, OffcoreRequest request, bool into_l1) {
  const std::uint64_t line = access.physical / line_bytes;
  if (into_l1) {
    const bool fills = !l1d_.contains(line);
    DataAccess nothing = access;  // it stores none of the line's bytes
    nothing.bytes = 0;
    const DataResult result = do_access(nothing, request);
    if (fills) transfers_.mark_prefetched(line, Prefetched::by_software);
    return result;
  }
  DataResult result{.level = HitLevel::l1, .tlb = TlbResult::hit};
  if (!l1d_.contains(line)) result.level = below_l1(line, request);
  if (dtlb_.is_latest(access.linear, access.page, access.global)) return result;
  drop_pages(repeated_data_, access.linear, access.page);
  drop_pages(repeated_stores_, access.linear, access.page);
  result.tlb = dtlb_.look_up_older(access.linear, access.page, access.global);
  return result;
}

// Lines whose windows share a set of the decoded micro-op cache with this one's are no longer that set's latest.
FetchResult Hierarchy::fetch(std::uint64_t linear, std::uint64_t physical, PageSize page, bool global) {
  Tlb& itlb = itlb_[thread_];
  RecencySets& decoded = decoded_[thread_];
  if (!itlb.is_latest(linear, page, global)) drop_pages(repeated_code_, linear, page);
  const std::uint64_t line = physical / line_bytes;
  repeated_code_.drop(line);
  FetchResult result{.level = HitLevel::l1, .tlb = itlb.look_up(linear, page, global), .decoded = has_decoded()};
  if (result.tlb == TlbResult::walk) result.walk = walk(linear, page, /*for_code=*/true);
  if (!l1i_.touch(line)) {
    result.level = below_l1(line, OffcoreRequest::demand_code_read);
    l1i_.insert(line);
    repeated_stores_.drop(line);
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
