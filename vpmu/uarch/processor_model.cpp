#include "uarch/processor_model.hpp"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace vpmu::uarch {
namespace {

/// Micro-operations that the queue can deliver in a cycle. SDM 3B 18.13.1.4.
constexpr std::uint8_t all_slots = 4;

/// Joins both halves of an access across pages: the slower one decides.
DataResult joined(const DataResult& first, const DataResult& second) {
  DataResult result = second.latency > first.latency ? second : first;
  result.tlb = std::max(first.tlb, second.tlb);
  result.walk = static_cast<std::uint16_t>(first.walk + second.walk);
  return result;
}

}  // namespace

void ProcessorModel::Access::fill_in(MemAccess& access) const {
  access.address = GuestLinear{at};
  access.level = result.level;
  access.latency = result.latency;
  access.met_prefetch = result.met_prefetch;
  access.dtlb_miss = result.tlb != TlbResult::hit;
  access.stlb_miss = result.tlb == TlbResult::walk;
  access.page = result.page;
}

void ProcessorModel::begin_instruction() {
  last_load_.reset();
  last_store_.reset();
  frontend_ = {};
  offcore_before_ = hierarchy_.offcore(thread_);
  caches_before_ = hierarchy_.cache_events(thread_);
  l1d_fills_before_ = hierarchy_.l1d_fills(thread_);
  mispredicted_ = false;
  telling_ = true;
}

void ProcessorModel::complete(Retirement& r) {
  telling_ = false;
  if (r.has_load && sees_memory_) r.load.address = {};  // unless it made an access
  if (r.has_load && last_load_) last_load_->fill_in(r.load);
  if (r.has_store && last_store_) last_store_->fill_in(r.store);
  if (r.branch.kind != BranchKind::none) r.branch.mispredicted = mispredicted_;
  r.frontend = frontend_;
  const auto since = [](std::uint64_t now, std::uint64_t before) {
    return static_cast<std::uint16_t>(std::min<std::uint64_t>(now - before, 0xFFFF));
  };
  for (unsigned cell = 0; cell < offcore_cell_count; ++cell)
    r.offcore[cell] = since(hierarchy_.offcore(thread_)[cell], offcore_before_[cell]);
  for (unsigned event = 0; event < cache_event_count; ++event)
    r.caches[event] = since(hierarchy_.cache_events(thread_)[event], caches_before_[event]);
  r.l1d_fills = since(hierarchy_.l1d_fills(thread_), l1d_fills_before_);
}

namespace {

/// Cycles in which the queue of decoded instructions gets nothing: while a line that is not in the L1I is fetched, and
/// while its address is translated; and for bubble_of(), while the legacy decoders take over from the decoded micro-op
/// cache. The queue is taken to be empty by then, so that all of these cycles are a bubble.
std::uint16_t wait_of(const FetchResult& f, const Latencies& latency) {
  unsigned cycles = 0;
  if (f.level == HitLevel::l2) cycles += latency.l2;
  if (is_l3_hit(f.level)) cycles += latency.l3;
  if (f.level == HitLevel::dram) cycles += latency.dram;
  if (f.tlb == TlbResult::stlb_hit) cycles += latency.stlb_hit;
  return static_cast<std::uint16_t>(cycles + f.walk);
}
std::uint16_t bubble_of(const FetchResult& f, const Latencies& latency) {
  return static_cast<std::uint16_t>(wait_of(f, latency) + (f.decoded ? 0 : switch_to_decoders));
}

}  // namespace

void ProcessorModel::fetched(const SeenCode& code) {
  if (!sees_memory_) return;
  if (clock_ == nullptr) (void)fetch(code);  // else the clock says when: see arrive()
}

FetchResult ProcessorModel::fetch(const SeenCode& code) {
  const PageSize page = page_size_of(code.page_bytes);
  const auto result = hierarchy_.fetch(code.linear, code.physical, page, code.global);
  front_.line = code.linear;
  front_.is_decoded = result.decoded ? 1 : 0;
  frontend_.dsb_miss |= !result.decoded;
  frontend_.l1i_miss |= result.level != HitLevel::l1;
  frontend_.l2_miss |= is_below_l2(result.level);
  if (is_below_l2(result.level)) {
    add(Counts::llc_references);
    ++frontend_.llc_references;
  }
  if (result.level == HitLevel::dram) {
    add(Counts::llc_misses);
    ++frontend_.llc_misses;
  }
  if (result.level != HitLevel::l1) {
    add(Counts::l1i_misses);
    ++frontend_.l1i_misses;
  } else if (!result.decoded) {
    add(Counts::l1i_hits);
    ++frontend_.l1i_hits;
  }
  if (result.tlb == TlbResult::stlb_hit) {
    add(Counts::itlb_stlb_hits);
    ++frontend_.itlb_stlb_hits;
    add(page == PageSize::small ? Counts::itlb_stlb_hits_small : Counts::itlb_stlb_hits_large);
    if (page != PageSize::small) ++frontend_.itlb_large_stlb_hits;
  }
  if (result.tlb == TlbResult::walk) {
    add(Counts::itlb_walks);
    ++frontend_.itlb_walks;
    add(page == PageSize::small   ? Counts::itlb_walks_small
        : page == PageSize::large ? Counts::itlb_walks_large
                                  : Counts::itlb_walks_huge);
    if (page == PageSize::large) ++frontend_.itlb_large_walks;
    if (page == PageSize::huge) ++frontend_.itlb_huge_walks;
  }
  frontend_.itlb_miss |= result.tlb != TlbResult::hit;
  frontend_.stlb_miss |= result.tlb == TlbResult::walk;
  // For an instruction in two lines, the longer bubble.
  frontend_.bubble_cycles = std::max(frontend_.bubble_cycles, bubble_of(result, hierarchy_.profile().latency));
  frontend_.bubble_slots = frontend_.bubble_cycles != 0 ? all_slots : std::uint8_t{0};
  return result;
}

// The clock is part of the state, so it is first brought up to date. Both threads of a core have its state; of two that
// are restored the later one is right, which the clock tells.
void ProcessorModel::visit_state(const StateVisitor& visit, std::uint64_t now) {
  hierarchy_.run_thread(thread_);
  if (clock_ != nullptr) clock_->retire_to(now);
  pass_to(now);
  std::uint64_t time = hierarchy_.cycles();
  visit(state_bytes(time));
  if (time >= hierarchy_.cycles()) {
    hierarchy_.visit_state(visit);
  } else {
    // The core's other thread has been restored, and its caches are as they were later: these are passed over.
    hierarchy_.visit_state([&visit](std::span<std::byte> part) {
      std::vector<std::byte> earlier(part.size());
      visit(earlier);
    });
  }
  predictor_.visit_state(visit);
  if (clock_ == nullptr) return;
  visit(state_bytes(front_));
  clock_->visit_state(visit, now);
  hierarchy_at_ = clock_->at_part();
}

/// Brings the hierarchy's clock up to date.
inline void ProcessorModel::pass_to(std::uint64_t now) {
  if (clock_ == nullptr) return hierarchy_.advance(now - std::exchange(now_, now));
  const std::uint64_t at = clock_->at_part();
  hierarchy_.advance(at - std::exchange(hierarchy_at_, at));
}

std::uint64_t ProcessorModel::cycles(std::uint64_t now) {
  if (clock_ == nullptr) return now;
  const std::uint64_t cycles = clock_->cycles(now);
  pass_to(now);
  return cycles;
}

inline ClockedAccess ProcessorModel::clocked(std::uint64_t physical, std::uint16_t bytes,
                                             const DataResult& result) const {
  const auto late = static_cast<std::uint16_t>(result.latency - result.waits - hierarchy_.profile().latency.l1);
  // An access is at its place, also one that says no bytes.
  return {.physical = physical,
          .bytes = std::max<std::uint16_t>(bytes, 1),
          .late = late,
          .store_late = result.store_late,
          .level = result.level,
          .changed_code = result.changed_code,
          .walk = result.walk,
          .transfers = result.transfers};
}

void ProcessorModel::begun(const SeenBlock& block, std::uint64_t now) {
  if (clock_ != nullptr) clock_->begin(block, now, 0);
}

namespace {

DataAccess data_access(const SeenAccess& a) {
  return {.linear = a.linear,
          .physical = a.physical,
          .bytes = a.bytes,
          .page = page_size_of(a.page_bytes),
          .global = a.global};
}

}  // namespace

void ProcessorModel::accessed(const SeenAccess& a, std::uint64_t now) {
  if (!sees_memory_) return;
  if (clock_ != nullptr) clock_->reach(now);
  pass_to(now);
  const DataAccess access = data_access(a);
  if (a.prefetch != Prefetch::none) return prefetched(a, access, now);
  const Result result = a.store ? hierarchy_.store(access) : hierarchy_.load(access);
  if (result.changed_code) front_.line = ~0ULL;
  if (clock_ != nullptr && !a.second_half) clock_->access(a.store, clocked(a.physical, a.bytes, result), now);
  came_to(a, result);
}

// A prefetch retires as a load that has hit the L1, whatever it has brought there, and has no latency: load latency is
// that of demand loads (SDM 3B 18.8.1.2). Below the L2 its request is one like any other.
void ProcessorModel::prefetched(const SeenAccess& a, const DataAccess& access, std::uint64_t now) {
  load_ = Access{.at = a.linear, .result = {.level = HitLevel::l1, .tlb = TlbResult::walk}, .prefetches = true};
  if (!a.is_mapped) return;
  const auto request = a.prefetch == Prefetch::to_write ? OffcoreRequest::demand_rfo : OffcoreRequest::demand_data_read;
  const Result found = hierarchy_.prefetch(access, request, a.prefetch != Prefetch::to_l2);
  load_->result.tlb = found.tlb;
  if (clock_ != nullptr)
    clock_->access(false, {.physical = a.physical, .bytes = 1, .level = HitLevel::l1, .transfers = found.transfers},
                   now);
  if (is_below_l2(found.level)) {
    add(Counts::llc_references);
    ++frontend_.llc_references;
  }
  if (found.level == HitLevel::dram) {
    add(Counts::llc_misses);
    ++frontend_.llc_misses;
  }
}

void ProcessorModel::came_to(const SeenAccess& a, const Result& result) {
  std::optional<Access>& of = a.store ? store_ : load_;
  if (a.second_half && of)
    of->result = joined(of->result, result);
  else
    of = Access{.at = a.linear, .result = result, .locked = a.locked};
}

void ProcessorModel::count_load(const Result& load) {
  loads_.add(load.level, load.tlb, load.page);
  counts_[static_cast<unsigned>(Counts::load_latency)] += load.latency > latency_over_ ? 1 : 0;
  if (load.met_prefetch == Prefetched::by_software) add(Counts::loads_met_prefetch);
  if (load.met_prefetch == Prefetched::by_hardware) add(Counts::loads_met_hardware_prefetch);
}

/// For take_last_load().
inline void ProcessorModel::keep_load(std::uint64_t at, const Result& load, bool locked) {
  if (!keeps_last_load_ || telling_) return;
  kept_load_ = MemAccess{.locked = locked};
  Access{.at = at, .result = load}.fill_in(*kept_load_);
}

/// A load that hits the L1 and the first TLB.
inline void ProcessorModel::keep_hit(std::uint64_t at, bool locked) {
  keep_load(at, {.level = HitLevel::l1, .latency = hierarchy_.profile().latency.l1}, locked);
}

// A locked instruction loads and stores in one access.
void ProcessorModel::retired(bool load, bool store) {
  if (!sees_memory_) return;
  if (load && !load_) load_ = store_;
  if (load && load_) {
    count_load(load_->result);
    if (!load_->prefetches) keep_load(load_->at, load_->result, load_->locked || (store && store_ && store_->locked));
  }
  if (load && !load_) {
    add(Counts::load_latency);
    if (keeps_last_load_ && !telling_) kept_load_ = MemAccess{};
  }
  if (store && store_) stores_.add(store_->result.level, store_->result.tlb, store_->result.page);
  last_load_ = load ? load_ : std::nullopt;
  last_store_ = store ? store_ : std::nullopt;
  load_.reset();
  store_.reset();
}

void ProcessorModel::abandoned() {
  load_.reset();
  store_.reset();
}

void ProcessorModel::count_hits(std::uint64_t loads) {
  loads_.add(HitLevel::l1, TlbResult::hit, PageSize::small, loads);
  if (hierarchy_.profile().latency.l1 > latency_over_) counts_[static_cast<unsigned>(Counts::load_latency)] += loads;
}

/// The fast path of saw(): for a load or store that is its instruction's only access, and for code whose fetch changes
/// nothing, while complete() will not be called. False: nothing was done.
bool ProcessorModel::saw_fast(const Seen& seen) {
  const Seen::Kind kind = seen.kind();
  if (clock_ != nullptr) return false;
  if (!sees_memory_) return kind == Seen::Kind::code || kind == Seen::Kind::access;
  if (kind == Seen::Kind::code) {
    const Seen::Code& code = seen.code;
    const bool quick = hierarchy_.fetch_repeats(code.linear) ||
                       hierarchy_.fetch_fast(code.linear, code.physical, page_size_of(code.page_bytes), code.global);
    if (quick && !hierarchy_.has_decoded()) add(Counts::l1i_hits);
    return quick;
  }
  if (kind != Seen::Kind::access) return false;
  const Seen::Access& a = seen.access;
  if (!a.is(Seen::retires) || load_ || store_) return false;
  if (hierarchy_.access_repeats(a.linear, a.bytes, a.is(Seen::op_stores))) {
    count_hits(a.is(Seen::op_loads) ? 1 : 0);
    if (a.is(Seen::op_loads)) keep_hit(a.linear, a.is(Seen::store) && a.is(Seen::locked));
    return true;
  }
  hierarchy_.advance(a.now - std::exchange(now_, a.now));
  const Result result =
      hierarchy_.do_access({.linear = a.linear,
                            .physical = a.physical,
                            .bytes = a.bytes,
                            .page = page_size_of(a.page_bytes),
                            .global = a.is(Seen::global)},
                           a.is(Seen::store) ? OffcoreRequest::demand_rfo : OffcoreRequest::demand_data_read);
  if (a.is(Seen::op_loads)) {
    count_load(result);
    keep_load(a.linear, result, a.is(Seen::store) && a.is(Seen::locked));
  }
  if (a.is(Seen::op_stores)) stores_.add(result.level, result.tlb, result.page);
  return true;
}

// Details of an instruction are kept only if complete() will ask for them: the engine then runs one instruction.
void ProcessorModel::saw(std::span<const Seen> all) {
  if (telling_) return tell(all, *this);
  for (const Seen& seen : all)
    if (!saw_fast(seen)) tell(std::span{&seen, 1}, *this);
}

/// An instruction that has loaded stores to the same place.
inline void ProcessorModel::join_store(Result& loaded, const Result& stored) const {
  loaded.store_late = static_cast<std::uint16_t>(stored.latency - stored.waits - hierarchy_.profile().latency.l1);
  loaded.transfers.append(stored.transfers.begun());
}

DataResult ProcessorModel::saw_access(const SeenBlocks& blocks, const BlockAccess& of, std::uint64_t at) {
  if (clock_ == nullptr) pass_to(blocks.now + of.instruction);
  SeenAccess access = blocks.access(of, at);
  access.store = access.store && !of.both;
  const DataAccess data = data_access(access);
  Result result =
      hierarchy_.do_access(data, access.store ? OffcoreRequest::demand_rfo : OffcoreRequest::demand_data_read);
  const bool loads = of.is(Seen::op_loads), stores = of.is(Seen::op_stores);
  const bool retires = of.is(Seen::retires);
  if (retires && !load_ && !store_) {
    if (loads) {
      count_load(result);
      keep_load(at, result, false);
    }
    if (!stores) return result;
    const Result stored = of.both ? hierarchy_.store(data) : result;
    stores_.add(stored.level, stored.tlb, stored.page);
    result.changed_code |= stored.changed_code;
    if (of.both) join_store(result, stored);
  } else {
    came_to(access, result);
    if (of.both) {
      const Result stored = hierarchy_.store(data);
      access.store = true;
      came_to(access, stored);
      result.changed_code |= stored.changed_code;
      join_store(result, stored);
    }
    if (retires) retired(loads, stores);
  }
  if (result.changed_code) front_.line = ~0ULL;
  return result;
}

// As tell() does, but skips what changes nothing in the models, which is most. Accesses and fetches have no effect on
// branch prediction, so all branches are predicted first.
void ProcessorModel::saw_blocks(SeenBlocks& all) {
  if (all.blocks.empty()) return;
  if (telling_ || load_ || store_) return tell(all, *this);
  if (clock_ != nullptr) return saw_blocks_in_time(all);
  if (!sees_memory_) return saw_branches(all);
  keep_noted(all, predict(all).notes);
  const std::uint64_t penalty = hierarchy_.profile().branches.mispredict_penalty;
  std::uint64_t hits = 0, fetches = 0;
  const std::uint64_t* address = all.addresses.data();
  const Foreseen* foreseen = foreseen_.data();
  for (const SeenBlock* const block : all.blocks) {
    hierarchy_.advance(*foreseen++ == Foreseen::by_execution ? penalty : 0);
    for (const SeenCode& line : block->lines) {
      if (line.linear == all.line) continue;
      all.line = line.linear;
      if (!hierarchy_.fetch_repeats(line.linear) &&
          !hierarchy_.fetch_fast(line.linear, line.physical, page_size_of(line.page_bytes), line.global))
        fetched(line);
      else
        ++fetches;
    }
    for (const BlockAccess& a : block->accesses) {
      const std::uint64_t at = *address++;
      if (hierarchy_.access_repeats(at, a.bytes, a.is(Seen::op_stores)) && a.is(Seen::retires) && !load_) [[likely]] {
        hits += a.is(Seen::op_loads) ? 1 : 0;
        if (a.is(Seen::op_loads)) keep_hit(at, false);
      } else {
        saw_access(all, a, at);
      }
    }
    all.now += block->instructions;
  }
  all.branch = all.blocks.back()->branch;
  count_hits(hits);
  if (!hierarchy_.has_decoded()) counts_[static_cast<unsigned>(Counts::l1i_hits)] += fetches;
}

/// Whether an access of a block hits the L1 and changes nothing, as most do; then it is counted.
inline bool ProcessorModel::saw_hit(const BlockAccess& a, std::uint64_t at) {
  if (!hierarchy_.access_repeats(at, a.bytes, a.is(Seen::op_stores)) || !a.is(Seen::retires) || load_) [[unlikely]]
    return false;
  count_hits(a.is(Seen::op_loads) ? 1 : 0);
  if (a.is(Seen::op_loads)) keep_hit(at, false);
  return true;
}

/// The same access for the clock.
inline ClockedAccess ProcessorModel::hit(const SeenBlocks& all, const BlockAccess& a, std::uint64_t at) {
  return {.physical = all.physical(at), .bytes = std::max<std::uint16_t>(a.bytes, 1), .level = HitLevel::l1};
}

// As saw_blocks(), with the clock's time: each block takes its cycles before the next one is looked at.
void ProcessorModel::saw_blocks_in_time(SeenBlocks& all) {
  clock_->retire_to(all.now);
  const std::span<const Note> notes = predict(all).notes;
  const std::uint64_t* address = all.addresses.data();
  const Foreseen* foreseen = foreseen_.data();
  std::uint32_t* time = times_.data();
  const SeenBranch* branch = &all.branch;
  for (const SeenBlock* const block : all.blocks) {
    pass_to(all.now);
    *time++ = static_cast<std::uint32_t>(hierarchy_at_);
    if (branch->kind != BranchKind::none) expect_after(*branch, *foreseen);
    ++foreseen;
    branch = &block->branch;
    const std::span addresses{address, block->accesses.size()};
    address += addresses.size();
    std::size_t number = 0, done = 0;
    const BlockCode code = clock_->code_of(*block);
    for (const CodePart& part : code.parts) {
      if (!part.is_whole) break;
      saw_part(all, *block, code, number++, addresses);
      done += part.instructions;
    }
    if (done != block->instructions) [[unlikely]]
      saw_in_pieces(all, *block, done, addresses);
    all.now += block->instructions;
  }
  now_ = all.now;
  keep_noted(all, notes);
  all.branch = all.blocks.back()->branch;
}

inline void ProcessorModel::saw_part(const SeenBlocks& all, const SeenBlock& block, const BlockCode& code,
                                     std::size_t number, std::span<const std::uint64_t> addresses) {
  const CodePart& part = code.parts[number];
  pass_to(all.now);
  CodeArrival arrival;
  arrive(block.rip + part.offset, block.lines[part.line], arrival);
  ClockedAccess* to = clocked_.data();
  for (std::size_t n = part.first_access; n < std::size_t{part.first_access} + part.accesses; ++n) {
    const BlockAccess& a = block.accesses[n];
    if (saw_hit(a, addresses[n])) [[likely]] {
      *to++ = hit(all, a, addresses[n]);
      continue;
    }
    *to = clocked(all.physical(addresses[n]), a.bytes, saw_access(all, a, addresses[n]));
    arrival.changes_code |= to++->changed_code;
  }
  clock_->retire(code, number, {clocked_.data(), to}, arrival);
}

/// From its instruction `first` on, which no part that is whole has.
void ProcessorModel::saw_in_pieces(const SeenBlocks& all, const SeenBlock& block, std::size_t first,
                                   std::span<const std::uint64_t> addresses) {
  clock_->begin(block, all.now, first);
  for (std::size_t n = 0; n < addresses.size(); ++n) {
    const BlockAccess& a = block.accesses[n];
    if (a.instruction < first) continue;
    const std::uint64_t now = all.now + a.instruction;
    clock_->reach(now);
    pass_to(now);
    ClockedAccess access = saw_hit(a, addresses[n])
                               ? hit(all, a, addresses[n])
                               : clocked(all.physical(addresses[n]), a.bytes, saw_access(all, a, addresses[n]));
    if (a.both || !a.is(Seen::store)) clock_->access(false, access, now);
    if (a.both) access.late = access.store_late;
    if (a.both || a.is(Seen::store)) clock_->access(true, access, now);
  }
  clock_->retire_to(all.now + block.instructions);
}

// The hierarchy's clock is told of each part, so that it knows of which part an access was.
CodeArrival ProcessorModel::arrive(std::uint64_t rip, const SeenCode& line) {
  pass_to(now_);
  CodeArrival arrival;
  arrive(rip, line, arrival);
  return arrival;
}

/// Fetches code for the clock. Field by field: to copy a struct that was just put together would stall the host.
inline void ProcessorModel::arrive(std::uint64_t rip, const SeenCode& line, CodeArrival& arrival) {
  const bool is_after_branch = std::exchange(front_.is_after_branch, std::uint8_t{0}) != 0;
  arrival.taken = is_after_branch && rip != front_.falls_through_to;
  const auto foreseen = static_cast<Foreseen>(std::exchange(front_.foreseen, std::uint8_t{0}));
  arrival.mispredicted = foreseen == Foreseen::by_execution;
  bool decoded = goes_on_decoded(rip);
  if (line.linear != front_.line) {
    if (hierarchy_.fetch_repeats(line.linear) ||
        hierarchy_.fetch_fast(line.linear, line.physical, page_size_of(line.page_bytes), line.global)) {
      front_.line = line.linear;
      front_.is_decoded = hierarchy_.has_decoded() ? 1 : 0;
      if (!hierarchy_.has_decoded()) add(Counts::l1i_hits);
    } else {
      const FetchResult fetched = fetch(line);
      const Latencies& latency = hierarchy_.profile().latency;
      arrival.wait = wait_of(fetched, latency);
      arrival.walk = fetched.walk;
      if (is_below_l2(fetched.level)) arrival.read = fetched.level == HitLevel::dram ? latency.dram : latency.l3;
    }
    decoded &= front_.is_decoded != 0;
  }
  arrival.decoded = decoded;
  if (foreseen == Foreseen::by_decoder) arrival.wait += hierarchy_.profile().branches.resteer;
}

}  // namespace vpmu::uarch
