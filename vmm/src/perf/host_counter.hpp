#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "perf/perf_host.hpp"

namespace vmm {

/// The host event that counts for one counter of a guest: take() returns its events in portions, kick_after() asks for
/// a kick at a count.
class HostCounter {
 public:
  /// Opens the event, which is stopped at first.
  static Result<HostCounter> open(PerfHost& host, const PerfEventSpec& spec);
  [[nodiscard]] const PerfEventSpec& spec() const { return spec_; }

  /// count_part() scales the count: from then on `part.of` events stand for each `part.in` of the host's. take() and
  /// kick_after() use scaled events.
  struct Part {
    std::uint64_t of{1};
    std::uint64_t in{1};
    friend bool operator==(const Part&, const Part&) = default;
  };
  void count_part(const Part& part);

  /// Counts from now on.
  Result<void> start();
  Result<void> stop();
  /// Discards what was counted since the last take().
  Result<void> skip();

  struct Taken {
    std::uint64_t events{};
    std::uint64_t guessed{};    ///< Of these: not counted but extrapolated for time without a host counter.
    std::uint64_t unseen_ns{};  ///< Time of which nothing is known, because there was no host counter.
    bool waits{};               ///< The event had no time on a host counter yet.
  };
  /// The events since the last take(). If the kernel multiplexes the host's counters, events are scaled up by time.
  /// While the event has had no counter at all, nothing is taken. After a second of that the time is given up
  /// (`unseen_ns`), and the counter is starved.
  Result<Taken> take();
  /// Whether others hold all of the host's counters, or the thread runs where this event does not count.
  [[nodiscard]] bool is_starved() const { return starved_; }
  /// Whether a starved counter counts again; discards what it has counted up to now.
  Result<bool> has_recovered();

  /// Kicks when so many events have been counted since the last take() or skip(); empty = never. False if the host's
  /// driver refuses so short a period: min_kick() is longer from then on.
  Result<bool> kick_after(std::optional<std::uint64_t> events);
  /// The shortest kick_after() that the host's driver may accept, as far as is known.
  [[nodiscard]] std::uint64_t min_kick() const { return min_kick_; }

 private:
  HostCounter(std::unique_ptr<PerfEvent> event, const PerfEventSpec& spec) : event_{std::move(event)}, spec_{spec} {}

  std::unique_ptr<PerfEvent> event_;
  PerfEventSpec spec_;
  bool runs_{};
  PerfReading taken_{};  ///< The reading at the last take() or skip().
  Part part_;
  std::uint64_t rest_{};  ///< Host events, times part_.of, that do not make a whole event yet; less than part_.in.
  std::optional<std::uint64_t> kick_at_{};  ///< The event's value at which it kicks.
  std::uint64_t min_kick_{1};
  bool starved_{};
};

}  // namespace vmm
