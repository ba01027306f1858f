#include "sources/host_counter.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace vmm {
namespace {

/// Products of counts and times need more than 64 bits.
__extension__ using wide = unsigned __int128;

/// Events that take turns do so every few milliseconds.
constexpr std::uint64_t longest_wait_ns = 1'000'000'000;

}  // namespace

Result<HostCounter> HostCounter::open(PerfHost& host, const PerfEventSpec& spec) {
  VMM_ASSIGN(auto event, host.open(spec));
  return HostCounter{std::move(event), spec};
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
    if (enabled < longest_wait_ns) return Taken{};
    return host_error(fmt::format("event {}:{:#x} got no counter of the host's for {} ms: others hold them all",
                                  spec_.event.type, spec_.event.config, enabled / 1'000'000),
                      0,
                      "stop other perf sessions and the host's NMI watchdog (sysctl kernel.nmi_watchdog=0), or count "
                      "fewer events in the guest");
  }
  taken_ = now;
  if (running >= enabled) return Taken{.events = counted};
  const auto scaled = static_cast<std::uint64_t>(wide{counted} * enabled / std::max<std::uint64_t>(running, 1));
  return Taken{.events = scaled, .guessed = scaled - counted};
}

Result<void> HostCounter::kick_after(std::optional<std::uint64_t> events) {
  const auto at = events ? std::optional{taken_.value + *events} : std::nullopt;
  if (at == kick_at_) return {};
  kick_at_ = at;
  return event_->set_period(events.value_or(no_period));
}

}  // namespace vmm
