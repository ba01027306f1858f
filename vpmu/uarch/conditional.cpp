#include "uarch/conditional.hpp"

#include <algorithm>

namespace vpmu::uarch {
namespace {

constexpr std::uint64_t mixer = 0x9E37'79B9'7F4A'7C15ULL;

}  // namespace

TwoLevels::TwoLevels(const BranchShapes& shapes)
    : mask_{(std::uint64_t{1} << shapes.outcomes) - 1},
      base_(shapes.outcomes != 0 ? base_entries : 0),
      entries_(shapes.outcomes != 0 ? std::size_t{1} << entry_bits : 0),
      loops_(shapes.loops) {}

/// Returns what they predict.
inline bool TwoLevels::retire_by_counters(std::uint64_t at, bool taken) {
  const std::uint64_t hash = (at + 1 + history_ * 0xD6E8'FEB8'6659'FD93ULL) * mixer;
  const auto tag = static_cast<std::uint16_t>(hash >> 32);
  Entry& entry = entries_[hash >> (64 - entry_bits)];
  TwoBits& base = base_[at % base_.size()];
  const bool is_known = entry.tag == tag, predicted = is_known ? entry.counter.taken() : base.taken();
  if (is_known)
    entry.counter.learn(taken);
  else if (predicted != taken)
    entry = {.tag = tag, .counter = {.value = static_cast<std::uint8_t>(taken ? 2 : 1)}};
  base.learn(taken);
  return predicted;
}

bool TwoLevels::retire(std::uint64_t at, bool taken) {
  bool predicted = retire_by_counters(at, taken);
  history_ = (history_ << 1 | (taken ? 1 : 0)) & mask_;
  if (loops_.empty()) return predicted != taken;
  Loop& loop = loops_[(at * mixer >> 32) % loops_.size()];
  if (loop.at != at) {
    // Only what the counters do not know needs one.
    if (predicted && !taken) loop = {.at = at};
    return predicted != taken;
  }
  if (loop.repeated >= sure && loop.iterations != 0) predicted = loop.now != loop.iterations;
  if (taken) {
    loop.now = static_cast<std::uint8_t>(std::min<unsigned>(loop.now + 1U, max_iterations));
    if (loop.now == max_iterations) loop.repeated = 0;
  } else {
    loop.repeated = loop.now == loop.iterations && loop.now < max_iterations
                        ? static_cast<std::uint8_t>(std::min<unsigned>(loop.repeated + 1U, sure))
                        : std::uint8_t{0};
    loop.iterations = loop.now;
    loop.now = 0;
  }
  return predicted != taken;
}

void TwoLevels::visit_state(const StateVisitor& visit) {
  visit(state_bytes(history_));
  visit(state_bytes(base_));
  visit(state_bytes(entries_));
  visit(state_bytes(loops_));
  history_ &= mask_;
  for (TwoBits& counter : base_) counter.value = std::min<std::uint8_t>(counter.value, 3);
  for (Entry& entry : entries_) entry.counter.value = std::min<std::uint8_t>(entry.counter.value, 3);
}

TaggedTables::TaggedTables(const BranchShapes& shapes)
    : base_(shapes.outcomes == 0 ? base_entries : 0), entries_(shapes.outcomes == 0 ? tables * entries : 0) {}

void TaggedTables::Entry::learn(bool was_taken) {
  constexpr std::int8_t least = -4, most = 3;
  counter = std::clamp(static_cast<std::int8_t>(was_taken ? counter + 1 : counter - 1), least, most);
}

inline TaggedTables::Place TaggedTables::place(std::uint64_t at, std::size_t table, const PathHistory& path) {
  const std::uint64_t hash = (at + 1 + path.of(table)) * mixer;
  return {.entry = entries_.data() + table * entries + (hash >> 53), .tag = static_cast<std::uint16_t>(hash >> 37)};
}

bool TaggedTables::retire_tagged(std::uint64_t at, bool taken, const PathHistory& path, Base& base) {
  std::array<Place, tables> places;
  Entry* longest = nullptr;
  Entry* next = nullptr;
  std::size_t longer = 0;  // tables from here on have a longer history than the longest that knows it
  for (std::size_t table = 0; table < tables; ++table) {
    places[table] = place(at, table, path);
    if (places[table].entry->tag != places[table].tag) continue;
    next = longest;
    longest = places[table].entry;
    longer = table + 1;
  }
  if (longest == nullptr) {
    const bool mispredicted = base.counter.taken() != taken;
    base.counter.learn(taken);
    if (mispredicted) allocate(places, 0, taken);
    return mispredicted;
  }
  const bool says = longest->taken(), otherwise = next != nullptr ? next->taken() : base.counter.taken();
  const bool is_new = longest->is_new();
  const bool predicted = is_new && trusts_new_ < 0 ? otherwise : says;
  if (is_new && says != otherwise) trusts_new_ = std::clamp(trusts_new_ + (says == taken ? 1 : -1), -8, 7);
  if (longest->useful == 0) {
    if (next != nullptr)
      next->learn(taken);
    else
      base.counter.learn(taken);
  }
  if (says != otherwise && (says == taken ? longest->useful < 3 : longest->useful > 0))
    longest->useful = static_cast<std::uint8_t>(says == taken ? longest->useful + 1 : longest->useful - 1);
  longest->learn(taken);
  if (says != taken) allocate(places, longer, taken);
  return predicted != taken;
}

void TaggedTables::surprise(std::uint64_t at, bool taken, const PathHistory& path, Base& base) {
  base.has_tagged = 1;
  std::array<Place, tables> places;
  for (std::size_t table = 0; table < tables; ++table) places[table] = place(at, table, path);
  allocate(places, 0, taken);
}

/// An entry with a longer history, where one is not useful.
void TaggedTables::allocate(std::array<Place, tables>& places, std::size_t from, bool taken) {
  constexpr std::uint32_t age = 1U << 16;
  if (++surprises_ == age) {
    surprises_ = 0;
    for (Entry& entry : entries_) entry.useful /= 2;
  }
  for (std::size_t table = from; table < tables; ++table) {
    if (places[table].entry->useful != 0) continue;
    *places[table].entry = {.tag = places[table].tag, .counter = static_cast<std::int8_t>(taken ? 0 : -1)};
    return;
  }
  for (std::size_t table = from; table < tables; ++table) --places[table].entry->useful;
}

void TaggedTables::visit_state(const StateVisitor& visit) {
  visit(state_bytes(base_));
  visit(state_bytes(entries_));
  visit(state_bytes(trusts_new_));
  visit(state_bytes(surprises_));
  for (Base& base : base_) base.counter.value = std::min<std::uint8_t>(base.counter.value, 3);
  for (Entry& entry : entries_) {
    entry.counter = std::clamp<std::int8_t>(entry.counter, -4, 3);
    entry.useful = std::min<std::uint8_t>(entry.useful, 3);
  }
  trusts_new_ = std::clamp(trusts_new_, -8, 7);
}

}  // namespace vpmu::uarch
