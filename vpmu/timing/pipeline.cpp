#include "timing/pipeline.hpp"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace vpmu::timing {
namespace {

// When ticks are that many, they begin anew, and those that are older than `kept` are equally old. What a block adds at
// most, loads that are late among it, is far from where 32 bits end.
constexpr Tick max_ticks = 1 << 28, kept = 1 << 20;
constexpr Tick max_late = (1 << 16) * cycle;  // by which a store may leave its buffer after it has retired
constexpr Time max_origin = Time{1} << 61;

Ticks4 latest(Ticks4 a, Ticks4 b) { return a > b ? a : b; }

/// The rows of a column, `then` later, where they come after what `rows` says.
[[gnu::always_inline]] inline void raise(Ticks4* rows, const Ticks4* column, std::size_t vectors, Tick then) {
  for (std::size_t v = 0; v < vectors; ++v) rows[v] = latest(rows[v], column[v] + then);
}

/// The latest of so many columns, each as much later as `then` says, for `count` vectors of their rows.
template <std::size_t count>
[[gnu::always_inline]] inline void take_some(Ticks4* rows, const Ticks4* matrix, std::size_t vectors,
                                             std::span<const Tick> then) {
  std::array<Ticks4, count> all;
  for (std::size_t v = 0; v < count; ++v) all[v] = matrix[v] + then[0];
  for (std::size_t column = 1; column < then.size(); ++column) {
    matrix += vectors;
    for (std::size_t v = 0; v < count; ++v) all[v] = latest(all[v], matrix[v] + then[column]);
  }
  for (std::size_t v = 0; v < count; ++v) rows[v] = all[v];
}

/// The same for all rows: a few at a time, so that they stay in registers.
[[gnu::always_inline]] inline void take_columns(Ticks4* rows, const Ticks4* matrix, std::size_t vectors,
                                                std::span<const Tick> then) {
  std::size_t v = 0;
  for (; v + 4 <= vectors; v += 4) take_some<4>(rows + v, matrix + v, vectors, then);
  switch (vectors - v) {
    case 3: return take_some<3>(rows + v, matrix + v, vectors, then);
    case 2: return take_some<2>(rows + v, matrix + v, vectors, then);
    case 1: return take_some<1>(rows + v, matrix + v, vectors, then);
    default: return;
  }
}

/// Faster than std::max of a list, which is one in memory.
template <class... More>
Tick latest_of(Tick first, More... more) {
  if constexpr (sizeof...(more) == 0)
    return first;
  else
    return std::max(first, latest_of(more...));
}

}  // namespace

/// When the reorder buffer and the load buffer have room for all up to these.
inline Tick Pipeline::room_for(std::uint32_t micro_ops, std::uint32_t loads) {
  Clocks& c = clocks_;
  while (c.first_in_window != c.after_window) {
    const Retired& first = window_[c.first_in_window];
    if (micro_ops - first.micro_ops <= limits_.reorder_buffer && loads - first.loads <= limits_.load_buffer) break;
    c.oldest = first.at;
    c.oldest_end = first.end;
    c.oldest_loads = first.loads;
    ++c.first_in_window;
  }
  // Of the last block not all need to have retired: what is behind them takes its slots until then.
  const auto behind = static_cast<std::int32_t>(c.oldest_end - (micro_ops - limits_.reorder_buffer));
  if (behind <= 0 || loads - c.oldest_loads > limits_.load_buffer) return c.oldest;
  return c.oldest - std::min<Tick>(behind, TimedBlock::max_instructions) * cycle / on_.issue_width;
}

/// When the store buffer has room for so many stores more.
inline Tick Pipeline::drained(unsigned stores) const {
  const Clocks& c = clocks_;
  if (stores == 0) return 0;
  return c.drains[(c.stores + std::min<unsigned>(stores, limits_.store_buffer) - 1U - limits_.store_buffer) %
                  max_store_buffer];
}

inline Pipeline::Delivered Pipeline::decode(const TimedBlock& block) {
  Clocks& c = clocks_;
  if (c.was_cached != 0) {
    c.predecoded = c.decoded = latest_of(c.predecoded, c.decoded, c.cached + on_.cache_to_decoders * cycle);
    c.in_block = 0;
    c.decoders_used = on_.decoders;
    c.was_cached = 0;
    if (counting_) tallies_.dsb_to_mite.add(on_.cache_to_decoders * cycle);
  }
  const TimedBlock::FrontEnd predecode = block.predecode[c.in_block], decode = block.decode[c.decoders_used];
  const Tick first = std::max(c.predecoded + predecode.first, c.decoded + decode.first);
  c.predecoded += predecode.takes;
  c.decoded += decode.takes;
  c.in_block = predecode.leaves;
  c.decoders_used = decode.leaves;
  return {.span = {.first = first, .last = std::max(c.predecoded, c.decoded)},
          .takes = std::max<Tick>(predecode.takes, decode.takes)};
}

inline Pipeline::Delivered Pipeline::read_lines(const TimedBlock& block) {
  Clocks& c = clocks_;
  if (c.was_cached == 0) {
    c.cached = latest_of(c.predecoded, c.decoded, c.cached);
    c.line_places = TimedBlock::line_places;
    c.was_cached = 1;
  }
  const TimedBlock::FrontEnd lines = block.cached[c.line_places];
  const Tick first = c.cached + lines.first;
  c.cached += lines.takes;
  c.line_places = lines.leaves;
  return {.span = {.first = first, .last = c.cached}, .takes = lines.takes};
}

/// When the front end has the block's micro-ops.
inline Pipeline::Delivered Pipeline::deliver(const TimedBlock& block, const BlockRun& how) {
  Clocks& c = clocks_;
  // The queue before the back end is finite: the front end is never further ahead.
  Tick earliest = c.issued - on_.decoded_ahead * cycle;
  Tick refilled{};
  if (how.mispredicted) {
    // Its first micro-op is issued when the refill ends.
    refilled = c.executed + (on_.refill - on_.issue_to_dispatch + (how.decoded ? 0 : on_.decoder_refill)) * cycle;
    earliest = std::max(earliest, refilled - (how.decoded ? block.cached[TimedBlock::line_places].first : cycle));
    c.decoders_used = on_.decoders;
  }
  if (how.taken || how.mispredicted) {
    c.in_block = 0;
    c.line_places = TimedBlock::line_places;
  }
  if (how.fetch_wait != 0) earliest = latest_of(earliest, c.predecoded, c.decoded, c.cached) + how.fetch_wait * cycle;
  c.predecoded = std::max(c.predecoded, earliest);
  c.decoded = std::max(c.decoded, earliest);
  c.cached = std::max(c.cached, earliest);
  Delivered delivered = how.decoded ? read_lines(block) : decode(block);
  delivered.refilled = refilled;
  if (const Tick more = in_turns(delivered.takes) - delivered.takes; more != 0) [[unlikely]] {
    for (Tick* const clock : {&c.predecoded, &c.decoded, &c.cached, &delivered.span.last, &delivered.takes})
      *clock += more;
  }
  return delivered;
}

/// What held up a block's issue: times up to which it waited for one thing and then for the next.
struct Pipeline::Issued {
  const TimedBlock& block;
  const BlockRun& how;
  const Delivered& delivered;
  Tick before{};  ///< The last micro-op before it.
  Tick room{};    ///< The reorder buffer and the load buffer for its first micro-op.
  Span issued;
  Tick all_room{}, all_stores{};  ///< The same for all; the store buffer for all.
};

/// Counts whose issue slots they were from the block before on: each belongs to one.
inline void Pipeline::count_issue(const Issued& i) {
  PipelineTallies& t = tallies_;
  const auto [first, last] = i.issued;
  const Tick slots = in_turns(i.block.slots), in_block = first + slots;
  // Before its first micro-op.
  Tick from = i.before, room = i.room;
  wrong_path_ = starved_ = 0;
  if (i.how.mispredicted) {
    const Tick executed = std::clamp(clocks_.executed, from, first);
    wrong_path_ = std::min(executed - from, static_cast<Tick>(limits_.reorder_buffer * cycle / on_.issue_width));
    const Tick recovered = std::clamp(i.delivered.refilled, executed, first);
    t.wrong_path += static_cast<std::uint64_t>(wrong_path_);
    t.reorder_full.add(executed - from - wrong_path_);
    t.resource_stall.add(executed - from - wrong_path_);
    t.recovery.add(recovered - executed);
    starved_ = recovered - executed;
    room = from = recovered;
  }
  room = std::max(room, from);
  const Tick delivered = std::max(room, i.delivered.span.first);
  // In it, from when it could have been issued, for the last of what it waited for.
  const Tick all_room = std::max(in_block, i.all_room), stores = std::max(all_room, i.all_stores),
             all_delivered = std::max(stores, i.delivered.span.last);
  const Tick reorder = room - from + all_room - in_block, scheduler = first - delivered + last - all_delivered;
  const Tick store = stores - all_room;
  // What the front end gives slowly is less in each cycle; what comes later than that is nothing for so long.
  const Tick missing = delivered - room + all_delivered - stores,
             slow = std::min(missing, std::max(0, i.delivered.takes - slots)), bubble = missing - slow;
  starved_ += bubble;
  if (missing != 0 || slots != i.block.slots) {
    t.not_delivered.add_full(bubble, on_.issue_width);
    t.not_delivered.add(slots + slow, std::int64_t{slow} * on_.issue_width);
    t.issued.add(slots + slow, std::int64_t{i.block.slots} * on_.issue_width);
  } else {
    t.issued_full += static_cast<std::uint64_t>(slots);
  }
  if (reorder + scheduler + store == 0) return;
  t.reorder_full.add(reorder);
  t.scheduler_full.add(scheduler);
  t.store_queue_full.add(store);
  t.resource_stall.add(reorder + scheduler + store);
  if (clocks_.pending[0] <= first) t.stores_hold_up.add(store);
}

/// When the block's first micro-op is issued, and the last one.
inline Pipeline::Span Pipeline::issue(const TimedBlock& block, const BlockRun& how, const Delivered& delivered) {
  Clocks& c = clocks_;
  const Tick before = c.issued, room = room_for(c.micro_ops + 1, c.loads + (block.loads != 0 ? 1 : 0));
  const Tick first = scheduler_.leave(latest_of(before, delivered.span.first, room), limits_.scheduler - 1U);
  const Tick all_room = room_for(c.micro_ops + block.micro_ops, c.loads + block.loads),
             all_stores = drained(block.stores);
  // Of a large block the first ones have left the scheduler when the last ones enter it.
  c.issued = scheduler_.leave(latest_of(first + in_turns(block.slots), delivered.span.last, all_room, all_stores),
                              limits_.scheduler - std::min<unsigned>(block.executed, limits_.scheduler / 2U));
  c.micro_ops += block.micro_ops;
  c.loads += block.loads;
  const Span issued{.first = first, .last = c.issued};
  if (counting_) count_issue({block, how, delivered, before, room, issued, all_room, all_stores});
  return issued;
}

/// A load that missed so much would have had its data at `from`, and has them at `until`.
inline void Pipeline::count_late(Missed missed, Tick from, Tick until) {
  for (std::size_t level = 0; level <= static_cast<std::size_t>(missed); ++level) {
    Tick& pending = clocks_.pending[level];
    if (counting_) {
      tallies_.pending_sum[level] += static_cast<std::uint64_t>(until - from);
      tallies_.pending_any[level] += static_cast<std::uint64_t>(std::max(0, until - std::max(from, pending)));
    }
    pending = std::max(pending, until);
  }
}

/// How long an access takes that begins then, and would take so long if its line were not on its way.
inline Tick Pipeline::with_wait(const TimedAccess& at, Tick begin, Tick loading) const {
  if (at.transfers.waits_for() == 0) return loading;
  return std::max(loading, arrival(at) - begin);
}

/// An access whose row is ready at `when`; those before it let it retire at `in_order`. Returns when a load has its
/// data, if that is later than from the L1.
inline Tick Pipeline::access(const TimedBlock::Access& access, const TimedAccess& at, Tick when, Tick in_order) {
  Clocks& c = clocks_;
  if (access.is_store) {
    const Tick begin = at.walk != 0 ? walk(at, when, true) : when;
    const Tick retires = std::max(in_order, when);
    if (!is_peeking_) late_stores_ = std::max(late_stores_, at.late * cycle + std::max(0, begin - retires));
    if (at.transfers.any()) {
      const Tick loading = with_wait(at, begin, at.late * cycle), takes = transfer(at, begin, loading, true);
      is_repeatable_ &= loading == at.late * cycle;
      if (!is_peeking_) late_stores_ = std::max(late_stores_, begin + takes - retires);
    }
    stores_.add(at, when, retires);
    if (is_recording_) recorded_.push_back({.is_store = true, .late = at.late, .when = when, .then = retires});
    return never;
  }
  Tick loading = access.latency + at.late * cycle;
  if (access.is_locked) {
    Tick begin = latest_of(when, c.retired, c.locked_until);
    if (at.walk != 0) {
      is_repeatable_ = false;
      begin = walk(at, begin, false);
    }
    if (at.transfers.any()) {
      is_repeatable_ = false;
      loading = transfer(at, begin, with_wait(at, begin, loading), false);
    }
    c.locked_until = begin + loading;
    if (at.late != 0) count_late(missed_by(at), c.locked_until - at.late * cycle, c.locked_until);
    if (is_recording_)
      recorded_.push_back({.is_locked = true, .is_fill = is_fill(at), .missed = missed_by(at), .late = at.late});
    return c.locked_until;
  }
  Tick ready = std::max(when, c.locked_until);
  if (at.walk != 0) ready = walk(at, ready, false);
  Tick begin = ready;
  // A line that is on its way has its fill buffer until it arrives.
  const auto end = [&](Tick from) { return from + with_wait(at, from, loading); };
  if (is_fill(at)) begin = clocks_.fills.free_from(ready, on_.fill_buffers, end);
  if (is_fill(at)) clocks_.fills.take(begin, end(begin));
  if (at.transfers.any()) {
    if (counting_lines_ && !is_peeking_) line_tallies_.waiting.add(ready, begin);
    const Tick alone = std::exchange(loading, with_wait(at, begin, loading));
    is_repeatable_ &= begin == when && loading == alone;
  }
  if (at.transfers.count() != 0) loading = transfer(at, begin, loading, false);
  if (loading > access.latency) count_late(missed_by(at), begin + access.latency, begin + loading);
  const Forwarding stores = stores_.before(access, at, when);
  // By top-down analysis' formulas such loads are part of what CYCLE_ACTIVITY takes for memory, and of it of the L1.
  if ((stores.is_blocked || stores.is_aliased) && stores.data != never)
    count_late(Missed::none, when + access.latency, stores.data);
  if (counting_) {
    tallies_.blocked_forwards += stores.is_blocked ? 1 : 0;
    tallies_.aliased_loads += stores.is_aliased ? 1 : 0;
  }
  if (is_recording_)
    recorded_.push_back({.is_vector = access.is_vector,
                         .is_blocked = stores.is_blocked,
                         .is_aliased = stores.is_aliased,
                         .is_fill = is_fill(at),
                         .is_delayed = begin != when,
                         .missed = missed_by(at),
                         .late = at.late,
                         .latency = access.latency,
                         .when = when,
                         .then = stores.data});
  return begin > when || loading > access.latency ? std::max(stores.data, begin + loading) : stores.data;
}

/// The latest of the columns for which micro-ops wait, after they could have been dispatched.
class Pipeline::Latest {
 public:
  /// Those that wait for less than a few cycles never fill the scheduler.
  explicit Latest(Tick dispatched) : until_{dispatched + 8 * cycle} {}

  void consider(const TimedBlock::Waiting& waiting, Tick ready) {
    const Tick until = ready + waiting.half;
    if (until <= until_ || waiting.micro_ops == 0) return;
    until_ = until;
    micro_ops_ = waiting.micro_ops;
  }
  [[nodiscard]] Tick until() const { return until_; }
  [[nodiscard]] unsigned micro_ops() const { return micro_ops_; }

 private:
  Tick until_;
  unsigned micro_ops_{};
};

/// The block's micro-ops are in the scheduler until they are dispatched, and those that wait until then.
inline void Pipeline::wait(const TimedBlock& block, Tick dispatched, const Latest& latest) {
  const unsigned all = std::min<unsigned>(block.executed, limits_.scheduler), late = std::min(latest.micro_ops(), all);
  // As long as nothing waits, it is empty enough.
  if (is_peeking_ || (late == 0 && scheduler_.is_empty())) return;
  scheduler_.enter(all - late, dispatched);
  scheduler_.enter_late(late, latest.until());
}

/// Returns when all could have retired, if each were the first to.
inline Tick Pipeline::flow(const TimedBlock& block, std::span<const TimedAccess> accesses, Tick dispatched,
                           Tick decoded) {
  std::array<Ticks4, TimedBlock::max_vectors> rows;
  std::array<Tick, TimedBlock::first_input + node_count> then;
  const std::size_t vectors = block.vectors;
  const std::span inputs = block.inputs(), results = block.results();
  const std::span waits = block.waiting();
  const Ticks4* const matrix = block.matrix().data();
  Latest waiting{dispatched};
  then[0] = dispatched;
  then[1] = decoded;
  for (std::size_t at = 0; at < inputs.size(); ++at) {
    const Tick ready = then[TimedBlock::first_input + at] = std::max(clocks_.ready[inputs[at]], dispatched);
    waiting.consider(waits[at], ready);
  }
  take_columns(rows.data(), matrix, vectors, std::span{then}.first(TimedBlock::first_input + inputs.size()));
  const Ticks4* const loads = matrix + (TimedBlock::first_input + inputs.size()) * vectors;
  const auto row = [&rows](std::size_t at) { return rows[at / TimedBlock::lanes][at % TimedBlock::lanes]; };
  std::size_t next = results.size();
  Tick in_order = clocks_.retired;
  const TimedAccess* at = accesses.data();
  for (const TimedBlock::Access& one : block.accesses()) {
    const Tick data = access(one, *at++, row(next++), in_order);
    if (data == never) continue;
    in_order = std::max(in_order, data);
    raise(rows.data(), loads + one.load * vectors, vectors, data);
    waiting.consider(waits[inputs.size() + one.load], data);
  }
  for (std::size_t result = 0; result < results.size(); ++result) clocks_.ready[results[result]] = row(result);
  clocks_.executed = row(next + (block.ends_in_branch ? 1 : 0));
  wait(block, dispatched, waiting);
  return row(next);
}

/// Returns when the last port is free. Eight sets at once. The numbers stop at a thousand cycles: a reorder buffer's
/// micro-ops keep no port busy for that long.
inline Tick Pipeline::take_ports(const TimedBlock& block, Tick dispatched) {
  constexpr std::size_t lanes = 8;
  const auto load = [](const TimedBlock::ShortTicks* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  };
  const auto most = [](__m128i a, __m128i b) { return _mm_adds_epu16(_mm_subs_epu16(a, b), b); };
  const Tick passed = std::min<Tick>(dispatched - std::exchange(clocks_.dispatched, dispatched), 0xFFFF);
  const __m128i all_passed = _mm_set1_epi16(static_cast<short>(passed));
  __m128i last = _mm_setzero_si128();
  for (std::size_t at = 0; at < max_port_sets; at += lanes) {
    TimedBlock::ShortTicks* const ports = &clocks_.ports[at];
    __m128i takes = load(&block.ports[at]);
    if (shared_.is_on != 0) [[unlikely]]
      takes = _mm_adds_epu16(takes, _mm_mulhi_epu16(takes, load(&shared_.more[CoreUse::first_port_set + at])));
    const __m128i busy = _mm_adds_epu16(_mm_subs_epu16(load(ports), all_passed), takes);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(ports), busy);
    last = most(last, busy);
  }
  last = most(last, _mm_shuffle_epi32(last, 0b1110));
  last = most(last, _mm_shuffle_epi32(last, 0b01));
  const auto pair = static_cast<std::uint32_t>(_mm_cvtsi128_si32(last));
  return dispatched + static_cast<Tick>(std::max(pair & 0xFFFFU, pair >> 16U));
}

inline void Pipeline::run(const TimedBlock& block, std::span<const TimedAccess> accesses, const BlockRun& how) {
  Clocks& c = clocks_;
  const Delivered delivered = deliver(block, how);
  const Span issued = issue(block, how, delivered);
  const Tick depth = on_.issue_to_dispatch * cycle, dispatched = issued.first + depth;
  const Tick flowed = flow(block, accesses, dispatched, how.decoded ? never : delivered.span.first + depth);
  Tick last = std::max(flowed, take_ports(block, dispatched));
  if (block.divider != 0) {
    c.divider = std::max(c.divider, dispatched) + in_turns(block.divider, CoreUse::divider);
    last = std::max(last, c.divider);
  }
  delivered_ = delivered.takes;
  c.retired = latest_of(c.retired + in_turns(block.slots), issued.last + depth, last);
  if (shared_.is_on != 0 && !is_peeking_) [[unlikely]]
    count_use(block);
}

/// The stores of a block that has retired leave the store buffer, in order, one a cycle. 248966, level 1 data cache.
inline void Pipeline::drain(const TimedBlock& block) {
  Clocks& c = clocks_;
  for (unsigned left = block.stores; left != 0; --left) {
    c.drained = std::max(c.drained + cycle, c.retired + late_stores_);
    c.drains[c.stores++ % max_store_buffer] = c.drained;
  }
  late_stores_ = 0;
}

/// The block has retired since the one before had, and all that executed in this time was its own.
inline void Pipeline::count_retirement(const TimedBlock& block, const BlockRun& how, Tick before) {
  PipelineTallies& t = tallies_;
  const Clocks& c = clocks_;
  t.add(block, how.decoded);
  const auto decoded = std::int64_t{block.all[static_cast<std::size_t>(TimedBlock::Amount::decoded)]} * cycle;
  t.delivered[how.decoded].add(delivered_, decoded);
  const Tick took = c.retired - before;
  t.nothing_retired.add(took - block.slots);
  // What a late load held up executes at once when its data come, and nothing does while the front end begins anew;
  // else it is spread over the time.
  const Tick least = std::min(took, std::max(block.slots, cycle));
  const bool is_late = c.pending[0] > before;
  const Tick over = is_late ? least : how.mispredicted ? std::max(least, took - starved_) : took;
  const std::int64_t executed = std::int64_t{block.executed} * cycle + std::int64_t{wrong_path_} * on_.issue_width;
  t.executed.add(over, executed);
  const auto idle = static_cast<Tick>(took - std::min<std::int64_t>(over, executed));
  if (idle == 0) return;
  const Tick empty = std::min(idle, starved_);
  t.scheduler_empty.add(empty);
  t.scheduler_waits.add(idle - empty);
  for (std::size_t level = 0; level < c.pending.size() && c.pending[level] > before; ++level)
    t.load_stall[level].add(std::min(idle, c.pending[level] - before));
}

[[gnu::flatten]] void Pipeline::retire_anew(const TimedBlock& block, std::span<const TimedAccess> accesses,
                                            const BlockRun& how) {
  Clocks& c = clocks_;
  const Tick before = c.retired;
  run(block, accesses, how);
  if (counting_) count_retirement(block, how, before);
  window_[c.after_window++] = {
      .micro_ops = c.micro_ops - block.micro_ops, .end = c.micro_ops, .loads = c.loads - block.loads, .at = c.retired};
  if (block.stores != 0) drain(block);
  if (block.barrier == Barrier::dispatch) c.issued = std::max(c.issued, c.retired - on_.issue_to_dispatch * cycle);
  if (block.barrier == Barrier::loads) c.locked_until = latest_of(c.locked_until, c.retired, c.drained);
}

void Pipeline::retire(const TimedBlockPtr& block, std::span<const TimedAccess> accesses, const BlockRun& how) {
  if ((how.code_walk | how.code_read) != 0) [[unlikely]]
    count_code(how);
  // What waits for a line that is still on its way is not as it was before.
  const auto waits = [this](const TimedAccess& access) {
    return access.transfers.waits_for() != 0 && arrival(access) > clocks_.retired;
  };
  if (state_ != PipelineStates::none && std::ranges::any_of(accesses, waits)) [[unlikely]] {
    spread();
    lose_state();
  }
  if (state_ != PipelineStates::none) {
    if (!repeat(*block, accesses, how)) record(block, accesses, how);
  } else {
    retire_anew(*block, accesses, how);
    credit_ = std::min(credit_ + anew_gain, max_credit);
    // After a mispredicted one little is in flight, so that the state comes again soon.
    if ((how.taken || how.mispredicted) && --until_look_ == 0) look_for_state();
  }
  if (clocks_.retired > max_ticks) begin_anew();
}

Time Pipeline::peek(const TimedBlock& block, std::span<const TimedAccess> accesses, const BlockRun& how) {
  spread();
  const Clocks before = clocks_;
  const LineTransfers transfers = transfers_;
  const Scheduler::Place scheduled = scheduler_.place();
  is_peeking_ = true;
  stores_.keep_overwritten(true);
  const bool counting = std::exchange(counting_, false);
  run(block, accesses, how);
  counting_ = counting;
  is_peeking_ = false;
  stores_.keep_overwritten(false);
  const Time at = now();
  clocks_ = before;
  transfers_ = transfers;
  scheduler_.go_back(scheduled);
  stores_.put_back();
  return at;
}

void Pipeline::pause(unsigned cycles) {
  leave_states();
  Clocks& c = clocks_;
  c.predecoded = c.decoded = c.cached = c.issued = c.retired;
  c.in_block = 0;
  c.line_places = TimedBlock::line_places;
  c.decoders_used = on_.decoders;
  // All that others could wait for was there before the front end begins: these cycles need not pass for it.
  c.origin += Time{cycles} * cycle;
}

// SDM 3A 8.1.3, 11.6. The front end then takes as long as after a misprediction.
void Pipeline::clear() {
  const unsigned refill = on_.refill - on_.issue_to_dispatch;
  pause(refill);
  if (!counting_) return;
  ++tallies_.code_changes;
  for (Stall* const stall : {&tallies_.machine_clear, &tallies_.recovery})
    stall->add(static_cast<Tick>(refill * cycle));
}

template <class Change>
void Pipeline::each_tick(const Change& change) {
  Clocks& c = clocks_;
  std::ranges::for_each(c.ready, change);
  std::ranges::for_each(c.drains, change);
  std::ranges::for_each(c.pending, change);
  c.fills.each_tick(change);
  std::ranges::for_each(transfers_.arrive, change);
  change(transfers_.channel);
  transfers_.super_queue.each_tick(change);
  transfers_.walkers.each_tick(change);
  line_tallies_.each_tick(change);
  for (Tick* const tick : {&c.predecoded, &c.decoded, &c.cached, &c.issued, &c.dispatched, &c.retired, &c.divider,
                           &c.executed, &c.locked_until, &c.oldest, &c.drained})
    change(*tick);
  scheduler_.each_tick(change);
  for (Retired& retired : window_) change(retired.at);
  stores_.each_tick(change);
}

[[gnu::cold]] void Pipeline::begin_anew() {
  tallies_.fold();
  const Tick by = clocks_.retired - kept;
  clocks_.origin += by;
  each_tick([by](Tick& tick) { tick = std::max(tick - by, 0); });
}

/// Bytes that come from outside are within bounds.
void Pipeline::accept_state() {
  clocks_.origin = std::clamp(clocks_.origin, Time{0}, max_origin);
  each_tick([](Tick& tick) { tick = std::clamp(tick, 0, max_ticks + max_late); });
  clocks_.retired = std::min(clocks_.retired, max_ticks);
  clocks_.in_block %= TimedBlock::front_end_states;
  clocks_.decoders_used %= TimedBlock::front_end_states;
  clocks_.line_places %= TimedBlock::front_end_states;
  scheduler_.accept(on_.scheduler);
  shared_.since = std::clamp(shared_.since, Time{0}, max_origin);
  shared_.is_on &= 1U;
  limit();
  settle();
}

}  // namespace vpmu::timing
