#pragma once
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pmu/task_counts.hpp"
#include "sources/source_options.hpp"
#include "support/result.hpp"
#include "vpmu/generation.hpp"

namespace vmm::tool {

/// What `vpmu stat` counts by default: instructions, branches, loads and stores are exact.
inline constexpr std::string_view default_stat_events =
    "instructions:u,instructions:k,branches:u,branch-misses:u,cache-misses:u,loads:u,stores:u";

/// What -d adds, as perf's does.
inline constexpr std::string_view detailed_stat_events =
    "L1-dcache-loads:u,L1-dcache-load-misses:u,LLC-loads:u,LLC-load-misses:u";

/// What a guest's kernel counts by itself, and the VMM can, too.
enum class SoftwareEvent { context_switches, cpu_migrations, task_clock };

/// An event that is to be counted.
struct StatEvent {
  std::string name;        ///< As the user gave it.
  std::string perf;        ///< As `perf stat -e` in the guest takes it.
  std::string quality;     ///< How the source delivers it, as `vpmu events` says; "unknown" for what only perf knows.
  bool has_own_counter{};  ///< It uses a fixed counter, and none of the general-purpose ones.
  /// How the VMM counts it beside the guest's PMU. Empty: perf alone knows it.
  std::variant<std::monostate, TaskEvent, SoftwareEvent> beside;
};

/// Whether a source counts an event of this StatEvent::quality. If not, the guest's counter stays at 0.
[[nodiscard]] bool is_delivered(std::string_view quality);

/// The events of split_event_list(): names of perf's, names of `vpmu events` in either case, raw codes, and `loads` and
/// `stores`; each may have a modifier of perf's after a colon. `changes` of the model must fit it. Fails with kind
/// usage as that does, on a name that nobody knows, more than 256 events, and one that is there twice.
Result<std::vector<StatEvent>> choose_events(std::string_view list, const vpmu::GenerationDesc& generation,
                                             std::string_view source, TimeModel time = TimeModel::instructions,
                                             const vpmu::uarch::ProfileChanges& changes = {});

/// Splits the events, in their order, into groups that the processor can count at once, without multiplexing.
std::vector<std::vector<StatEvent>> split_into_passes(std::span<const StatEvent> events,
                                                      const vpmu::GenerationDesc& generation);

}  // namespace vmm::tool
