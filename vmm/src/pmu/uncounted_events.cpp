#include "pmu/uncounted_events.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "support/letters.hpp"
#include "vpmu/counts.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

/// Whether this is the row of what is programmed, with its conditions, or without them.
bool is_row_of(const vpmu::EventDesc& row, const vpmu::EventSpec& spec, bool with_conditions) {
  const bool same = row.code == spec.code && row.umask == spec.umask;
  const bool as_programmed =
      row.cmask == spec.cmask && row.inv == spec.inv && row.edge == spec.edge && row.any == spec.any;
  return same && row.code != 0 && (as_programmed || !with_conditions);
}

std::string public_name(const vpmu::GenerationDesc& generation, const vpmu::EventSpec& spec, std::uint64_t response) {
  for (const bool with_conditions : {true, false})
    for (const vpmu::EventDesc& row : generation.events)
      if (is_row_of(row, spec, with_conditions) && (row.msr_index == 0 || row.msr_value == response))
        return in_small_letters(row.name);
  return fmt::format("r{:02x}{:02x}", spec.umask, spec.code);
}

}  // namespace

UncountedEvents::UncountedEvents(std::string_view source, const SourceOptions& options,
                                 const vpmu::GenerationDesc& generation)
    : generation_{&generation} {
  const auto rules = delivery_rules();
  const auto is_of = [source](const HostedRule& rule) { return rule.source == source && rule.name == source; };
  // What the others deliver depends on the host's counters.
  if (std::ranges::any_of(rules, is_of)) deliver_ = delivery_rule(source, options.time, options.changes);
}

std::string UncountedEvents::name_of(const vpmu::PlanEntry& entry, std::uint64_t response) const {
  const auto event = programmed_event(*generation_, {}, entry.spec, response);
  if (deliver_(*generation_, event).delivery != Delivery::none) return {};
  return public_name(*generation_, entry.spec, response);
}

void UncountedEvents::look_at(const vpmu::CountPlan& plan, const ReadMsr& read) {
  if (!deliver_) return;
  for (const vpmu::PlanEntry& entry : plan.active()) {
    if (!entry.counter.is_gp()) continue;  // instructions, cycles and reference cycles: all sources have them
    const vpmu::EventSpec& spec = entry.spec;
    constexpr std::uint8_t second_offcore = 0xBB;
    const std::uint64_t response = !vpmu::is_offcore(entry.counts) ? 0
                                   : spec.code == second_offcore
                                       ? read(vpmu::MsrIndex{vpmu::msr::MSR_OFFCORE_RSP_0.value() + 1})
                                       : read(vpmu::msr::MSR_OFFCORE_RSP_0);
    const std::uint64_t select = spec.code | std::uint64_t{spec.umask} << 8U | std::uint64_t{spec.cmask} << 24U |
                                 (spec.inv ? vpmu::bit(23) : 0) | (spec.edge ? vpmu::bit(18) : 0);
    std::string& counted = counted_.at(entry.counter.number());
    const auto known = known_.find({select, response});
    counted = known != known_.end() ? known->second : name_of(entry, response);
    if (known == known_.end() && known_.size() < max_known) known_.emplace(std::pair{select, response}, counted);
  }
}

void UncountedEvents::was_written(vpmu::CounterId counter) {
  if (counter.is_gp()) counted_.at(counter.number()).clear();
}

void UncountedEvents::was_read(vpmu::CounterId counter) {
  if (!counter.is_gp()) return;
  const std::string& name = counted_.at(counter.number());
  if (name.empty()) return;
  const bool is_one_more = reads_.size() >= max_names && !reads_.contains(name);
  ++reads_[is_one_more ? "others" : name];
}

void UncountedEvents::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  for (const auto& [name, reads] : reads_) visit(fmt::format("{}{}", prefix, name), reads);
}

}  // namespace vmm
