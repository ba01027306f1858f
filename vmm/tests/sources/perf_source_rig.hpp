#pragma once
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "contract/source_rigs.hpp"
#include "support/log.hpp"

namespace vmm::test {

using namespace std::chrono_literals;
using vpmu::CounterId;
using vpmu::Counts;
using vpmu::PlanEntry;

inline constexpr CounterId pmc0 = CounterId::gp(0), pmc1 = CounterId::gp(1), fixed0 = CounterId::fixed(0),
                           fixed2 = CounterId::fixed(2);
inline constexpr std::uint64_t far_away = 1ULL << 47;

inline PlanEntry counter(CounterId id, Counts counts, std::uint8_t code, std::uint8_t umask = 0) {
  const vpmu::EventSpec spec{.code = code, .umask = umask, .usr = true, .os = true};
  return {.counter = id, .spec = spec, .counts = counts, .usr = true, .os = true, .distance = far_away};
}
inline PlanEntry instructions(CounterId id = pmc0) { return counter(id, Counts::instructions, 0xC0); }
inline PlanEntry sampling(PlanEntry e, std::uint64_t distance) {
  e.distance = distance;
  e.wants_overflow = true;
  return e;
}

/// The perf source on a simulated PMU, with a guest in a loop.
class PerfSourceOn : public testing::Test {
 protected:
  static constexpr std::uint64_t margin = 200;

  PerfSourceOn() {
    rig_.cpu.per_instruction = 10ns;
    perf_.is_branch = [](std::uint64_t at) { return at == LoopingGuest::code + 8; };
  }
  /// Makes a new source, which has given no warnings yet.
  void make(PerfCalibration calibration = {.margin_instructions = margin, .margin_cycles = margin, .lands = true},
            vpmu::Generation generation = vpmu::Generation::skylake) {
    source_.reset();
    warnings_.clear();
    log_ = std::make_unique<Log>([this](LogLevel, std::string_view line) { warnings_.emplace_back(line); },
                                 LogLevel::warning);
    auto exact =
        std::make_unique<ExactSource>(std::make_unique<FakeTimer>(rig_.time), rig_.guest.breakpoints, rig_.guest.view,
                                      rig_.guest.memory, vpmu::describe(generation), SourceOptions{});
    source_ =
        std::make_unique<PerfSource>(perf_.host(), calibration, std::move(exact), vpmu::describe(generation), *log_);
  }
  void make_of(vpmu::Generation generation) {
    make({.margin_instructions = margin, .margin_cycles = margin, .lands = true}, generation);
  }
  Result<void> try_program(std::initializer_list<PlanEntry> entries) {
    if (!source_) make();
    plan_ = {};
    for (const PlanEntry& e : entries) plan_.entries[plan_.size++] = e;
    return source_->program(plan_);
  }
  void program(std::initializer_list<PlanEntry> entries) {
    const auto done = try_program(entries);
    ASSERT_TRUE(done) << describe(done.error());
  }
  /// Runs once, and adds up what the PMU would count. Null if the run failed.
  std::optional<RunEnd> run(std::optional<nanoseconds> at_most = std::nullopt) {
    auto end = source_->run(rig_.guest.backend, at_most);
    auto deltas = source_->sync(rig_.guest.backend);
    failure_ = !end ? describe(end.error()) : !deltas ? describe(deltas.error()) : "";
    if (!failure_.empty()) return std::nullopt;
    for (const PlanEntry& e : plan_.active()) {
      counted_[e.counter] += (*deltas)[e.counter];
      if (end->retired && (e.counts == Counts::instructions || e.counts == Counts::cycles)) ++counted_[e.counter];
      if (end->retired && e.counts == Counts::branches && end->retired->what.branch.kind != vpmu::BranchKind::none)
        ++counted_[e.counter];
    }
    return *end;
  }
  /// Runs until `id` has counted `events`.
  void run_to(CounterId id, std::uint64_t events) {
    for (int n = 0; counted_[id] < events; ++n) {
      ASSERT_LT(n, 3000);
      ASSERT_TRUE(run()) << failure_;
    }
  }
  [[nodiscard]] std::uint64_t truth() const { return rig_.cpu.retired + rig_.guest.backend.passed; }
  [[nodiscard]] std::uint64_t statistic(const std::string& name) const {
    std::map<std::string, std::uint64_t> all;
    source_->visit_statistics([&](std::string_view n, std::uint64_t value) { all[std::string{n}] = value; });
    return all.contains(name) ? all[name] : 0;
  }

  LoopingGuest rig_;
  FakePerf perf_{rig_.guest, rig_.cpu};
  std::vector<std::string> warnings_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<PerfSource> source_;
  vpmu::CountPlan plan_{};
  vpmu::CountDeltas counted_{};
  std::string failure_;
};

}  // namespace vmm::test
