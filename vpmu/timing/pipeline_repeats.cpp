// How a pipeline recognizes a state that comes again, and takes from its PipelineStates what it would have computed.
#include <algorithm>
#include <utility>

#include "timing/pipeline.hpp"

namespace vpmu::timing {
namespace {

std::uint32_t key_of(const BlockRun& how) {
  return (how.mispredicted ? 1U : 0U) | (how.taken ? 2U : 0U) | (how.decoded ? PipelineStates::decoded : 0U) |
         std::uint32_t{how.fetch_wait} << 3U;
}

}  // namespace

/// A state in its canonical form: what can no longer matter is not in it, so that states from which all goes on alike
/// are the same words.
class Pipeline::Words {
 public:
  std::uint32_t& put(std::uint32_t word) { return all_[count_++] = word; }
  void put(Tick tick) { put(static_cast<std::uint32_t>(tick)); }
  /// Those that are later than `least`, after a word in which each has a bit.
  void put_later(std::span<const Tick> ticks, Tick least, Tick now) {
    for (; !ticks.empty(); ticks = ticks.subspan(std::min(ticks.size(), bits))) {
      const std::size_t mask_at = count_++;
      std::uint32_t mask = 0, bit = 1;
      for (const Tick tick : ticks.first(std::min(ticks.size(), bits))) {
        if (tick > least) {
          mask |= bit;
          put(tick - now);
        }
        bit <<= 1U;
      }
      all_[mask_at] = mask;
    }
  }
  [[nodiscard]] std::span<const std::uint32_t> all() const { return std::span{all_}.first(count_); }

  static constexpr std::size_t bits = 32;

 private:
  static constexpr std::size_t singles = 32;
  std::array<std::uint32_t,
             singles + max_port_sets + node_count + 2 * Buffers::max + max_store_buffer + 4 * window +
                 4 * LeavingQueue::max_entries>
      all_;  // NOLINT(cppcoreguidelines-pro-type-member-init): as many as count_ says
  std::size_t count_{};
};

namespace {

/// Reads what Words has put.
class Reader {
 public:
  explicit Reader(std::span<const std::uint32_t> words) : next_{words.data()} {}
  std::uint32_t word() { return *next_++; }
  Tick tick() { return static_cast<Tick>(word()); }
  void later(std::span<Tick> ticks, Tick least, Tick now) {
    std::uint32_t mask = 0;
    for (std::size_t at = 0; at < ticks.size(); ++at, mask >>= 1U) {
      if (at % 32 == 0) mask = word();
      ticks[at] = (mask & 1U) != 0 ? now + tick() : least;
    }
  }

 private:
  const std::uint32_t* next_;
};

}  // namespace

/// Those that a load which is dispatched after `dispatched` may wait for, whichever came first.
void Pipeline::put_fills(Words& to, Tick dispatched) const {
  const Clocks& c = clocks_;
  std::array<std::pair<Tick, Tick>, Buffers::max> fills;
  std::size_t count = 0;
  for (std::size_t n = 0; n < Buffers::max; ++n)
    if (c.fills.ends[n] > dispatched) fills[count++] = {c.fills.ends[n], std::max(c.fills.begins[n], dispatched)};
  std::sort(fills.begin(), fills.begin() + count);
  to.put(std::max(c.fills.forgotten, dispatched) - c.retired);
  to.put(static_cast<std::uint32_t>(count));
  for (const auto& [end, begin] : std::span{fills}.first(count)) {
    to.put(begin - c.retired);
    to.put(end - c.retired);
  }
}

/// Blocks are issued after `issued`, and dispatched after that and the way there. The rest are the bounds by which
/// deliver(), room_for(), drained() and their like wait for what is written here.
void Pipeline::write(Words& to) {
  Clocks& c = clocks_;
  const Tick now = c.retired, issued = c.issued, dispatched = issued + on_.issue_to_dispatch * cycle,
             delivered = issued - on_.decoded_ahead * cycle;
  scheduler_.leave(issued, ~0U);
  std::uint8_t drains = 0;
  while (drains < on_.store_buffer && c.drains[(c.stores - 1U - drains) % max_store_buffer] > issued) ++drains;

  // Of the front end's two ways the one that is not in use has no clock, and begins anew.
  const bool cached = c.was_cached != 0;
  to.put((cached ? c.line_places : c.in_block | std::uint32_t{c.decoders_used} << 8U) | (cached ? 1U << 16U : 0U));
  to.put(std::max(cached ? c.cached : c.predecoded, delivered) - now);
  if (!cached) to.put(std::max(c.decoded, delivered) - now);
  to.put(issued - now);
  to.put(c.executed - now);
  to.put(std::max(c.drained, now - cycle) - now);
  const std::array others{c.divider, c.locked_until};
  to.put_later(others, dispatched, now);
  std::array<Tick, max_port_sets> ports;
  std::ranges::transform(c.ports, ports.begin(), [&c](Tick busy) { return c.dispatched + busy; });
  to.put_later(ports, dispatched, now);
  to.put_later(c.ready, dispatched, now);
  to.put_later(c.pending, issued, now);
  put_fills(to, dispatched);
  to.put(std::uint32_t{drains});
  for (std::uint32_t last = drains; last != 0; --last) to.put(c.drains[(c.stores - last) % max_store_buffer] - now);
  to.put(std::max(c.oldest, issued) - now);
  if (c.oldest > issued) {
    to.put(c.micro_ops - c.oldest_end);
    to.put(c.loads - c.oldest_loads);
  }
  // A block's room is wanted when those after it have filled a buffer, each micro-op in its issue slot.
  const Tick slot = cycle / on_.issue_width;
  std::uint32_t& blocks = to.put(0U);
  for (std::uint8_t at = c.first_in_window; at != c.after_window; ++at) {
    const Retired& block = window_[at];
    const std::uint32_t micro_ops = c.micro_ops - block.micro_ops, loads = c.loads - block.loads;
    const std::int64_t left =
        std::min(std::int64_t{on_.reorder_buffer} - micro_ops, std::int64_t{on_.load_buffer} - loads);
    if (block.at <= issued + std::clamp<std::int64_t>(left, 0, window) * slot) continue;
    ++blocks;
    to.put(micro_ops);
    to.put(c.micro_ops - block.end);
    to.put(loads);
    to.put(block.at - now);
  }
  for (const LeavingQueue* const queue : {&scheduler_.prompt(), &scheduler_.late()}) {
    to.put(static_cast<std::uint32_t>(queue->size()));
    queue->each([&](const Leaving& one) {
      to.put(one.micro_ops);
      to.put(one.at - now);
    });
  }
}

/// Becomes the state of these words, at `now`.
void Pipeline::read(std::span<const std::uint32_t> words, Tick now) {
  Clocks& c = clocks_;
  Reader from{words};
  const std::uint32_t places = from.word();
  const bool cached = places >> 16U != 0;
  c.was_cached = cached ? 1 : 0;
  c.line_places = static_cast<std::uint8_t>(cached ? places : 0);
  c.in_block = static_cast<std::uint8_t>(cached ? 0 : places);
  c.decoders_used = static_cast<std::uint8_t>(cached ? 0 : places >> 8U);
  const Tick first = now + from.tick(), second = cached ? first : now + from.tick();
  c.issued = now + from.tick();
  const Tick dispatched = c.issued + on_.issue_to_dispatch * cycle, delivered = c.issued - on_.decoded_ahead * cycle;
  c.cached = cached ? first : delivered;
  c.predecoded = cached ? delivered : first;
  c.decoded = cached ? delivered : second;
  c.retired = now;
  c.executed = now + from.tick();
  c.drained = now + from.tick();
  std::array<Tick, 2> others{};
  from.later(others, dispatched, now);
  c.divider = others[0];
  c.locked_until = others[1];
  std::array<Tick, max_port_sets> ports{};
  from.later(ports, dispatched, now);
  c.dispatched = dispatched;
  std::ranges::transform(ports, c.ports.begin(),
                         [dispatched](Tick until) { return static_cast<TimedBlock::ShortTicks>(until - dispatched); });
  from.later(c.ready, dispatched, now);
  from.later(c.pending, c.issued, now);
  c.fills.forgotten = now + from.tick();
  c.fills.begins.fill(dispatched);
  c.fills.ends.fill(dispatched);
  for (std::uint32_t fill = from.word(); fill != 0; --fill) {
    c.fills.begins[fill - 1] = now + from.tick();
    c.fills.ends[fill - 1] = now + from.tick();
  }
  c.drains.fill(c.issued);
  c.stores = c.micro_ops = c.loads = 0;
  for (std::uint32_t last = from.word(); last != 0; --last) c.drains[max_store_buffer - last] = now + from.tick();
  c.oldest = now + from.tick();
  c.oldest_end = c.oldest_loads = 0;
  if (c.oldest > c.issued) {
    c.oldest_end = 0U - from.word();
    c.oldest_loads = 0U - from.word();
  }
  c.first_in_window = 0;
  c.after_window = static_cast<std::uint8_t>(from.word());
  for (std::uint8_t at = 0; at != c.after_window; ++at) {
    window_[at].micro_ops = 0U - from.word();
    window_[at].end = 0U - from.word();
    window_[at].loads = 0U - from.word();
    window_[at].at = now + from.tick();
  }
  scheduler_.clear();
  for (const bool is_late : {false, true})
    for (std::uint32_t left = from.word(); left != 0; --left) {
      const std::uint32_t micro_ops = from.word();
      const Tick at = now + from.tick();
      is_late ? scheduler_.enter_late(micro_ops, at) : scheduler_.enter(micro_ops, at);
    }
}

/// The state is in its canonical form, which does not tell how it came about.
void Pipeline::settle() {
  Words words;
  write(words);
  window_.fill({});
  read(words.all(), clocks_.retired);
}

/// Makes all of the state that is known.
void Pipeline::spread() {
  if (!std::exchange(is_spread_, true)) read(states_.words(state_), clocks_.retired);
}

/// What comes next is not a run of a block.
void Pipeline::leave_states() {
  if (state_ == PipelineStates::none) return;
  spread();
  state_ = PipelineStates::none;
  until_look_ = wait_ = 1;
}

void Pipeline::remember_states(bool on) {
  leave_states();
  remembers_ = on;
}

void Pipeline::begin_visit() {
  leave_states();
  states_.tally(tallies_);
  tallies_.fold();
  settle();
}

/// When there are so many states, all are forgotten.
bool Pipeline::make_room() {
  if (!states_.is_full()) return false;
  leave_states();
  states_.tally(tallies_);
  states_.clear();
  return true;
}

/// Finds the state that it is in, if it was in that one before.
void Pipeline::look_for_state() {
  until_look_ = wait_ = std::min(2 * wait_, max_wait);
  if (!remembers_ || shared_.is_on != 0 || credit_ < finding_cost) return;
  credit_ -= finding_cost;
  make_room();
  Words words;
  write(words);
  const auto [state, is_new] = states_.find(words.all());
  if (is_new && credit_ < sparing_credit) return;
  state_ = state;
  repeated_before_ = repeated_;
}

/// What comes next is not known of.
void Pipeline::lose_state() {
  state_ = PipelineStates::none;
  if (repeated_ - repeated_before_ >= productive) until_look_ = wait_ = 1;
}

namespace {

/// How long an access took, if its line was not on its way.
Tick took(const PipelineStates::Access& access) {
  return access.is_store ? access.late * cycle : access.latency + access.late * cycle;
}

}  // namespace

/// Whether what the access waits for has come in time. `begins`: one before it begins transfers, perhaps that one.
inline bool Pipeline::waits_for_nothing(const TimedAccess& access, const PipelineStates::Access& before,
                                        bool begins) const {
  if (access.transfers.waits_for() == 0) return true;
  return !begins && arrival(access) <= clocks_.retired + before.when + took(before);
}

/// Whether the super queue has room for a line that comes then, and so many others.
inline bool Pipeline::has_room(Tick begin, Tick takes, unsigned others) const {
  const auto end = [takes](Tick from) { return from + takes; };
  return others < on_.super_queue && transfers_.super_queue.free_from(begin, on_.super_queue - others, end) == begin;
}

/// Whether these accesses let the step's run be as it was. If so, its stores are made.
inline bool Pipeline::repeats(const PipelineStates::Step& step, std::span<const TimedAccess> accesses) {
  const Tick now = clocks_.retired;
  const TimedAccess* at = accesses.data();
  Tick channel = transfers_.channel;
  bool begins = false, walks = false;
  unsigned before_it = 0;  // lines of these accesses in the super queue
  for (const PipelineStates::Access& before : step.accesses()) {
    const TimedAccess& access = *at++;
    if (access.late != before.late) return false;
    if (access.walk != 0) [[unlikely]] {
      const Tick when = now + before.when;
      if (before.is_locked || before.is_delayed || walks || walk_from(access, when) != when) return false;
      walks = true;
    }
    if (access.transfers.any()) [[unlikely]] {
      if (before.is_locked || before.is_delayed || !waits_for_nothing(access, before, begins)) return false;
      begins |= access.transfers.count() != 0;
      // Its own line may come later because of what came before it on the channel.
      const Tick begin = now + before.when;
      if (is_fill(access) && access.level == HitLevel::dram && channel > begin) return false;
      if (is_fill(access) && is_below_l2(access.level) && !has_room(begin, took(before), before_it)) return false;
      before_it += access.transfers.count() - access.transfers.count_from(uarch::Transfers::l2);
      const unsigned lines = access.transfers.count_from(uarch::Transfers::memory);
      channel = channel_for(channel, begin) + static_cast<Tick>(lines * transfer_times_.channel * cycle);
    }
    if (before.is_store) {
      stores_.add(access, now + before.when, now + before.then);
      continue;
    }
    if (missed_by(access) != before.missed || is_fill(access) != before.is_fill) return false;
    if (before.is_locked) continue;
    const Forwarding stores =
        stores_.before({.is_vector = before.is_vector, .latency = before.latency}, access, now + before.when);
    if (stores.is_blocked != before.is_blocked || stores.is_aliased != before.is_aliased ||
        stores.data != (before.then == never ? never : now + before.then))
      return false;
  }
  return true;
}

/// What the accesses of a step that is repeated begin: lines and page walks.
void Pipeline::begin_transfers(const PipelineStates::Step& step, std::span<const TimedAccess> accesses) {
  const TimedAccess* at = accesses.data();
  for (const PipelineStates::Access& before : step.accesses()) {
    const TimedAccess& access = *at++;
    const Tick when = clocks_.retired + before.when;
    if (access.walk != 0) walk(access, when, before.is_store);
    if (access.transfers.count() != 0) transfer(access, when, took(before), before.is_store);
  }
}

/// If the block ran in this state and in this way before, does as then.
bool Pipeline::repeat(const TimedBlock& block, std::span<const TimedAccess> accesses, const BlockRun& how) {
  const std::uint32_t key = key_of(how);
  PipelineStates::Index before = PipelineStates::none;
  for (PipelineStates::Index at = states_.first(state_), next{}; at != PipelineStates::none; before = at, at = next) {
    const PipelineStates::Step& step = states_.step(at);
    next = step.next;
    if (step.block != &block || step.how != key) continue;
    // What one access changes must be put back if another one is not as it was.
    stores_.keep_overwritten(step.access_count > 1);
    const bool is_same = repeats(step, accesses);
    stores_.keep_overwritten(false);
    if (!is_same) {
      stores_.put_back();
      continue;
    }
    stores_.forget_overwritten();
    const auto begins = [](const TimedAccess& access) { return access.transfers.count() != 0 || access.walk != 0; };
    if (std::ranges::any_of(accesses, begins)) begin_transfers(step, accesses);
    if (before != PipelineStates::none) states_.put_first(state_, before, at);
    clocks_.retired += step.takes;
    state_ = step.to;
    states_.expect(state_);
    is_spread_ = false;
    if (counting_) states_.count(at);
    credit_ = std::min(credit_ + repeating_gain, max_credit);
    ++repeated_;
    return true;
  }
  return false;
}

/// The block retires, and what it does is kept as a step.
void Pipeline::record(const TimedBlockPtr& block, std::span<const TimedAccess> accesses, const BlockRun& how) {
  spread();
  const PipelineStates::Index from = state_;
  if (make_room() || credit_ < recording_cost || accesses.size() > PipelineStates::max_accesses) {
    lose_state();
    return retire_anew(*block, accesses, how);
  }
  credit_ -= recording_cost;
  const Tick before = clocks_.retired;
  recorded_.clear();
  is_recording_ = is_repeatable_ = true;
  const PipelineTallies tallies = std::exchange(tallies_, {});
  const bool counting = std::exchange(counting_, true);
  retire_anew(*block, accesses, how);
  counting_ = counting;
  is_recording_ = false;
  tallies_.growth(growth_);
  tallies_ = tallies;
  if (counting_) {
    tallies_.add(*block, how.decoded, 1);
    tallies_.grow(growth_, 1);
  }
  if (!is_repeatable_) return lose_state();
  for (PipelineStates::Access& access : recorded_) {
    access.when -= before;
    if (access.then != never) access.then -= before;
  }
  Words words;
  write(words);
  const auto [to, is_new] = states_.find(words.all());
  states_.add(from, {.how = key_of(how), .takes = clocks_.retired - before, .to = to}, block, recorded_, growth_);
  state_ = to;
  if (is_new && credit_ < sparing_credit) lose_state();
}

}  // namespace vpmu::timing
