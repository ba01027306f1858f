#pragma once
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "devices/mmio.hpp"
#include "devices/port_bus.hpp"
#include "devices/stop_requests.hpp"
#include "machine/accelerator.hpp"
#include "machine/statistics.hpp"
#include "memory/linear.hpp"
#include "support/log.hpp"
#include "vcpu/backend.hpp"
#include "vcpu/guest_vcpu.hpp"
#include "vcpu/kick_watch.hpp"

namespace vmm {

/// What a vCPU thread needs from its machine. All of it must outlive the thread.
struct VcpuServices {
  LinearMemory& memory;
  PortBus& ports;
  MmioDevices& mmio;
  StopRequests& machine;
  std::function<void(Error)> fail;  ///< Reports a host failure and stops the machine. Any thread.
  Log& log;
  std::atomic<bool>& attention;  ///< Set when a device asks for attend().
  std::function<void()> attend{};
  std::function<void()> time_up{};          ///< A processor has used up its ticks, and waits.
  std::function<Result<void>()> confine{};  ///< Machine::Hooks::confine_vcpu.
};

/// Makes the vCPU with its PMU, on its thread.
using GuestVcpuFactory = std::function<Result<std::unique_ptr<GuestVcpu>>(VcpuBackend&)>;

/// One vCPU and the thread that runs it, from start() to the machine's stop.
class VcpuThread {
 public:
  VcpuThread(VcpuServices services, unsigned id, std::unique_ptr<Processor> processor, GuestVcpuFactory make,
             Bytes image = {});
  ~VcpuThread();
  VcpuThread(const VcpuThread&) = delete;
  VcpuThread& operator=(const VcpuThread&) = delete;
  VcpuThread(VcpuThread&&) = delete;
  VcpuThread& operator=(VcpuThread&&) = delete;

  void start();
  /// Makes the thread leave the guest and end. Does not wait. Any thread.
  void ask_to_stop();
  /// Makes the vCPU leave the guest soon, if it is running. Any thread.
  void kick_if_running();
  /// Waits until the thread has ended. Once, by the owner.
  void join();

  /// Asks the vCPU to pause between two of its runs until resume(). Does not wait. Any thread.
  void pause();
  /// Waits until it is paused. Fails if it has ended.
  Result<void> wait_until_paused();
  /// Of a paused vCPU: its state and its PMU's, the `image` from which a thread can continue. To be called when all
  /// vCPUs of the machine are paused: one that still runs could send this one an interrupt that is not in the image, or
  /// use the caches of which both images tell.
  Result<Bytes> save();
  void resume();

  /// The current counters; after the thread has ended, the last ones. Kicks the vCPU out of the guest; if it has not
  /// come out within a second, logs that and returns the counters of the last time. Any thread but the vCPU's own.
  [[nodiscard]] VcpuStatistics statistics();

 private:
  struct ExitCounts {
    std::uint64_t port_reads{}, port_writes{}, mmio_reads{}, mmio_writes{}, interrupted{}, other{};
  };

  void kick_out();
  void thread_main();
  Result<void> run_guest();
  /// Handles an exit that is not the PMU's; fails if the vCPU cannot continue.
  Result<void> answer(VcpuBackend& backend, const Exit& exit);
  [[nodiscard]] Error exit_failure(VcpuBackend& backend, const std::string& what);
  Result<Bytes> image_of(GuestVcpu& vcpu);
  void rest(GuestVcpu& vcpu);
  Result<std::unique_ptr<GuestVcpu>> begin(VcpuBackend*& backend);
  void publish(const GuestVcpu& vcpu);
  void wait_until_asked();
  void serve_statistics(const GuestVcpu& vcpu);

  VcpuServices services_;
  unsigned id_;
  std::unique_ptr<Processor> processor_;
  GuestVcpuFactory make_;
  Bytes image_;       ///< To continue from; empty: the processor starts afresh.
  ExitCounts exits_;  ///< For the vCPU's thread only.
  std::thread thread_;

  KickWatch kick_watch_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> statistics_wanted_{false};
  std::atomic<bool> pause_wanted_{false};
  std::mutex mutex_;
  std::condition_variable published_changed_;
  bool paused_{false};                  ///< Under mutex_.
  bool save_wanted_{false};             ///< Under mutex_: a paused vCPU is to set saved_.
  std::optional<Result<Bytes>> saved_;  ///< Under mutex_.
  bool running_{false};                 ///< Under mutex_: the thread exists and may be kicked.
  std::uint64_t publications_{0};       ///< Under mutex_.
  std::vector<Statistic> published_;    ///< Under mutex_.
};

}  // namespace vmm
