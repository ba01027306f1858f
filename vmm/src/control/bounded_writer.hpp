#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "kvm/fd.hpp"

namespace vmm {

/// Writes to a descriptor on a thread of its own, so that who has something to say never waits for who reads it: a
/// stopped pager, a full pipe. Up to most_waiting bytes wait for a slow reader; what comes while so many wait is
/// dropped and counted. A regular file is never slow for long: there the caller waits, and nothing is lost.
/// Thread-safe.
class BoundedWriter {
 public:
  /// In bytes.
  static constexpr std::size_t most_waiting = 1U << 20U;

  /// What became of all that was given.
  struct Totals {
    std::uint64_t written{};  ///< Bytes that the descriptor took.
    std::uint64_t dropped{};  ///< Bytes that are lost.
    int error{};  ///< errno of the first write that failed; 0 when they are lost for want of a reader alone.
  };

  /// Takes over the descriptor. `reader_left` is called once, on the writer's thread, when the other end of a pipe is
  /// closed; it must not call back. Throws std::system_error when the host gives no thread.
  explicit BoundedWriter(Fd fd, std::function<void()> reader_left = {});
  /// As finish().
  ~BoundedWriter();
  BoundedWriter(const BoundedWriter&) = delete;
  BoundedWriter& operator=(const BoundedWriter&) = delete;
  BoundedWriter(BoundedWriter&&) = delete;
  BoundedWriter& operator=(BoundedWriter&&) = delete;

  /// Whole lines go out at once, the rest some milliseconds later. Nothing after finish().
  void put(std::string_view text);
  [[nodiscard]] Totals totals() const;
  /// Waits for the reader of what is left, as long as he takes some of it: two seconds without any end it, and ten in
  /// all.
  Totals finish();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  ///< With the thread, which may be in a write that never returns.
  std::thread thread_;
};

}  // namespace vmm
