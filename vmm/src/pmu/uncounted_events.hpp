#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "sources/delivery.hpp"
#include "vpmu/plan.hpp"

namespace vmm {

/// Remembers which events a guest has counted, and read, that its source does not deliver: their counters stay at 0,
/// and the guest cannot know why. Of sources whose events do not depend on the host. A counter that nobody reads does
/// not matter: Linux's way round Nehalem's erratum AAK100 enables three such events for a moment.
class UncountedEvents {
 public:
  /// A value of an MSR, as the guest has written it.
  using ReadMsr = std::function<std::uint64_t(vpmu::MsrIndex index)>;

  /// Remembers none.
  UncountedEvents() = default;
  UncountedEvents(std::string_view source, const SourceOptions& options, const vpmu::GenerationDesc& generation);
  /// The guest counts this from now on.
  void look_at(const vpmu::CountPlan& plan, const ReadMsr& read);
  /// The guest gives this counter a value.
  void was_written(vpmu::CounterId counter);
  /// The guest reads this counter, which has what it counted since.
  void was_read(vpmu::CounterId counter);
  /// Calls `visit("pmu.uncounted.NAME", n)` for each: the guest read it n times. NAME is the event's public name in
  /// small letters, else its code as `perf stat -e` takes it.
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const;

  /// How each statistic of these begins.
  static constexpr std::string_view prefix = "pmu.uncounted.";
  /// A hostile guest may program all codes there are: those beyond so many are "others".
  static constexpr std::size_t max_names = 64;

 private:
  /// The name if it is not delivered, else empty.
  [[nodiscard]] std::string name_of(const vpmu::PlanEntry& entry, std::uint64_t response) const;

  const vpmu::GenerationDesc* generation_{};
  ChangedRule deliver_;  ///< Empty: it depends on the host.
  static constexpr std::size_t max_known = 1024;
  /// name_of() by event select and response.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> known_;
  std::array<std::string, vpmu::max_gp_counters> counted_;   ///< What each counted last: empty if that is delivered.
  std::map<std::string, std::uint64_t, std::less<>> reads_;  ///< By name.
};

}  // namespace vmm
