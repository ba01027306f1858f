#include "sources/delivery.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/own_part.hpp"
#include "perf/host_events.hpp"
#include "sources/clock_events.hpp"
#include "timing/core_timer.hpp"
#include "uarch/processor_model.hpp"
#include "uarch/profiles.hpp"
#include "vpmu/counts.hpp"
#include "vpmu/registers.hpp"

namespace vmm {
namespace {

const EventDelivery nothing_to_count{Delivery::exact, "always 0"};
const EventDelivery untold{Delivery::none, "only a model of the pipeline tells it"};

/// How the source delivers a union: as the worst of its events.
template <class Rule>
EventDelivery of_union(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event, Rule rule) {
  EventDelivery worst{Delivery::exact, {}};
  for (const vpmu::Counts counts : classify(generation, {.code = event.code, .umask = event.umask}).kinds.all()) {
    vpmu::EventDesc one = event;
    one.counts = counts;
    EventDelivery delivery = rule(generation, one);
    if (delivery.delivery == Delivery::none) return delivery;
    if (delivery.delivery == Delivery::estimated) worst = std::move(delivery);
  }
  return worst;
}

EventDelivery clock_delivery(const vpmu::GenerationDesc&, const vpmu::EventDesc& event) {
  if (event.counts == vpmu::Counts::never) return nothing_to_count;
  const bool form = event.cmask != 0 || event.edge;
  if (!clock_counts(event.counts, {.cmask = event.cmask, .edge = event.edge, .inv = event.inv})) return {};
  const bool time = form || event.counts != vpmu::Counts::instructions;
  return {Delivery::estimated, time ? "time on the vCPU" : "one instruction a cycle"};
}

/// Whether the pipeline gives the count: of its cycles, of what it tells, or, with CMASK and EDGE, of what is in a
/// cycle.
bool is_of_pipeline(const vpmu::EventDesc& event, vpmu::PipelineQuantities told) {
  if (told.empty()) return false;
  const vpmu::CountsDesc& desc = vpmu::describe(event.counts);
  const bool is_its = !desc.pipeline.of.empty() && told.contains(desc.pipeline.of);
  const bool is_form = desc.told_by == vpmu::ToldBy::instruction && (event.cmask != 0 || event.edge);
  return is_its || is_form || desc.told_by == vpmu::ToldBy::clock;
}

/// Running instructions one by one shows what they do, but not the state of caches, TLBs or predictors.
EventDelivery instruction_delivery(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event) {
  constexpr std::string_view one_cycle = "one cycle per instruction";
  const auto estimated = [](std::string_view basis) { return EventDelivery{Delivery::estimated, std::string{basis}}; };
  if (event.counts == vpmu::Counts::several) return of_union(generation, event, instruction_delivery);
  if (event.counts == vpmu::Counts::never) return nothing_to_count;
  if (event.counts == vpmu::Counts::load_latency) return estimated("tagged loads of any latency");
  switch (vpmu::describe(event.counts).told_by) {
    case vpmu::ToldBy::clock: return estimated(one_cycle);
    case vpmu::ToldBy::slots: return estimated("one uop per instruction");
    case vpmu::ToldBy::target: return estimated("loads from what is no RAM");
    case vpmu::ToldBy::instruction:
      return event.cmask != 0 || event.edge ? estimated(one_cycle) : EventDelivery{Delivery::exact, {}};
    case vpmu::ToldBy::timed_caches:
    case vpmu::ToldBy::pipeline: return untold;
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

/// Of these requests, which ones nobody makes without a model of the pipeline.
vpmu::OffcoreFilter made_by_prefetchers(vpmu::OffcoreFilter requests) {
  unsigned prefetches = 0;
  for (unsigned supplier = 0; supplier < vpmu::offcore_supplier_count; ++supplier)
    prefetches |= 1U << vpmu::offcore_cell(vpmu::OffcoreRequest::prefetch_data_read,
                                           static_cast<vpmu::OffcoreSupplier>(supplier));
  return static_cast<vpmu::OffcoreFilter>(requests & prefetches);
}

/// The exact source, of an event that is no union: its engine feeds each instruction to a model of the processor.
EventDelivery exact_delivery_of_one(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event,
                                    vpmu::PipelineQuantities told, const vpmu::uarch::ProfileChanges& changes) {
  using enum vpmu::Counts;
  namespace fe = vpmu::reg::pebs_frontend;
  constexpr std::uint64_t choice_mask = 0x17, any_dsb_miss = 0x01, bubbles = 0x06, first_miss = 0x11, last_miss = 0x15;
  EventDelivery by_caches{Delivery::estimated, "a model of caches and TLBs"};
  if (is_of_pipeline(event, told)) return {Delivery::estimated, "a model of the pipeline"};
  if (!told.empty() && vpmu::only_pipeline_tells(event.counts))
    return {Delivery::none, "the model of the pipeline does not tell it"};
  if (told.empty() && vpmu::needs_pipeline(event.counts)) return untold;
  if (event.counts == frontend) {
    const std::uint64_t choice = event.msr_value & choice_mask;
    if (choice == bubbles) {
      const auto profile = changed_profile(generation, changes);
      const bool possible =
          profile && fe::IDQ_Bubble_Length::get(event.msr_value) <= max_bubble(*profile, /*walk_loads=*/!told.empty());
      return possible ? EventDelivery{Delivery::estimated, "latencies of a model of caches and TLBs"} : EventDelivery{};
    }
    return choice == any_dsb_miss || (choice >= first_miss && choice <= last_miss) ? by_caches : EventDelivery{};
  }
  // A table row without an MSR value stands for all values.
  if (vpmu::is_offcore(event.counts) && event.msr_index != 0) {
    const vpmu::OffcoreFilter requests = vpmu::offcore_filter(generation.offcore, event.msr_value);
    if (requests == 0) return {};
    if (told.empty() && made_by_prefetchers(requests) == requests) return untold;
  }
  if (event.counts == itlb_misses) return by_caches;
  if (needs_other_cores(generation, event))
    return {Delivery::estimated, "a model of the caches of all CPUs; without KVM only"};
  if (event.counts == macro_fused) return {Delivery::estimated, "CMP or TEST and a branch behind it"};
  if (!vpmu::uarch::ProcessorModel::tells(event.counts)) return instruction_delivery(generation, event);
  const bool branch = vpmu::describe(event.counts).told_by == vpmu::ToldBy::prediction;
  return branch ? EventDelivery{Delivery::estimated, "a model of branch prediction"} : by_caches;
}

/// The exact source while a cycle is an instruction.
EventDelivery exact_by_instructions(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event) {
  return exact_delivery(generation, event, {});
}

EventDelivery exact_by_pipeline(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event) {
  return exact_delivery(generation, event, vpmu::timing::CoreTimer::told());
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
  EventDelivery engine = exact_by_instructions(generation, event);
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
                           HostedRule{"exact", "exact", exact_by_instructions},
                           HostedRule{"exact", "exact, --time pipeline", exact_by_pipeline, TimeModel::pipeline},
                           HostedRule{"step", "step", instruction_delivery}};

}  // namespace

EventDelivery exact_delivery(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event,
                             vpmu::PipelineQuantities told, const vpmu::uarch::ProfileChanges& changes) {
  const auto of_one = [&](const auto& g, const auto& e) { return exact_delivery_of_one(g, e, told, changes); };
  return event.counts == vpmu::Counts::several ? of_union(generation, event, of_one) : of_one(generation, event);
}

std::span<const HostedRule> delivery_rules() { return rules; }

DeliveryRule delivery_rule(std::string_view source, TimeModel time) {
  DeliveryRule found = nullptr;
  for (const HostedRule& r : rules)
    if (r.source == source && (found == nullptr || (time != TimeModel::instructions && r.time == time))) found = r.rule;
  return found;
}

ChangedRule delivery_rule(std::string_view source, TimeModel time, const vpmu::uarch::ProfileChanges& changes) {
  if (changes.empty() || source != "exact") return delivery_rule(source, time);
  const auto told = time == TimeModel::pipeline ? vpmu::timing::CoreTimer::told() : vpmu::PipelineQuantities{};
  return [told, changes](const auto& g, const auto& e) { return exact_delivery(g, e, told, changes); };
}

vpmu::EventDesc programmed_event(const vpmu::GenerationDesc& generation, std::string_view name,
                                 const vpmu::EventSpec& spec, std::uint64_t msr_value) {
  constexpr std::uint32_t offcore_rsp_0 = 0x1A6;
  const vpmu::EventClass what = classify(generation, spec);
  return {.name = name,
          .code = spec.code,
          .umask = spec.umask,
          .cmask = spec.cmask,
          .inv = spec.inv,
          .edge = spec.edge,
          .any = spec.any,
          .counters = vpmu::pmc_mask,
          .pebs = what.pebs,
          .data_la = what.data_la,
          .l1_hit_indication = what.l1_hit_indication,
          .msr_index = vpmu::is_offcore(what.counts) && msr_value != 0 ? offcore_rsp_0 : 0,
          .msr_value = msr_value,
          .sample_after = 0,
          .counts = what.counts};
}

std::string_view to_string(Delivery delivery) {
  switch (delivery) {
    case Delivery::none: return "not counted";
    case Delivery::estimated: return "estimated";
    case Delivery::exact: return "exact";
    case Delivery::nearest: return "nearest";
  }
  return "";
}

}  // namespace vmm
