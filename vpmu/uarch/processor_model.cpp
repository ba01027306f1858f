#include "uarch/processor_model.hpp"

#include <algorithm>
#include <utility>

namespace vpmu::uarch {
namespace {

/// Micro-operations that the queue can deliver in a cycle. SDM 3B 18.13.1.4.
constexpr std::uint8_t all_slots = 4;

void fill_in(MemAccess& access, const std::optional<DataResult>& seen) {
  if (!seen) return;
  access.level = seen->level;
  access.latency = seen->latency;
  access.dtlb_miss = seen->tlb != TlbResult::hit;
  access.stlb_miss = seen->tlb == TlbResult::walk;
}

/// Joins both halves of an access across pages: the slower one decides.
DataResult joined(const DataResult& first, const DataResult& second) {
  DataResult result = second.latency > first.latency ? second : first;
  result.tlb = std::max(first.tlb, second.tlb);
  return result;
}

}  // namespace

void ProcessorModel::begin_instruction() {
  last_load_.reset();
  last_store_.reset();
  frontend_ = {};
  offcore_before_ = hierarchy_.offcore();
  l1d_fills_before_ = hierarchy_.l1d_fills();
  mispredicted_ = false;
  telling_ = true;
}

void ProcessorModel::complete(Retirement& r) {
  telling_ = false;
  if (r.has_load) fill_in(r.load, last_load_);
  if (r.has_store) fill_in(r.store, last_store_);
  if (r.branch.kind != BranchKind::none) r.branch.mispredicted = mispredicted_;
  r.frontend = frontend_;
  for (unsigned cell = 0; cell < offcore_cell_count; ++cell)
    r.offcore[cell] =
        static_cast<std::uint16_t>(std::min<std::uint64_t>(hierarchy_.offcore()[cell] - offcore_before_[cell], 0xFFFF));
  r.l1d_fills = static_cast<std::uint16_t>(std::min<std::uint64_t>(hierarchy_.l1d_fills() - l1d_fills_before_, 0xFFFF));
}

namespace {

/// Cycles in which the queue of decoded instructions gets nothing: while a line that is not in the L1I is fetched,
/// while its address is translated, and while the legacy decoders take over from the decoded micro-op cache. The queue
/// is taken to be empty by then, so that all of these cycles are a bubble.
std::uint16_t bubble_of(const FetchResult& f, const Latencies& latency) {
  constexpr unsigned switch_to_decoders = 2;
  unsigned cycles = f.decoded ? 0 : switch_to_decoders;
  if (f.level == HitLevel::l2) cycles += latency.l2;
  if (is_l3_hit(f.level)) cycles += latency.l3;
  if (f.level == HitLevel::dram) cycles += latency.dram;
  if (f.tlb == TlbResult::stlb_hit) cycles += latency.stlb_hit;
  if (f.tlb == TlbResult::walk) cycles += latency.walk;
  return static_cast<std::uint16_t>(cycles);
}

}  // namespace

void ProcessorModel::fetched(const exec::SeenCode& code) {
  if (!sees_memory_) return;
  const auto result = hierarchy_.fetch(code.linear, code.physical, page_size_of(code.page_bytes));
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
  }
  if (result.tlb == TlbResult::stlb_hit) {
    add(Counts::itlb_stlb_hits);
    ++frontend_.itlb_stlb_hits;
  }
  if (result.tlb == TlbResult::walk) {
    add(Counts::itlb_walks);
    ++frontend_.itlb_walks;
  }
  frontend_.itlb_miss |= result.tlb != TlbResult::hit;
  frontend_.stlb_miss |= result.tlb == TlbResult::walk;
  // For an instruction in two lines, the longer bubble.
  frontend_.bubble_cycles = std::max(frontend_.bubble_cycles, bubble_of(result, hierarchy_.profile().latency));
  frontend_.bubble_slots = frontend_.bubble_cycles != 0 ? all_slots : std::uint8_t{0};
}

// The clock is part of the state, so it is first brought up to date.
void ProcessorModel::visit_state(const StateVisitor& visit, std::uint64_t now) {
  hierarchy_.advance(now - std::exchange(now_, now));
  hierarchy_.visit_state(visit);
  predictor_.visit_state(visit);
}

namespace {

DataAccess data_access(const exec::SeenAccess& a) {
  return {.linear = a.linear, .physical = a.physical, .bytes = a.bytes, .page = page_size_of(a.page_bytes)};
}

}  // namespace

void ProcessorModel::accessed(const exec::SeenAccess& a, std::uint64_t now) {
  if (!sees_memory_) return;
  hierarchy_.advance(now - std::exchange(now_, now));
  const DataAccess access = data_access(a);
  came_to(a, a.store ? hierarchy_.store(access) : hierarchy_.load(access));
}

void ProcessorModel::came_to(const exec::SeenAccess& a, const Result& result) {
  std::optional<Result>& of = a.store ? store_ : load_;
  of = a.second_half && of ? joined(*of, result) : result;
}

void ProcessorModel::count_load(const Result& load) {
  loads_.add(load.level, load.tlb);
  counts_[static_cast<unsigned>(Counts::load_latency)] += load.latency > latency_over_ ? 1 : 0;
}

// A locked instruction loads and stores in one access.
void ProcessorModel::retired(bool load, bool store) {
  if (!sees_memory_) return;
  if (load && !load_) load_ = store_;
  if (load && load_) count_load(*load_);
  if (load && !load_) add(Counts::load_latency);
  if (store && store_) stores_.add(store_->level, store_->tlb);
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
  loads_.add(HitLevel::l1, TlbResult::hit, loads);
  if (hierarchy_.profile().latency.l1 > latency_over_) counts_[static_cast<unsigned>(Counts::load_latency)] += loads;
}

/// The fast path of saw(): for a load or store that is its instruction's only access, and for code whose fetch changes
/// nothing, while complete() will not be called. False: nothing was done.
bool ProcessorModel::saw_quickly(const exec::Seen& seen) {
  using exec::Seen;
  if (!sees_memory_) return seen.kind == Seen::Kind::code || seen.kind == Seen::Kind::access;
  if (seen.kind == Seen::Kind::code)
    return hierarchy_.fetch_repeats(seen.linear) ||
           hierarchy_.fetch_quickly(seen.linear, seen.physical, page_size_of(seen.page_bytes));
  if (seen.kind != Seen::Kind::access || !seen.is(Seen::retires) || load_ || store_) return false;
  if (hierarchy_.access_repeats(seen.linear, seen.bytes, seen.is(Seen::op_stores))) {
    count_hits(seen.is(Seen::op_loads) ? 1 : 0);
    return true;
  }
  hierarchy_.advance(seen.now - std::exchange(now_, seen.now));
  const Result result = hierarchy_.do_access(
      {.linear = seen.linear, .physical = seen.physical, .bytes = seen.bytes, .page = page_size_of(seen.page_bytes)},
      seen.is(Seen::store) ? OffcoreRequest::demand_rfo : OffcoreRequest::demand_data_read);
  if (seen.is(Seen::op_loads)) count_load(result);
  if (seen.is(Seen::op_stores)) stores_.add(result.level, result.tlb);
  return true;
}

// Details of an instruction are kept only if complete() will ask for them: the engine then runs one instruction.
void ProcessorModel::saw(std::span<const exec::Seen> all) {
  if (telling_) return tell(all, *this);
  for (const exec::Seen& seen : all)
    if (!saw_quickly(seen)) tell(std::span{&seen, 1}, *this);
}

void ProcessorModel::saw_access(const exec::SeenBlocks& blocks, const exec::BlockAccess& of, std::uint64_t at) {
  using exec::Seen;
  const std::uint64_t now = blocks.now + of.instruction;
  hierarchy_.advance(now - std::exchange(now_, now));
  exec::SeenAccess access = blocks.access(of, at);
  access.store = access.store && !of.both;
  const DataAccess data = data_access(access);
  const Result result =
      hierarchy_.do_access(data, access.store ? OffcoreRequest::demand_rfo : OffcoreRequest::demand_data_read);
  const bool loads = (of.flags & Seen::op_loads) != 0, stores = (of.flags & Seen::op_stores) != 0;
  const bool retires = (of.flags & Seen::retires) != 0;
  if (retires && !load_ && !store_) {
    if (loads) count_load(result);
    if (!stores) return;
    const Result stored = of.both ? hierarchy_.store(data) : result;
    return stores_.add(stored.level, stored.tlb);
  }
  came_to(access, result);
  if (of.both) {
    access.store = true;
    came_to(access, hierarchy_.store(data));
  }
  if (retires) retired(loads, stores);
}

// As tell() does, but skips what changes nothing in the models, which is most. Accesses and fetches have no effect on
// branch prediction, so all branches are predicted first.
void ProcessorModel::saw_blocks(exec::SeenBlocks& all) {
  using exec::Seen;
  if (all.blocks.empty()) return;
  if (telling_ || load_ || store_) return tell(all, *this);
  if (!sees_memory_) return saw_branches(all);
  predict_before(all);
  const std::uint64_t penalty = hierarchy_.profile().branches.mispredict_penalty;
  std::uint64_t hits = 0;
  const std::uint64_t* address = all.addresses.data();
  const std::uint8_t* missed = missed_.data();
  for (const exec::SeenBlock* const block : all.blocks) {
    hierarchy_.advance(*missed++ * penalty);
    for (const exec::SeenCode& line : block->lines) {
      if (line.linear == all.line) continue;
      all.line = line.linear;
      if (!hierarchy_.fetch_repeats(line.linear) &&
          !hierarchy_.fetch_quickly(line.linear, line.physical, page_size_of(line.page_bytes)))
        fetched(line);
    }
    for (const exec::BlockAccess& a : block->accesses) {
      const std::uint64_t at = *address++;
      if (hierarchy_.access_repeats(at, a.bytes, (a.flags & Seen::op_stores) != 0) && (a.flags & Seen::retires) != 0 &&
          !load_) [[likely]]
        hits += (a.flags & Seen::op_loads) != 0 ? 1 : 0;
      else
        saw_access(all, a, at);
    }
    all.now += block->instructions;
  }
  all.branch = all.blocks.back()->branch;
  count_hits(hits);
}

}  // namespace vpmu::uarch
