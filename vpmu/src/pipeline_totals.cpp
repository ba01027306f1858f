#include "vpmu/pipeline_totals.hpp"

#include <algorithm>

#include "vpmu/cycle_condition.hpp"
#include "vpmu/event.hpp"

namespace vpmu {
namespace {

using Form = PipelinePattern::Form;

/// The event of a pattern, which has some amount in each cycle.
struct Amount {
  const PipelinePattern& event;
  const PipelineTotals& totals;
  std::uint64_t weight;  ///< Of a cycle that is counted as such.

  /// Cycles in which there are `n` or more of the quantities.
  [[nodiscard]] std::uint64_t with(unsigned n) const {
    if (n == 0) return totals.cycles;
    std::uint64_t cycles = 0;
    if (n <= PipelineTotal::max_threshold)
      event.of.for_each([&](PipelineQuantity q) { cycles += totals[q].at_least[n - 1]; });
    return cycles;
  }
  /// Cycles in which it is `threshold` or more; that is at least 1.
  [[nodiscard]] std::uint64_t at_least(unsigned threshold) const {
    if (event.form == Form::amount) return with(threshold);
    if (threshold > weight) return 0;
    return event.form == Form::some ? with(1) : with(event.number) - with(event.number + 1U);
  }
  [[nodiscard]] std::uint64_t sum() const {
    if (event.form != Form::amount) return weight * at_least(1);
    std::uint64_t all = 0;
    event.of.for_each([&](PipelineQuantity q) { all += totals[q].sum; });
    return all;
  }
  /// How often it comes to be `threshold` or more, or ceases to be, which differs by one at most.
  [[nodiscard]] std::uint64_t changes(unsigned threshold) const {
    const std::uint64_t cycles = at_least(threshold);
    // Runs of cycles with none and with some take turns.
    const bool is_some = event.form == Form::amount ? threshold == 1 : event.form == Form::some || event.number == 0;
    if (cycles == 0 || !is_some) return by_chance(cycles);
    std::uint64_t beginnings = 0;
    event.of.for_each([&](PipelineQuantity q) { beginnings += totals[q].beginnings; });
    return beginnings;
  }

 private:
  [[nodiscard]] std::uint64_t by_chance(std::uint64_t cycles) const {
    __extension__ using wide = unsigned __int128;
    if (cycles == 0 || cycles >= totals.cycles) return 0;
    return static_cast<std::uint64_t>(wide{cycles} * (totals.cycles - cycles) / totals.cycles);
  }
};

}  // namespace

std::uint64_t pipeline_count(const PipelinePattern& event, const EventSpec& select, const PipelineTotals& totals) {
  const Amount amount{.event = event, .totals = totals, .weight = event.by_umask ? std::uint64_t{select.umask} : 1};
  if (!CycleCondition::is_asked(select)) return amount.sum();
  const unsigned threshold = select.cmask == 0 ? 1 : select.cmask;
  if (select.edge) return amount.changes(threshold);
  const std::uint64_t held = amount.at_least(threshold);
  return select.inv ? totals.cycles - std::min(held, totals.cycles) : held;
}

}  // namespace vpmu
