#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "perf/host_counter.hpp"
#include "perf/perf_calibration.hpp"
#include "sources/exact_source.hpp"
#include "sources/source.hpp"
#include "support/log.hpp"

namespace vmm {

struct PerfStatistics {
  std::uint64_t
      windows{};  ///< Times that the engine took over, before an overflow or for an event that only it counts.
  std::uint64_t overshoots{};     ///< Overflows that the guest ran past. Their events are counted, and the margin is
                                  ///< widened from then on.
  std::uint64_t guessed{};        ///< Events extrapolated for time in which a host event had no hardware counter.
  std::uint64_t opened{};         ///< Host events opened.
  std::uint64_t short_periods{};  ///< Periods too short for the host's driver.
  std::uint64_t moved{};      ///< Times that a cache, TLB or predictor event moved from the host to the engine's model,
                              ///< or back.
  std::uint64_t lost{};       ///< Times that the host stopped counting an event or refused to start it.
  std::uint64_t starved{};    ///< Times that an event had no hardware counter on the host for long.
  std::uint64_t unseen_us{};  ///< Time in which such events were not counted, in microseconds.
  std::uint64_t vmruns{};     ///< VM entries that the host counted as branches and that were subtracted.
  std::map<std::uint16_t, std::uint64_t>
      by_engine;  ///< Counters that the engine counts instead of the host, by UMASK and code.
  std::map<std::uint16_t, std::uint64_t> refused;  ///< Counters whose event nobody can count: they stand still.
};

/// Counts with the host's PMU while the guest runs on it, one host event per active counter. The engine of an embedded
/// ExactSource takes over where the host cannot count: near overflows, so that they occur at the exact event and
/// records show the right instruction; for events that the host does not have; and for branch records. The engine
/// counts as ExactSource does: one cycle per instruction, and misses and mispredictions by a model.
///
/// If the host withdraws something during a run (its counters, permission, file descriptors), the engine counts
/// instead. Each new plan asks the host again. The guest continues meanwhile.
///
/// AMD's branch counters count each VMRUN into a counted privilege level as a branch. For counters of all levels the
/// number of entries is known and subtracted, until a run shows that this host does not count them.
///
/// Limits: the host's PMU does not see instructions that KVM emulates (CPUID, HLT and others), so counts lack them.
/// Events that only the host knows pause while the engine runs. So do those of caches, TLBs and prediction, which the
/// engine could only model; their overflows come from the host, late by its skid and the kick, as on a processor
/// without PEBS. While the engine stays, for branch records or a precise event, it counts these too (`moved`).
class PerfSource final : public CountSource {
 public:
  PerfSource(std::unique_ptr<PerfHost> host, const PerfCalibration& calibration, std::unique_ptr<ExactSource> exact,
             const vpmu::GenerationDesc& generation, Log& log);

  static constexpr SourceTraits description{
      .name = "perf", .precise_ip = true, .latency = true, .needs_host_pmu = true};
  /// precise_ip is false if the host's kicks come too late.
  [[nodiscard]] const SourceTraits& traits() const override { return traits_; }

  Result<void> program(const vpmu::CountPlan& plan) override;
  Result<RunEnd> run(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) override;
  Result<vpmu::CountDeltas> sync(VcpuBackend& backend) override;
  Result<RunEnd> walk(VcpuBackend& backend) override;
  Result<RunEnd> come_out(VcpuBackend& backend) override;
  void raised() override { exact_->raised(); }
  [[nodiscard]] bool is_idle() const override {
    return plan_.size == 0 && !wants_engine() && !in_engine_ && exact_->is_idle();
  }
  void missed_runs(bool is_open) override { exact_->missed_runs(is_open); }
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

  [[nodiscard]] const PerfStatistics& statistics() const { return statistics_; }

 private:
  /// Who counts an entry of the plan.
  enum class Counter : std::uint8_t {
    host,       ///< The host, and the engine near an overflow.
    host_only,  ///< Only the host: the engine does not know the event, or could only model it.
    engine,
    nobody,
  };
  void tell_moved();
  [[nodiscard]] vpmu::CountPlan engines_plan() const;
  Counter choose(const vpmu::PlanEntry& entry);
  Counter without_host(const vpmu::PlanEntry& entry);
  bool open(const vpmu::PlanEntry& entry, const HostEvent& event);
  void scale(const VcpuBackend& backend);
  void rest_others();
  Result<void> use_engine(bool on);
  template <class Act>
  void for_each_host_event(const Act& act);
  void arm();
  void look_for_starved();
  [[nodiscard]] bool has_entries(const vpmu::PlanEntry& e) const;
  void look_at_entries(const VcpuBackend& backend);
  std::uint64_t without_entries(const VcpuBackend& backend, const vpmu::PlanEntry& e, const HostCounter::Taken& taken);
  Result<void> take(VcpuBackend& backend, HostCounter& counter, const vpmu::PlanEntry& e, vpmu::CountDeltas& deltas);
  void starved(const vpmu::PlanEntry& entry);
  void lost(const vpmu::PlanEntry& entry, const Error& why);
  [[nodiscard]] bool wants_engine() const;
  [[nodiscard]] std::uint64_t margin_of(const vpmu::PlanEntry& entry) const;
  void overshot(const vpmu::PlanEntry& entry, std::uint64_t events);
  void note(const RunEnd& end);

  std::unique_ptr<PerfHost> host_;
  HostCpu cpu_;
  PerfCalibration margins_;
  std::unique_ptr<ExactSource> exact_;
  const vpmu::GenerationDesc* generation_;
  Log* log_;
  SourceTraits traits_{description};
  vpmu::CountPlan plan_{};                                    ///< `distance` of each entry is at most what is left.
  std::array<Counter, vpmu::max_counters> by_{};              ///< By position in plan_.
  std::array<vpmu::Frequency, vpmu::max_counters> clocks_{};  ///< EventTranslation::of_tsc, by position in plan_.
  std::array<std::optional<HostCounter>, vpmu::max_counters> counters_;
  /// entries() of the back end up to which VM entries are subtracted from a counter; empty = starts with the next run.
  std::array<std::optional<std::uint64_t>, vpmu::max_counters> entries_;
  /// Who last counted a model's event, by counter.
  struct Teller {
    std::uint16_t code{};
    Counter by{};
  };
  std::array<Teller, vpmu::max_counters> tellers_{};
  bool counts_entries_;  ///< The host seems to count each VM entry as a branch.
  bool in_engine_{};
  bool open_instruction_{};  ///< The engine's last instruction has caused an exit and has not retired yet.
  PerfStatistics statistics_{};
};

}  // namespace vmm
