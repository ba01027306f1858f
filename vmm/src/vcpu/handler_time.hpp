#pragma once
#include <cstdint>

#include "support/result.hpp"
#include "vcpu/port.hpp"

namespace vmm {

/// Whether the guest's clock sees the time that the VMM spends on exits inside a PMI handler.
enum class HandlerClock : std::uint8_t {
  hidden,  ///< The TSC stands still meanwhile and catches up after the handler.
  real,    ///< It runs on.
};

struct HandlerTimeStatistics {
  std::uint64_t windows{};       ///< PMI handlers whose exits were hidden.
  std::uint64_t hidden_ticks{};  ///< TSC ticks taken out and given back, in all.
};

/// Keeps a PMI handler short on the guest's own clock. Linux times its handler and, when that looks slow, lowers
/// perf_event_max_sample_rate until sampling is refused; on a host where an exit costs 50 us, a handler of seven exits always looks slow.
///
/// From the delivery of a PMI to the write that starts the counters again, the vCPU's TSC offset is moved back at each exit by what
/// that exit took; the whole is given back at the first exit after the handler. The guest's TSC never runs backwards, and it
/// lags other vCPUs by at most one handler's exits (well under a millisecond), for as long as the handler and one exit more.
class HandlerTime {
 public:
  HandlerTime(VcpuPort& port, HandlerClock clock) : port_{&port}, clock_{clock} {}

  /// A PMI has been delivered: its handler runs next.
  void begin();
  /// The guest has started its counters again: the handler is over.
  void end() { closing_ = open_; }
  /// Just before the vCPU runs; may change its TSC offset.
  Result<void> before_run();
  /// Just after the vCPU ran.
  void after_run();

  [[nodiscard]] const HandlerTimeStatistics& statistics() const { return statistics_; }

 private:
  Result<void> give_back();

  VcpuPort* port_;
  HandlerClock clock_;
  /// A handler with LBR makes about a hundred exits. One that never restarts the counters must not keep the clock back.
  static constexpr unsigned most_exits = 256;

  bool open_{};              ///< Between delivery and the restart of the counters.
  bool closing_{};           ///< Restarted; the exit that did so is still hidden.
  bool owing_{};             ///< hidden_ is to be given back at the next exit.
  unsigned exits_{};         ///< Hidden in this window.
  std::uint64_t true_offset_{};
  std::uint64_t hidden_{};
  std::uint64_t left_at_{};  ///< Host TSC when the last run returned.
  std::uint64_t entered_at_{};
  std::uint64_t shortest_round_{~0ULL};  ///< Least host ticks from one entry to the next return: what world switches cost at least.
  HandlerTimeStatistics statistics_{};
};

}  // namespace vmm
