#pragma once
#include <chrono>
#include <deque>
#include <mutex>
#include <string>

#include "kvm/fd.hpp"

namespace vmm::virtio {

/// Keeps the end of a daemon's standard error, which tells why the daemon has ended. Any thread.
class LastLines {
 public:
  /// Takes over the read end of a pipe. If nobody reads it, the pipe fills up and blocks the daemon: call read()
  /// whenever descriptor() is readable.
  explicit LastLines(Fd pipe);

  [[nodiscard]] int descriptor() const { return pipe_.get(); }
  /// Reads what there is, and never waits. False at the pipe's end.
  bool read();
  /// Reads until the daemon closes the pipe, for `patience` at most. False if it has not closed it.
  bool read_to_end(std::chrono::milliseconds patience);
  /// The last few of the lines, joined in one line of printable characters; empty if there are none.
  std::string in_one_line();
  /// All that is kept, unchanged.
  std::string text();

 private:
  void take(const char* data, std::size_t size);

  Fd pipe_;
  std::mutex mutex_;
  std::deque<std::string> lines_{std::string{}};  ///< The last one may still be incomplete.
};

}  // namespace vmm::virtio
