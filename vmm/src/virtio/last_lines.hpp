#pragma once
#include <chrono>
#include <deque>
#include <mutex>
#include <string>

#include "kvm/fd.hpp"

namespace vmm::virtio {

/// What a daemon writes to its standard error, of which the end is kept: it tells why the daemon has gone. Any thread.
class LastLines {
 public:
  /// Takes over the end of a pipe to read from. One that nobody reads fills up and the daemon stands still: call read()
  /// whenever descriptor() has something.
  explicit LastLines(Fd pipe);

  [[nodiscard]] int descriptor() const { return pipe_.get(); }
  /// Takes what there is, and never waits. False at the pipe's end.
  bool read();
  /// Takes all until the daemon closes it, for so long at the most. False where it did not.
  bool read_to_end(std::chrono::milliseconds patience);
  /// The last of them in one line, without what could break it; empty where there is none.
  std::string in_one_line();
  /// All that is kept, as it came.
  std::string text();

 private:
  void take(const char* data, std::size_t size);

  Fd pipe_;
  std::mutex mutex_;
  std::deque<std::string> lines_{std::string{}};  ///< The last is not yet at its end.
};

}  // namespace vmm::virtio
