#pragma once
#include <linux/perf_event.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "fakes/fake_cpu.hpp"
#include "perf/perf_errors.hpp"
#include "perf/perf_host.hpp"

namespace vmm::test {

/// A simulated perf_event on a FakeCpu: counts what the CPU retires, with the faults that a test asks for.
class FakePerf {
 public:
  FakePerf(FakeGuest& guest, FakeCpu& cpu) : guest_{&guest}, cpu_{&cpu} {
    cpu.on_retired = [this](std::uint64_t at) { on_retired(at); };
    cpu.on_entered = [this] { on_entered(); };
  }

  HostCpu host_cpu{.vendor = HostVendor::intel, .generation = vpmu::Generation::skylake};
  std::uint64_t skid{};                  ///< By how many events a kick comes after its overflow.
  std::uint64_t skid_of_cycles{};        ///< By how many more a kick of core cycles comes.
  std::uint64_t min_period{1};           ///< The driver refuses shorter ones.
  std::uint64_t refused_periods{};       ///< How often it has refused one.
  bool throttles{};                      ///< An event that has kicked stops counting until its period is set.
  std::uint64_t cpus{~0ULL};             ///< The CPUs whose PMU has the events.
  unsigned on_cpu{};                     ///< The CPU that the thread is on.
  std::size_t max_open{~std::size_t{}};  ///< Opening more events fails with EMFILE.
  int enable_error{}, period_error{}, read_error{};  ///< For every event.
  bool counts_host{};                                ///< exclude_host is ignored.
  std::uint64_t loses_each{};                        ///< Every n-th event on the host is not counted; 0 = all are.
  std::uint64_t counts_twice_each{};                 ///< Every n-th event on the host is counted twice; 0 = none is.
  bool interrupts{true};                             ///< Overflows kick.
  std::uint64_t share{
      100};  ///< Percentage of its time for which an event has a counter: the first ones of each 100 instructions.
  std::map<HostEvent, int, bool (*)(const HostEvent&, const HostEvent&)> open_errors{before};  ///< By event.
  int open_error{};                                                                            ///< For every event.
  bool counts_entries{};        ///< An entry into the guest counts as a branch of the guest.
  std::uint64_t enters_each{};  ///< KVM leaves and enters the guest by itself every n instructions; 0 = never.
  std::optional<std::uint64_t> emulated_at;  ///< An instruction that KVM emulates: the PMU does not see it.
  std::function<bool(std::uint64_t)> is_branch{[](std::uint64_t) { return false; }};  ///< By address.
  std::uint64_t ns_per_instruction{10};  ///< By which events' times advance.
  std::vector<PerfEventSpec> opened;
  unsigned periods_set{};

  /// A host whose events are counted here; `this` must outlive it.
  [[nodiscard]] std::unique_ptr<PerfHost> host() { return std::make_unique<Host>(*this); }
  [[nodiscard]] PerfHostFactory factory() {
    return [this] { return host(); };
  }
  /// Lets time pass for the thread outside of its guest.
  void pass_on_host(std::uint64_t ns) {
    for (State& s : events_) {
      if (!s.enabled) continue;
      s.reading.enabled_ns += ns;
      if ((cpus >> on_cpu & 1) != 0 && share != 0) s.reading.running_ns += ns;
    }
  }
  /// Events that are open and enabled.
  [[nodiscard]] std::size_t running() const {
    return static_cast<std::size_t>(std::ranges::count_if(events_, [](const State& s) { return s.enabled; }));
  }

 private:
  static bool before(const HostEvent& a, const HostEvent& b) {
    return std::pair{a.type, a.config} < std::pair{b.type, b.config};
  }

  struct State {
    PerfEventSpec spec;
    bool enabled{};
    PerfReading reading;
    std::uint64_t next{no_period};  ///< Value of the next overflow.
    std::uint64_t period{no_period};
    std::optional<std::uint64_t> kick_at;  ///< Value at which the last overflow kicks.
    bool throttled{};
    std::uint64_t slot{};
  };

  class Event final : public PerfEvent {
   public:
    Event(FakePerf& perf, std::list<State>::iterator state) : perf_{&perf}, state_{state} {}
    ~Event() override { perf_->events_.erase(state_); }
    Result<PerfReading> read() override {
      VMM_TRY(fails("read", perf_->read_error));
      return state_->reading;
    }
    Result<void> set_period(std::uint64_t events) override {
      if (events < perf_->min_period) ++perf_->refused_periods;
      VMM_TRY(fails("period", events < perf_->min_period ? EINVAL : perf_->period_error));
      ++perf_->periods_set;
      state_->throttled = false;
      state_->period = events;
      state_->next = state_->reading.value + events;
      return {};
    }
    Result<void> enable() override {
      VMM_TRY(fails("enable", perf_->enable_error));
      state_->enabled = true;
      return {};
    }
    Result<void> disable() override {
      state_->enabled = false;
      return {};
    }

   private:
    static Result<void> fails(const char* what, int error) {
      if (error != 0) return host_error(what, error);
      return {};
    }
    FakePerf* perf_;
    std::list<State>::iterator state_;
  };

  class Host final : public PerfHost {
   public:
    explicit Host(FakePerf& perf) : perf_{&perf} {}
    [[nodiscard]] HostCpu cpu() const override { return perf_->host_cpu; }
    Result<std::unique_ptr<PerfEvent>> open(const PerfEventSpec& spec) override {
      const auto found = perf_->open_errors.find(spec.event);
      int failure = found != perf_->open_errors.end() ? found->second : perf_->open_error;
      if (perf_->events_.size() >= perf_->max_open) failure = EMFILE;
      if (failure != 0) return Failure{perf_open_error(failure, spec)};
      perf_->opened.push_back(spec);
      perf_->events_.push_back({.spec = spec});
      return std::make_unique<Event>(*perf_, std::prev(perf_->events_.end()));
    }
    void run_loop(std::uint64_t iterations) override { loop(iterations); }
    bool run_loop_until_kicked(std::uint64_t max) override { return loop(max); }

   private:
    bool loop(std::uint64_t iterations) {
      for (std::uint64_t n = 0; n < iterations; ++n)
        for (std::uint64_t i = 0; i < loop_instructions; ++i)
          if (perf_->retire_in_host(i % 2 == 1)) return true;
      return false;
    }
    FakePerf* perf_;
  };

  /// Counts events of host or guest; true when the event kicks.
  bool count(State& s, std::uint64_t events) const {
    s.reading.enabled_ns += ns_per_instruction;
    if (s.slot++ % 100 >= share || (cpus >> on_cpu & 1) == 0) return false;
    s.reading.running_ns += ns_per_instruction;
    if (s.throttled) return false;
    s.reading.value += events;
    if (s.reading.value >= s.next) {
      if (!s.kick_at) s.kick_at = s.next + skid + (is_cycles(s) ? skid_of_cycles : 0);
      s.next += s.period;
    }
    const bool kicks = interrupts && s.kick_at && s.reading.value >= *s.kick_at;
    if (kicks) s.kick_at.reset();
    s.throttled = kicks && throttles;
    return kicks;
  }

  static bool is_cycles(const State& s) {
    return s.spec.event == HostEvent{PERF_TYPE_RAW, 0x3C} || s.spec.event == HostEvent{PERF_TYPE_RAW, 0x76};
  }

  static bool is_branches(const State& s) {
    return s.spec.event == HostEvent{PERF_TYPE_RAW, 0xC4} || s.spec.event == HostEvent{PERF_TYPE_RAW, 0xC2};
  }
  static std::uint64_t events_of(const State& s, bool branch) { return is_branches(s) && !branch ? 0 : 1; }

  bool retire_in_host(bool branch) {
    ++seen_on_host_;
    const bool lost = loses_each != 0 && seen_on_host_ % loses_each == 0;
    const bool twice = counts_twice_each != 0 && seen_on_host_ % counts_twice_each == 0;
    bool kicked = false;
    for (State& s : events_)
      if (s.enabled && s.spec.usr && (!s.spec.guest_only || counts_host))
        kicked = count(s, lost ? 0 : events_of(s, branch) << (twice ? 1U : 0U)) || kicked;
    return kicked;
  }

  void on_entered() {
    if (guest_->backend.entered) ++*guest_->backend.entered;
    const bool user = cpl_of(guest_->backend.special) != 0;
    for (State& s : events_)
      if (counts_entries && s.enabled && s.spec.guest_only && (user ? s.spec.usr : s.spec.os) && is_branches(s) &&
          count(s, 1))
        cpu_->kick();
  }

  void on_retired(std::uint64_t at) {
    if (enters_each != 0 && ++retired_ % enters_each == 0) on_entered();
    if (emulated_at == at) return;
    const bool user = cpl_of(guest_->backend.special) != 0;
    for (State& s : events_)
      if (s.enabled && s.spec.guest_only && (user ? s.spec.usr : s.spec.os) && count(s, events_of(s, is_branch(at))))
        cpu_->kick();
  }

  FakeGuest* guest_;
  FakeCpu* cpu_;
  std::list<State> events_;
  std::uint64_t seen_on_host_{};
  std::uint64_t retired_{};
};

}  // namespace vmm::test
