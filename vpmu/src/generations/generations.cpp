#include "vpmu/generation.hpp"

#include <algorithm>

#include "generations/skylake.hpp"

namespace vpmu {
namespace {

namespace g = generations;

constexpr std::array generation_table{&g::nehalem,       &g::nehalem_ex,   &g::westmere,        &g::westmere_ep,
                                      &g::westmere_ex,   &g::sandy_bridge, &g::sandy_bridge_ep, &g::ivy_bridge,
                                      &g::ivy_bridge_ep, &g::haswell,      &g::haswell_ep,      &g::broadwell,
                                      &g::broadwell_de,  &g::broadwell_ep, &g::skylake,         &g::skylake_sp};

static_assert(
    [] {
      for (std::size_t i = 0; i < generation_table.size(); ++i)
        if (static_cast<std::size_t>(generation_table[i]->generation) != i) return false;
      return true;
    }(),
    "describe() goes by the enumerator");
// The event of load latency is in each table, and runs where the description says.
static_assert(std::ranges::all_of(generation_table, [](const GenerationDesc* d) {
  const auto rows = events::rows_of(d->events, d->load_latency_code, d->load_latency_umask);
  return !rows.empty() && rows.front().counts == Counts::load_latency;
}));
static_assert(std::ranges::all_of(generation_table, [](const GenerationDesc* d) {
  const auto rows = events::rows_of(d->events, d->precise_store_code, d->precise_store_umask);
  return !d->features.precise_store ||
         (!rows.empty() && rows.front().counts == Counts::stores && rows.front().pebs == PebsAbility::only);
}));

static_assert(std::ranges::all_of(generation_table, [](const GenerationDesc* d) {
  std::size_t msrs = 0;
  for (const UncoreMsr& row : d->uncore->msrs) msrs += row.count;
  return msrs <= Uncore::most_msrs && MsrSpans::most_core_kinds + d->uncore->msrs.size() <= MsrSpans::capacity;
}));

}  // namespace

const GenerationDesc& describe(Generation generation) { return *generation_table[static_cast<unsigned>(generation)]; }

std::span<const GenerationDesc* const> all_generations() { return generation_table; }

std::optional<Generation> find_generation(std::string_view name) {
  for (const GenerationDesc* desc : generation_table)
    if (desc->name == name) return desc->generation;
  return std::nullopt;
}

}  // namespace vpmu
