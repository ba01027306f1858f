#include "profile/recorded_events.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "stat/events.hpp"

namespace vmm::tool {
namespace {

using vpmu::EventDesc;
using vpmu::GenerationDesc;
using vpmu::PebsAbility;

/// On some models Linux refuses a shorter period.
constexpr std::uint64_t min_period = 32;
/// How many times shorter than that of cycles the periods of loads and mispredictions are.
constexpr std::uint64_t cycles_of_a_load = 5, cycles_of_a_misprediction = 100;

/// Odd, so that the period does not run in step with a loop of 2, 4 or 8 events.
std::uint64_t period_of(Aspect aspect, std::uint64_t cycles) {
  if (cycles == 0) return 0;
  std::uint64_t period = cycles;
  switch (aspect) {
    case Aspect::cycles: break;
    case Aspect::loads: period = cycles / cycles_of_a_load; break;
    case Aspect::mispredictions: period = cycles / cycles_of_a_misprediction; break;
  }
  return std::max(period, min_period) | 1U;
}

bool is_plain(const EventDesc& event) {
  return event.code != 0 && event.cmask == 0 && !event.inv && !event.edge && !event.any;
}

/// The event that counts all loads: the row with the lowest threshold stands for it.
const EventDesc* find_loads(const GenerationDesc& generation) {
  const auto row = std::ranges::find(generation.events, vpmu::Counts::load_latency, &EventDesc::counts);
  return row == generation.events.end() ? nullptr : &*row;
}

/// The best event that counts mispredicted branches: a precise one, else one on whose precision the documents disagree,
/// else any.
const EventDesc* find_mispredictions(const GenerationDesc& generation) {
  const auto rank = [](const EventDesc& event) {
    if (event.pebs == PebsAbility::only || event.pebs == PebsAbility::yes) return 2;
    return event.pebs == PebsAbility::disputed ? 1 : 0;
  };
  const EventDesc* best = nullptr;
  for (const EventDesc& event : generation.events)
    if (event.counts == vpmu::Counts::mispredicts && event.msr_index == 0 && is_plain(event) &&
        (best == nullptr || rank(event) > rank(*best)))
      best = &event;
  return best;
}

bool is_precise(const EventDesc& event) { return event.pebs == PebsAbility::yes || event.pebs == PebsAbility::only; }

/// The terms of perf's syntax that follow those that select the event.
std::string with_terms(std::string_view select, Aspect aspect, std::uint64_t period, std::string_view modifier) {
  const std::string rate = period == 0 ? std::string{} : fmt::format(",period={}", period);
  return fmt::format("{}name={}{}/{}", select, to_string(aspect), rate, modifier);
}

Result<std::string> quality_of(std::string_view name, const GenerationDesc& generation, std::string_view source,
                               TimeModel time) {
  VMM_ASSIGN(const auto chosen, choose_events(name, generation, source, time));
  return chosen.front().quality;
}

/// Adds the event of `row`, or a sentence that it is missing.
Result<void> add(RecordingPlan& plan, Aspect aspect, const EventDesc* row, const GenerationDesc& generation,
                 std::string_view source, TimeModel time, std::uint64_t cycles) {
  if (row == nullptr) {
    plan.lacking.push_back(fmt::format("{}: {} has no event that counts them.", to_string(aspect), generation.name));
    return {};
  }
  VMM_ASSIGN(const std::string quality, quality_of(row->name, generation, source, time));
  if (!is_delivered(quality)) {
    plan.lacking.push_back(fmt::format("{}: the source {} does not deliver {}.", to_string(aspect), source, row->name));
    return {};
  }
  const bool precise = is_precise(*row);
  if (!precise)
    plan.lacking.push_back(
        fmt::format("{}: {} has no precise event for all of them. {} is sampled by interrupts, which come some "
                    "instructions later.",
                    to_string(aspect), generation.name, row->name));
  std::string select = fmt::format("cpu/event={:#x},umask={:#x},", row->code, row->umask);
  // The lowest threshold that Linux accepts: every load has a higher latency.
  if (aspect == Aspect::loads) select += "ldlat=3,";
  const std::uint64_t period = period_of(aspect, cycles);
  plan.events.push_back({.aspect = aspect,
                         .name = std::string{row->name},
                         .perf = with_terms(select, aspect, period, precise ? "pp" : ""),
                         .quality = quality,
                         .is_precise = precise,
                         .period = period});
  return {};
}

}  // namespace

std::string_view to_string(Aspect aspect) {
  switch (aspect) {
    case Aspect::cycles: return "cycles";
    case Aspect::loads: return "loads";
    case Aspect::mispredictions: return "mispredictions";
  }
  return "";
}

Result<RecordingPlan> plan_recording(const GenerationDesc& generation, std::string_view source, const SampleRate& rate,
                                     TimeModel time) {
  RecordingPlan plan;
  VMM_ASSIGN(const std::string quality, quality_of("cycles", generation, source, time));
  if (!is_delivered(quality))
    return usage_error(fmt::format("the source {} does not deliver cycles", source), "choose another with --source");
  // perf's own name, which Linux translates into the model's precise event. KVM's PMU may have none.
  const bool precise = source != "kvm";
  const std::uint64_t period = period_of(Aspect::cycles, rate.period);
  plan.events.push_back({.aspect = Aspect::cycles,
                         .name = "cycles",
                         .perf = with_terms("cycles/", Aspect::cycles, period, precise ? "pp" : "P"),
                         .quality = quality,
                         .is_precise = precise,
                         .period = period});
  VMM_TRY(add(plan, Aspect::loads, find_loads(generation), generation, source, time, rate.period));
  VMM_TRY(add(plan, Aspect::mispredictions, find_mispredictions(generation), generation, source, time, rate.period));
  return plan;
}

}  // namespace vmm::tool
