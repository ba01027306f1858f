#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "perf/host_events.hpp"
#include "support/result.hpp"

namespace vmm {

/// One event to open on the calling thread.
struct PerfEventSpec {
  HostEvent event;
  bool usr{}, os{};   ///< The privilege levels that count: the guest's if `guest_only`.
  bool guest_only{};  ///< Counts while the thread runs a guest, and nothing of the host.
  friend bool operator==(const PerfEventSpec&, const PerfEventSpec&) = default;
};

/// What an event has counted since it was opened, and for how much of the time it had a host counter.
struct PerfReading {
  std::uint64_t value{};
  std::uint64_t enabled_ns{};
  std::uint64_t running_ns{};  ///< Less than `enabled_ns` if events are multiplexed on too few counters.
};

/// One host event of the thread that opened it.
class PerfEvent {
 public:
  virtual ~PerfEvent() = default;
  virtual Result<PerfReading> read() = 0;
  /// Kicks the thread's vCPU after that many events from now, and each time after as many again. A kick comes late by
  /// the host's skid.
  virtual Result<void> set_period(std::uint64_t events) = 0;
  virtual Result<void> enable() = 0;
  virtual Result<void> disable() = 0;
};

/// A period that no event reaches.
constexpr std::uint64_t no_period = 1ULL << 46;

/// The host's performance counters as one thread sees them: the interface between the perf source and Linux. Tests
/// simulate it.
class PerfHost {
 public:
  virtual ~PerfHost() = default;
  [[nodiscard]] virtual HostCpu cpu() const = 0;
  /// Opens an event, disabled and with `no_period`. Fails with perf_open_error(), in which Error::system_errno is set.
  virtual Result<std::unique_ptr<PerfEvent>> open(const PerfEventSpec& spec) = 0;

  /// What one iteration of the loops below takes in the host's user mode.
  static constexpr std::uint64_t loop_instructions = 4, loop_branches = 2;
  /// A loop of known length, for calibration.
  virtual void run_loop(std::uint64_t iterations) = 0;
  /// The same until somebody kicks the thread's vCPU. False when nobody did in `most` iterations.
  virtual bool run_loop_until_kicked(std::uint64_t max) = 0;
};

/// Makes the calling thread's PerfHost: make_linux_perf_host, or a test's.
using PerfHostFactory = std::function<std::unique_ptr<PerfHost>()>;

/// Opens events by perf_event_open. The kick handler must be installed (kvm/kick.hpp). Reads the host's PMUs from
/// sysfs.
std::unique_ptr<PerfHost> make_linux_perf_host();

}  // namespace vmm
