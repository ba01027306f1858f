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
      windows{};  ///< Times that the engine took over: before an overflow, or for a counter that only it can count.
  std::uint64_t overshoots{};     ///< Overflows that the guest ran past. Their events are counted; the margin is longer
                                  ///< from then on.
  std::uint64_t guessed{};        ///< Events scaled up for time that a host event had no counter.
  std::uint64_t opened{};         ///< Host events.
  std::uint64_t short_periods{};  ///< Periods that the host's driver did not take: the engine goes such distances.
  std::uint64_t moved{};    ///< Times that a counter of a cache's, TLB's or predictor's event went from the host to the
                            ///< engine's model, or back.
  std::uint64_t lost{};     ///< Times that the host would not go on with an event, or not begin.
  std::uint64_t starved{};  ///< Times that an event had no counter of the host's for long,
  std::uint64_t unseen_us{};  ///< and the time of which nothing was counted.
  std::uint64_t vmruns{};     ///< Entries into the guest that the host counted as branches, and that were taken out.
  std::map<std::uint16_t, std::uint64_t>
      by_engine;  ///< Counters that the host cannot count and the engine does, by UMASK and code,
  std::map<std::uint16_t, std::uint64_t> refused;  ///< and those that nobody can: they stand still.
};

/// Counts by the host's PMU while the guest runs on it, one host event for each counter that counts, and by the engine
/// of an embedded ExactSource where the host cannot: near overflows, so that these come at the very event and records
/// stand on the right instruction; for events that the host does not have; and for branch records. The engine counts as
/// ExactSource does: there a cycle is an instruction, and misses and mispredictions are a model's.
///
/// What the host takes away in the middle of a run (its counters, the right to count, file descriptors) the engine
/// counts from then on, each time that it is asked for until the host gives it back; the guest goes on.
///
/// AMD's counters of branches take each VMRUN into a privilege level that they count for one. Where a counter counts at
/// all levels these are known, and taken out, until a stretch shows that this host's do not.
///
/// Limits: the host's PMU does not see instructions that KVM emulates (CPUID, HLT and others), so counts lack them.
/// Events that only the host knows rest while the engine runs. So do those of caches, TLBs and branch prediction, which
/// the engine would tell by a model; they overflow from the host, late by its skid and the kick, as on a processor
/// without PEBS. Where the engine stays, for branch records or a precise event, it counts these too (`moved`).
class PerfSource final : public CountSource {
 public:
  PerfSource(std::unique_ptr<PerfHost> host, const PerfCalibration& calibration, std::unique_ptr<ExactSource> exact,
             const vpmu::GenerationDesc& generation, Log& log);

  static constexpr SourceTraits description{
      .name = "perf", .precise_ip = true, .latency = true, .needs_host_pmu = true};
  /// Without precise_ip where the host's kicks come too late.
  [[nodiscard]] const SourceTraits& traits() const override { return traits_; }

  Result<void> program(const vpmu::CountPlan& plan) override;
  Result<RunEnd> run(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most) override;
  Result<vpmu::CountDeltas> sync(VcpuPort& port) override;
  Result<RunEnd> walk(VcpuPort& port) override;
  Result<RunEnd> come_out(VcpuPort& port) override;
  void raised() override { exact_->raised(); }
  [[nodiscard]] bool is_idle() const override {
    return plan_.size == 0 && !wants_engine() && !in_engine_ && exact_->is_idle();
  }
  void left_open() override { exact_->left_open(); }
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

  [[nodiscard]] const PerfStatistics& statistics() const { return statistics_; }

 private:
  /// Who counts an entry of the plan.
  enum class Counter : std::uint8_t {
    host,       ///< The host, and near its overflow the engine.
    host_only,  ///< The host; the engine does not know the event, or tells it by a model of its own.
    engine,
    nobody,
  };
  void tell_moved();
  [[nodiscard]] vpmu::CountPlan engines_plan() const;
  Counter choose(const vpmu::PlanEntry& entry);
  Counter without_host(const vpmu::PlanEntry& entry);
  bool open(const vpmu::PlanEntry& entry, const HostEvent& event);
  void scale(const VcpuPort& port);
  void rest_others();
  Result<void> use_engine(bool on);
  template <class Act>
  void for_each_host_event(const Act& act);
  void arm();
  void look_for_starved();
  [[nodiscard]] bool has_entries(const vpmu::PlanEntry& e) const;
  void look_at_entries(const VcpuPort& port);
  std::uint64_t without_entries(const VcpuPort& port, const vpmu::PlanEntry& e, const HostCounter::Taken& taken);
  Result<void> take(VcpuPort& port, HostCounter& counter, const vpmu::PlanEntry& e, vpmu::CountDeltas& deltas);
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
  vpmu::CountPlan plan_{};                                     ///< Distances are at most what is really left.
  std::array<Counter, vpmu::max_counters> by_{};               ///< By place in plan_.
  std::array<std::uint64_t, vpmu::max_counters> clock_khz_{};  ///< The same: EventTranslation::of_tsc_khz.
  std::array<std::optional<HostCounter>, vpmu::max_counters> counters_;
  /// The port's entries() up to which those of a counter are taken out; empty = from the next run on.
  std::array<std::optional<std::uint64_t>, vpmu::max_counters> entries_;
  /// Who counted an event of the model's last, by counter.
  struct Teller {
    std::uint16_t code{};
    Counter by{};
  };
  std::array<Teller, vpmu::max_counters> tellers_{};
  bool counts_entries_;  ///< The host counts an entry into the guest as a branch, as far as is known.
  bool in_engine_{};
  bool open_instruction_{};  ///< The engine's last instruction has left the guest and not retired yet.
  PerfStatistics statistics_{};
};

}  // namespace vmm
