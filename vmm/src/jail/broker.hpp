#pragma once
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>

#include "kvm/fd.hpp"
#include "perf/linux_perf_host.hpp"
#include "support/result.hpp"

namespace vmm {

/// A child that the process forks before it enters the jail. The child keeps the process's rights and has nothing of
/// the guest's: at the end it does with files what the jailed process may no longer do. It takes requests for its
/// duties only, from this process only, and ends with it, however the process ends.
class Broker {
 public:
  struct Duties {
    std::function<Result<void>(std::string_view text)> write_statistics;
    std::function<Result<void>()> finish_snapshot{};  ///< The process has written the file. May be empty.
    /// Opens an event, with rights that the jailed process no longer has. May be empty.
    EventOpener open_event{};
    std::function<void()> clean_up;    ///< Once, when the process has ended or asks for the end.
    std::array<int, 2> keeps{-1, -1};  ///< Descriptors that the duties need; -1: none.
  };

  /// Forks. Of the process's descriptors the child keeps only Duties::keeps and its own socket. It blocks all signals
  /// that it can. Fails if the host cannot create a process.
  static Result<Broker> start(const Duties& duties);

  Broker() = default;
  Broker(Broker&&) = default;
  Broker& operator=(Broker&&) = default;
  /// As end().
  ~Broker() { end(); }

  /// Has the child call Duties::write_statistics; waits for its result and returns that.
  Result<void> write_statistics(std::string_view text);
  /// The same for Duties::finish_snapshot.
  Result<void> finish_snapshot();
  /// Has the child open a performance event of a thread of this process, which may count in guests, or in the process's
  /// own user mode. Any thread.
  Result<Fd> open_event(const PerfEventSpec& spec, pid_t thread);
  /// Waits until everything is cleaned up. Idempotent.
  void end();

 private:
  explicit Broker(Fd to_child) : to_child_{std::move(to_child)} {}
  Result<void> ask(std::string_view message, Fd* descriptor = nullptr);
  Fd to_child_;
  std::unique_ptr<std::mutex> asking_{std::make_unique<std::mutex>()};  ///< One request at a time.
};

}  // namespace vmm
