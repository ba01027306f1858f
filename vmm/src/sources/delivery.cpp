#include "sources/delivery.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "perf/host_events.hpp"
#include "sources/clock_rates.hpp"
#include "uarch/processor_model.hpp"
#include "vpmu/counts.hpp"

namespace vmm {
namespace {

const EventDelivery nothing_to_count{Delivery::exact, "always 0"};

EventDelivery clock_delivery(const vpmu::GenerationDesc&, const vpmu::EventDesc& event) {
  if (event.counts == vpmu::Counts::never) return nothing_to_count;
  const ClockRate rate = clock_rate(event.counts, {.cmask = event.cmask, .edge = event.edge, .inv = event.inv});
  switch (rate.basis) {
    case ClockBasis::none: return {};
    case ClockBasis::time: return {Delivery::estimated, "time on the vCPU"};
    case ClockBasis::rate: return {Delivery::estimated, fmt::format("{} per 1000 cycles", rate.per_1000_cycles)};
  }
  return {};
}

/// Running instructions one by one shows what they do, but not the state of caches, TLBs or predictors.
EventDelivery instruction_delivery(const vpmu::GenerationDesc&, const vpmu::EventDesc& event) {
  constexpr std::string_view one_cycle = "one cycle per instruction";
  const auto estimated = [](std::string_view basis) { return EventDelivery{Delivery::estimated, std::string{basis}}; };
  if (event.counts == vpmu::Counts::never) return nothing_to_count;
  if (event.counts == vpmu::Counts::load_latency) return estimated("tagged loads of any latency");
  switch (vpmu::describe(event.counts).told_by) {
    case vpmu::ToldBy::clock: return estimated(one_cycle);
    case vpmu::ToldBy::slots: return estimated("one uop per instruction");
    case vpmu::ToldBy::target: return estimated("loads from what is no RAM");
    case vpmu::ToldBy::instruction:
      return event.cmask != 0 || event.edge ? estimated(one_cycle) : EventDelivery{Delivery::exact, {}};
    case vpmu::ToldBy::nothing:
    case vpmu::ToldBy::caches:
    case vpmu::ToldBy::fetch:
    case vpmu::ToldBy::prediction:
    case vpmu::ToldBy::fusion: break;
  }
  return {};
}

/// Whether the event needs a line that is in another core's caches.
bool needs_other_cores(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event) {
  constexpr auto others = vpmu::hit_levels(vpmu::HitLevel::l3_shared, vpmu::HitLevel::l3_modified);
  if ((vpmu::describe(event.counts).accesses.levels & ~others) == 0) return true;
  if (!vpmu::is_offcore(event.counts) || event.msr_index == 0) return false;
  unsigned alone = 0;
  for (unsigned request = 0; request < vpmu::offcore_request_count; ++request)
    for (const auto supplier : {vpmu::OffcoreSupplier::l3, vpmu::OffcoreSupplier::local_dram})
      alone |= 1U << vpmu::offcore_cell(static_cast<vpmu::OffcoreRequest>(request), supplier);
  return (vpmu::offcore_filter(generation.offcore, event.msr_value) & alone) == 0;
}

/// The exact source: its engine feeds each instruction to a model of the processor.
EventDelivery exact_delivery(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event) {
  using enum vpmu::Counts;
  constexpr std::uint64_t choice_mask = 0x17, bubbles = 0x06, first_miss = 0x11,
                          last_miss = 0x15;  // of MSR_PEBS_FRONTEND
  EventDelivery by_caches{Delivery::estimated, "a model of caches and TLBs"};
  if (event.counts == frontend) {
    const std::uint64_t choice = event.msr_value & choice_mask;
    if (choice == bubbles) return {Delivery::estimated, "latencies of a model of caches and TLBs"};
    return choice >= first_miss && choice <= last_miss ? by_caches : EventDelivery{};
  }
  // A table row without an MSR value stands for all values.
  if (vpmu::is_offcore(event.counts) && event.msr_index != 0 &&
      vpmu::offcore_filter(generation.offcore, event.msr_value) == 0)
    return {};
  if (event.counts == itlb_misses) return by_caches;
  if (needs_other_cores(generation, event))
    return {Delivery::estimated, "a model of the caches of all CPUs; without KVM only"};
  if (event.counts == macro_fused) return {Delivery::estimated, "CMP or TEST and a branch behind it"};
  if (!vpmu::uarch::ProcessorModel::tells(event.counts)) return instruction_delivery(generation, event);
  const bool branch = vpmu::describe(event.counts).told_by == vpmu::ToldBy::prediction;
  return branch ? EventDelivery{Delivery::estimated, "a model of branch prediction"} : by_caches;
}

/// The perf source: the exact source's engine counts what the host's PMU cannot.
EventDelivery perf_delivery(const HostCpu& host, const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event) {
  if (event.counts == vpmu::Counts::never) return nothing_to_count;
  const bool form = event.cmask != 0 || event.edge;
  const EventTranslation found = translate(host, generation,
                                           {.counts = event.counts,
                                            .spec = {.code = event.code,
                                                     .umask = event.umask,
                                                     .cmask = event.cmask,
                                                     .edge = event.edge,
                                                     .any = event.any,
                                                     .inv = event.inv},
                                            .fixed = event.code == 0,
                                            .per_cycle = form});
  if (found.match == EventTranslation::Match::same)
    return {Delivery::exact, fmt::format("{} on the host", found.about)};
  if (found.match == EventTranslation::Match::nearest)
    return {Delivery::nearest, fmt::format("{} on the host", found.about)};
  EventDelivery engine = exact_delivery(generation, event);
  if (engine.delivery == Delivery::none) return {Delivery::none, std::string{found.about}};
  engine.basis = engine.basis.empty() ? "by the engine" : fmt::format("by the engine: {}", engine.basis);
  return engine;
}
EventDelivery on_same_model(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event) {
  return perf_delivery({.vendor = HostVendor::intel, .generation = generation.generation}, generation, event);
}
EventDelivery on_newer_intel(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event) {
  return perf_delivery({.vendor = HostVendor::intel, .generation = {}}, generation, event);
}
EventDelivery on_amd(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event) {
  return perf_delivery({.vendor = HostVendor::amd, .generation = {}}, generation, event);
}

constexpr std::array rules{HostedRule{"clock", "clock", clock_delivery},
                           HostedRule{"perf", "perf, host of the same model", on_same_model},
                           HostedRule{"perf", "perf, newer Intel host", on_newer_intel},
                           HostedRule{"perf", "perf, AMD host", on_amd},
                           HostedRule{"exact", "exact", exact_delivery},
                           HostedRule{"step", "step", instruction_delivery}};

}  // namespace

std::span<const HostedRule> delivery_rules() { return rules; }

DeliveryRule delivery_rule(std::string_view source) {
  for (const HostedRule& r : rules)
    if (r.source == source) return r.rule;
  return nullptr;
}

std::string_view to_string(Delivery delivery) {
  switch (delivery) {
    case Delivery::none: return "not at all";
    case Delivery::estimated: return "estimated";
    case Delivery::exact: return "exact";
    case Delivery::nearest: return "nearest";
  }
  return "";
}

}  // namespace vmm
