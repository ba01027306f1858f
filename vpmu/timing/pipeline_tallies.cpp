#include "timing/pipeline_tallies.hpp"

#include <algorithm>
#include <bit>
#include <span>

namespace vpmu::timing {
namespace {

using Q = PipelineQuantity;
using Amount = TimedBlock::Amount;

constexpr std::uint64_t cycles_of(std::uint64_t ticks) { return ticks / cycle; }

/// A quantity of which there is one in each cycle of a stall.
PipelineTotal total_of(const Stall& stall) {
  const std::uint64_t cycles = cycles_of(stall.ticks);
  return {.sum = cycles, .at_least = {cycles}, .beginnings = stall.beginnings};
}

/// What happens in as many cycles.
PipelineTotal once_each(std::uint64_t number) { return {.sum = number, .at_least = {number}, .beginnings = number}; }

PipelineTotal total_of(const Spread& spread, std::uint64_t sum, std::uint64_t beginnings = 0) {
  PipelineTotal total{.sum = sum, .beginnings = beginnings};
  for (std::size_t n = 0; n < total.at_least.size(); ++n) total.at_least[n] = cycles_of(spread.at_least[n]);
  return total;
}

PipelineTotal total_of(const UnderWay& all, Tick now) {
  const UnderWay passed = all.until(now);
  PipelineTotal total{.sum = cycles_of(passed.sum), .beginnings = passed.beginnings};
  std::ranges::transform(passed.at_least, total.at_least.begin(), cycles_of);
  return total;
}

/// Microcode comes four micro-ops at once.
PipelineTotal microcode(std::uint64_t micro_ops) {
  const std::uint64_t cycles = micro_ops / 4;
  return {.sum = micro_ops, .at_least = {cycles, cycles, cycles, cycles}};
}

}  // namespace

TopDown top_down(const PipelineCounts& counts, const Microarchitecture& on) {
  const PipelineTotals& t = counts.totals;
  TopDown slots{.retiring = counts.retired_slots,
                .bad_speculation = counts.wrong_path_slots + on.issue_width * t[Q::recovery].sum,
                .front_end = t[Q::not_delivered].sum};
  slots.back_end = on.issue_width * t.cycles - slots.retiring - slots.bad_speculation - slots.front_end;
  return slots;
}

void LineTallies::tell(PipelineTotals& to, Tick now) const {
  const UnderWay waited = waiting.until(now);
  to[Q::fill_buffers_full] = total_of(Stall{.ticks = waited.at_least[0], .beginnings = waited.beginnings});
  to[Q::l1d_lines_pending] = total_of(to_l1d, now);
  to[Q::demand_reads_outstanding] = total_of(demand_reads, now);
  to[Q::memory_reads_outstanding] = total_of(memory_reads, now);
  to[Q::reads_outstanding] = total_of(reads, now);
  to[Q::rfos_outstanding] = total_of(rfos, now);
  to[Q::load_walks] = total_of(load_walks, now);
  to[Q::store_walks] = total_of(store_walks, now);
  to[Q::code_reads_outstanding] = total_of(code_reads);
  to[Q::code_walks] = total_of(code_walks);
}

void PipelineTallies::fold() {
  for (Blocks& those : blocks)
    for (std::size_t amount = 0; amount < TimedBlock::amounts; ++amount)
      those.before[amount] += std::exchange(those.now[amount], 0);
}

void PipelineTallies::growth(std::vector<Growth>& to) const {
  to.clear();
  const auto bytes = std::as_bytes(std::span{this, 1});
  std::uint64_t word{};
  for (std::size_t at = sizeof blocks; at < bytes.size(); at += sizeof word) {
    std::memcpy(&word, &bytes[at], sizeof word);
    if (word != 0)
      to.push_back({.word = static_cast<std::uint32_t>(at / sizeof word), .by = static_cast<std::uint32_t>(word)});
  }
}

void PipelineTallies::grow(std::span<const Growth> by, std::uint64_t times) {
  const auto bytes = std::as_writable_bytes(std::span{this, 1});
  std::uint64_t word{};
  for (const Growth& one : by) {
    const auto to = bytes.subspan(one.word * sizeof word, sizeof word);
    std::memcpy(&word, to.data(), sizeof word);
    word += one.by * times;
    std::memcpy(to.data(), &word, sizeof word);
  }
}

void PipelineTallies::add(const TimedBlock& block, bool cached, std::uint64_t times) {
  for (std::size_t amount = 0; amount < TimedBlock::amounts; ++amount)
    blocks[cached].before[amount] += block.all[amount] * times;
}

PipelineCounts PipelineTallies::counts(std::uint64_t cycles, const Microarchitecture& on) const {
  const auto all = [this](std::size_t amount) { return blocks[0][amount] + blocks[1][amount]; };
  const auto of = [this](bool cached, Amount amount) { return blocks[cached][static_cast<std::size_t>(amount)]; };
  const auto both = [&](Amount amount) { return all(static_cast<std::size_t>(amount)); };
  PipelineCounts counts;
  counts.retired_slots = both(Amount::slots);
  counts.wrong_path_slots = wrong_path * on.issue_width / cycle;
  counts.nothing_retired = cycles_of(nothing_retired.ticks);
  PipelineTotals& t = counts.totals;
  t.cycles = cycles;
  Spread all_issued = issued;
  for (unsigned n = 0; n < on.issue_width; ++n) all_issued.at_least[n] += issued_full + wrong_path;
  t[Q::issued] = total_of(all_issued, counts.retired_slots + counts.wrong_path_slots,
                          resource_stall.beginnings + recovery.beginnings);
  t[Q::executed] = total_of(executed, both(Amount::executed) + counts.wrong_path_slots,
                            scheduler_waits.beginnings + scheduler_empty.beginnings);
  for (std::size_t set = 0; set < max_port_sets; ++set) {
    // Evenly: the first ports have one more than the last ones.
    const auto ports = static_cast<unsigned>(std::popcount(on.port_sets[set]));
    for (unsigned left = on.port_sets[set], place = 0; left != 0; left &= left - 1, ++place) {
      PipelineTotal& port =
          t[static_cast<Q>(static_cast<unsigned>(Q::port_0) + static_cast<unsigned>(std::countr_zero(left)))];
      port.sum += (all(set) + ports - 1 - place) / ports;
      port.at_least[0] = port.beginnings = port.sum;
    }
  }
  // As many retire in a cycle as can, until all have. The parts of fused ones are in the same cycles.
  const std::uint64_t retiring = counts.retired_slots / on.issue_width, unfused = both(Amount::unfused);
  PipelineTotal& retired = t[Q::retired];
  retired = {.sum = counts.retired_slots, .beginnings = nothing_retired.beginnings};
  std::ranges::fill(std::span{retired.at_least}.first(on.issue_width), retiring);
  t[Q::retired_unfused] = retired;
  t[Q::retired_unfused].sum = unfused;
  t[Q::retired_unfused].at_least[on.issue_width] = std::min(unfused - counts.retired_slots, retiring);
  std::uint64_t undelivered = 0;
  for (const std::uint64_t ticks : not_delivered.at_least) undelivered += cycles_of(ticks);
  t[Q::not_delivered] = total_of(not_delivered, undelivered);
  t[Q::from_dsb] = total_of(delivered[1], of(true, Amount::decoded));
  t[Q::from_mite] = total_of(delivered[0], of(false, Amount::decoded));
  t[Q::microcode_from_dsb] = microcode(of(true, Amount::microcode));
  t[Q::microcode_from_mite] = microcode(of(false, Amount::microcode));
  t[Q::dsb_to_mite] = total_of(dsb_to_mite);
  const std::uint64_t prefixes = of(false, Amount::length_prefixes);
  t[Q::prefix_stall] = total_of(
      {.ticks = prefixes * static_cast<std::uint64_t>(TimedBlock::length_prefix_cost), .beginnings = prefixes});
  t[Q::recovery] = total_of(recovery);
  t[Q::resource_stall] = total_of(resource_stall);
  t[Q::scheduler_full] = total_of(scheduler_full);
  t[Q::reorder_full] = total_of(reorder_full);
  t[Q::store_queue_full] = total_of(store_queue_full);
  t[Q::scheduler_empty] = total_of(scheduler_empty);
  t[Q::scheduler_waits] = total_of(scheduler_waits);
  t[Q::stores_hold_up] = total_of(stores_hold_up);
  constexpr std::array pending{Q::loads_pending, Q::l1d_misses_pending, Q::l2_misses_pending, Q::l3_misses_pending};
  constexpr std::array stalls{Q::load_stall, Q::l1d_miss_stall, Q::l2_miss_stall, Q::l3_miss_stall};
  for (std::size_t level = 0; level < pending.size(); ++level) {
    t[pending[level]] = {.sum = cycles_of(pending_sum[level]), .at_least = {cycles_of(pending_any[level])}};
    t[stalls[level]] = total_of(load_stall[level]);
  }
  t[Q::divider_uops] = once_each(both(Amount::divisions));
  t[Q::dividing] = total_of({.ticks = both(Amount::divider), .beginnings = both(Amount::divisions)});
  t[Q::blocked_forwards] = once_each(blocked_forwards);
  t[Q::aliased_loads] = once_each(aliased_loads);
  t[Q::self_modifying_code] = once_each(code_changes);
  t[Q::machine_clear] = total_of(machine_clear);
  return counts;
}

}  // namespace vpmu::timing
