#pragma once
#include <poll.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "kvm/fd.hpp"

namespace vmm::tool::guest {

/// What a stream does with its sink when it has passed on everything. A port is kept open, because its closing could
/// reach the host before the bytes that were written to it.
enum class AtEnd { close_sink, keep_sink };

/// Copies bytes from one descriptor to another; neither blocks. What the sink does not take stays in the
/// source. When the reader of the sink closes it, the source is closed too, and its writer gets SIGPIPE.
class Stream {
 public:
  /// `last_words` go to the sink when the source has ended.
  Stream(Fd source, Fd sink, AtEnd at_end, std::string last_words = {})
      : source_{std::move(source)}, sink_{std::move(sink)}, at_end_{at_end}, last_words_{std::move(last_words)} {}

  /// Ends the source after so many bytes; without a number, as soon as it has nothing to read.
  void end_behind(std::optional<std::uint64_t> bytes);
  /// Whether nothing is left to do.
  [[nodiscard]] bool done() const { return done_; }
  /// Drops what is on its way.
  void close();
  /// Handed to the sink so far.
  [[nodiscard]] std::uint64_t written() const { return written_; }

  /// What it waits for: its source and its sink, -1 for neither.
  [[nodiscard]] std::array<pollfd, 2> waits_for() const;
  /// Reads and writes what is possible, after poll() on these.
  void go_on(const std::array<pollfd, 2>& polled);

 private:
  void fill();
  void flush();
  void end_source();

  static constexpr std::size_t buffer_bytes = std::size_t{32} << 10;  // a port takes no more at once
  static constexpr std::uint64_t no_end = UINT64_MAX;

  Fd source_;
  Fd sink_;
  AtEnd at_end_;
  std::string last_words_;
  std::string buffer_;
  std::size_t taken_{};  // of the buffer
  std::uint64_t read_{};
  std::uint64_t written_{};
  std::uint64_t end_{no_end};
  bool ends_when_empty_{};
  bool done_{};
};

}  // namespace vmm::tool::guest
