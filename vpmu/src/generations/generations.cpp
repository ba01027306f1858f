#include "vpmu/generation.hpp"

#include <algorithm>
#include <utility>

#include "generations/skylake.hpp"

namespace vpmu {
namespace {

template <std::size_t... I>
constexpr std::array<const GenerationDesc*, generation_count> descriptions(std::index_sequence<I...>) {
  return {&generations::description<static_cast<Generation>(I)>...};
}
constexpr auto generation_table = descriptions(std::make_index_sequence<generation_count>{});

static_assert(
    [] {
      for (std::size_t i = 0; i < generation_table.size(); ++i)
        if (generation_table[i]->name.empty() || static_cast<std::size_t>(generation_table[i]->generation) != i)
          return false;
      return true;
    }(),
    "each enumerator has its description");
// Each table has the load latency event, with the code and umask of the description.
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
  return msrs <= Uncore::max_msrs && MsrSpans::max_core_kinds + d->uncore->msrs.size() <= MsrSpans::capacity;
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
