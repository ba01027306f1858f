#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>

#include "perf/cpu_timer.hpp"
#include "sources/skid_walker.hpp"
#include "sources/source.hpp"
#include "vpmu/generation.hpp"

namespace vmm {

/// Counts on a host without a PMU. Ticks of the guest's TSC while it is not halted count as cycles, and an instruction
/// for each; bus cycles by the rates of both clocks. All other events read 0 (clock_events.hpp). The counts are
/// estimates, but precise records show instructions that really retired.
///
/// An event that counts at one privilege level only gets the time in which periodic kicks found the vCPU at that level.
class ClockSource final : public CountSource {
 public:
  /// `timer` belongs to the vCPU's thread.
  ClockSource(std::unique_ptr<CpuTimer> timer, Breakpoints& breakpoints, GuestView& view,
              const vpmu::GenerationDesc& generation, std::uint64_t seed)
      : timer_{std::move(timer)}, walker_{breakpoints, view, *timer_, seed}, bus_clock_{generation.bus_clock} {}

  static constexpr SourceTraits description{.name = "clock"};
  [[nodiscard]] const SourceTraits& traits() const override { return description; }

  Result<void> program(const vpmu::CountPlan& plan) override;
  Result<RunEnd> run(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) override;
  Result<vpmu::CountDeltas> sync(VcpuBackend& backend) override;
  Result<RunEnd> walk(VcpuBackend& backend) override;

  [[nodiscard]] bool is_idle() const override { return plan_.size == 0; }
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

 private:
  using nanoseconds = std::chrono::nanoseconds;
  Result<void> arm(VcpuBackend& backend, std::optional<nanoseconds> at_most);
  /// So many events in so many ticks of the TSC.
  struct Rate {
    std::uint64_t events{}, ticks{1};
  };
  [[nodiscard]] Rate rate_of(const vpmu::PlanEntry& e, std::uint64_t tsc_khz) const;
  [[nodiscard]] std::uint64_t ticks_to_overflow(const vpmu::PlanEntry& e, const Rate& rate) const;
  [[nodiscard]] std::optional<nanoseconds> until_due(std::uint64_t tsc_khz) const;

  std::unique_ptr<CpuTimer> timer_;
  SkidWalker walker_;
  vpmu::Frequency bus_clock_;
  vpmu::CountPlan plan_{};
  std::optional<std::uint64_t>
      seen_ticks_;  ///< unhalted_ticks() of the back end up to which everything is counted; empty = not started.
  std::optional<nanoseconds> armed_until_;  ///< Thread CPU time at which the timer fires; empty = not armed.
  bool kicked_{};                           ///< A signal ended the last run, so its privilege level is a fair sample.
  bool sampled_user_{};                     ///< Privilege level at the last kick.
  /// Fractions of an event that sync() has not reported yet, by counter.
  std::array<std::uint64_t, vpmu::max_counters> remainder_{};
};

}  // namespace vmm
