#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "perf/perf_host.hpp"

namespace vmm {

/// The host event that counts for one counter of a guest: hands out what it has counted in pieces, and asks for kicks
/// at places of the count.
class HostCounter {
 public:
  /// Opens the event; it rests.
  static Result<HostCounter> open(PerfHost& host, const PerfEventSpec& spec);
  [[nodiscard]] const PerfEventSpec& spec() const { return spec_; }

  /// From now on `part.of` events for each `part.in` of the host's; what take() and kick_after() tell and take is in
  /// these.
  struct Part {
    std::uint64_t of{1};
    std::uint64_t in{1};
    friend bool operator==(const Part&, const Part&) = default;
  };
  void count_part(const Part& part);

  /// Counts from now on.
  Result<void> start();
  Result<void> stop();
  /// What was counted since the last take() is nobody's.
  Result<void> skip();

  struct Taken {
    std::uint64_t events{};
    std::uint64_t guessed{};    ///< Of these: not counted but scaled up for time without a counter of the host's.
    std::uint64_t unseen_ns{};  ///< Time of which nothing is known, for there was no counter.
    bool waits{};               ///< The stretch had no time on a counter yet.
  };
  /// The events since the last take(). Where events take turns on the host's counters, they are scaled up by time; what
  /// a stretch without any time on a counter had waits for the next. When that lasts, the stretch is given up
  /// (`unseen_ns`) and the counter is starved.
  Result<Taken> take();
  /// Whether others hold all of the host's counters, or the thread is where this event does not count.
  [[nodiscard]] bool is_starved() const { return starved_; }
  /// Whether a starved one counts again; what it has counted up to now is nobody's.
  Result<bool> has_recovered();

  /// Kicks when that many events more than at the last take() or skip() have been counted; empty = never. False when
  /// the host's driver takes no period as short as that: least_kick() is longer from then on.
  Result<bool> kick_after(std::optional<std::uint64_t> events);
  /// The shortest distance of a kick that the host's driver may take, as far as is known.
  [[nodiscard]] std::uint64_t least_kick() const { return least_kick_; }

 private:
  HostCounter(std::unique_ptr<PerfEvent> event, const PerfEventSpec& spec) : event_{std::move(event)}, spec_{spec} {}

  std::unique_ptr<PerfEvent> event_;
  PerfEventSpec spec_;
  bool runs_{};
  PerfReading taken_{};  ///< Up to here all is handed out.
  Part part_;
  std::uint64_t rest_{};  ///< Of host events that are no whole event yet, times part_.of; less than part_.in.
  std::optional<std::uint64_t> kick_at_{};  ///< The event's value at which it kicks.
  std::uint64_t least_kick_{1};
  bool starved_{};
};

}  // namespace vmm
