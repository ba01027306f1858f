#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "kvm/fd.hpp"

namespace vmm {

/// Writes to a descriptor on a thread of its own, so that the caller never waits for the reader, such as a stopped
/// pager. Up to max_waiting bytes wait for a slow reader; further bytes are dropped and counted. A regular file is
/// seldom slow: for it the caller waits, and bytes are dropped only if the file takes none for two seconds.
/// Thread-safe.
class BoundedWriter {
 public:
  /// In bytes.
  static constexpr std::size_t max_waiting = 1U << 20U;

  /// What became of all bytes given to put().
  struct Totals {
    std::uint64_t written{};  ///< Bytes that the descriptor took.
    std::uint64_t dropped{};  ///< Bytes that are lost.
    int error{};  ///< errno of the first write that failed; 0 if bytes were lost only because the reader was slow.
  };

  /// Takes over the descriptor. `reader_left` is called once, on the writer's thread, when the other end of a pipe is
  /// closed; it must not call back. Throws std::system_error when the host gives no thread.
  explicit BoundedWriter(Fd fd, std::function<void()> reader_left = {});
  /// Calls finish().
  ~BoundedWriter();
  BoundedWriter(const BoundedWriter&) = delete;
  BoundedWriter& operator=(const BoundedWriter&) = delete;
  BoundedWriter(BoundedWriter&&) = delete;
  BoundedWriter& operator=(BoundedWriter&&) = delete;

  /// Writes whole lines at once, an unfinished line some milliseconds later.
  /// After finish() text is dropped.
  void put(std::string_view text);
  [[nodiscard]] Totals totals() const;
  /// Waits while the reader takes the rest; gives up after two seconds without progress, and after ten seconds in all.
  Totals finish();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  ///< Shared with the thread, which may be in a write that never returns.
  std::thread thread_;
};

}  // namespace vmm
