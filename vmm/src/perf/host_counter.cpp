#include "perf/host_counter.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace vmm {
namespace {

/// Products of counts and times need more than 64 bits.
__extension__ using wide = unsigned __int128;

/// The kernel rotates multiplexed events every few milliseconds.
constexpr std::uint64_t max_wait_ns = 1'000'000'000;

/// If a driver refuses a longer period than this, the reason is not its length.
constexpr std::uint64_t max_min_kick = 1 << 20;

}  // namespace

Result<HostCounter> HostCounter::open(PerfHost& host, const PerfEventSpec& spec) {
  VMM_ASSIGN(auto event, host.open(spec));
  return HostCounter{std::move(event), spec};
}

void HostCounter::count_part(const Part& part) {
  if (part == part_) return;
  part_ = part;
  rest_ = 0;
  min_kick_ = 1;
}

Result<void> HostCounter::start() {
  if (runs_) return {};
  runs_ = true;
  VMM_TRY(event_->enable());
  return skip();
}

Result<void> HostCounter::stop() {
  if (!runs_) return {};
  runs_ = false;
  return event_->disable();
}

Result<void> HostCounter::skip() {
  VMM_ASSIGN(taken_, event_->read());
  return {};
}

Result<HostCounter::Taken> HostCounter::take() {
  VMM_ASSIGN(const PerfReading now, event_->read());
  const std::uint64_t counted = now.value - taken_.value;
  const std::uint64_t enabled = now.enabled_ns - taken_.enabled_ns;
  const std::uint64_t running = now.running_ns - taken_.running_ns;
  if (running == 0 && enabled != 0 && counted == 0) {
    if (enabled < max_wait_ns) return Taken{.waits = true};
    starved_ = true;
    taken_ = now;
    return Taken{.unseen_ns = enabled};
  }
  starved_ = false;
  taken_ = now;
  const bool guesses = running < enabled;
  const wide all = guesses ? wide{counted} * enabled / std::max<std::uint64_t>(running, 1) : wide{counted};
  const wide parts = all * part_.of + rest_;
  rest_ = static_cast<std::uint64_t>(parts % part_.in);
  const auto events = static_cast<std::uint64_t>(parts / part_.in);
  const auto known = static_cast<std::uint64_t>(wide{counted} * part_.of / part_.in);
  return Taken{.events = events, .guessed = guesses ? events - std::min(events, known) : 0};
}

Result<bool> HostCounter::has_recovered() {
  const std::uint64_t running_before = taken_.running_ns;
  VMM_TRY(skip());
  starved_ = taken_.running_ns == running_before;
  return !starved_;
}

// EINVAL: the period is below the driver's least one, which it does not tell. Nehalem's is 32; a branch event's with
// branch tracing is 2.
Result<bool> HostCounter::kick_after(std::optional<std::uint64_t> events) {
  std::optional<std::uint64_t> of_host;
  if (events) {
    const wide missing = wide{*events} * part_.in - std::min<wide>(wide{*events} * part_.in, rest_);
    of_host = static_cast<std::uint64_t>(std::min<wide>((missing + part_.of - 1) / part_.of, no_period));
  }
  const auto at = of_host ? std::optional{taken_.value + *of_host} : std::nullopt;
  if (at == kick_at_) return true;
  if (events && *events < min_kick_) return false;
  if (auto set = event_->set_period(of_host.value_or(no_period)); !set) {
    const bool is_too_short = of_host && *of_host <= max_min_kick && set.error().system_errno == EINVAL;
    if (!is_too_short) return Failure{std::move(set).error()};
    min_kick_ = *events * 2;
    return false;
  }
  kick_at_ = at;
  return true;
}

}  // namespace vmm
