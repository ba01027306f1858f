#pragma once
#include <poll.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "kvm/fd.hpp"

namespace vmm::tool::guest {

/// What a stream does with its sink when it has passed on everything. A port is kept: that it is closed could reach the
/// host before what was written to it.
enum class AtEnd { close_sink, keep_sink };

/// Bytes on their way from one descriptor to another, neither of which blocks. What the sink does not take, waits in
/// the source; when the sink is closed by its reader, so is the source, whose writer then gets SIGPIPE.
class Stream {
 public:
  /// `last_words` go to the sink when the source has ended.
  Stream(Fd source, Fd sink, AtEnd at_end, std::string last_words = {})
      : source_{std::move(source)}, sink_{std::move(sink)}, at_end_{at_end}, last_words_{std::move(last_words)} {}

  /// The source ends after so many bytes; without a number, it ends where it has nothing more now.
  void end_behind(std::optional<std::uint64_t> bytes);
  /// Whether nothing is left to do.
  [[nodiscard]] bool done() const { return done_; }
  /// Drops what is on its way.
  void close();
  /// Handed to the sink so far.
  [[nodiscard]] std::uint64_t written() const { return written_; }

  /// What it waits for: its source and its sink, -1 for neither.
  [[nodiscard]] std::array<pollfd, 2> waits_for() const;
  /// Goes on after poll() on these.
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
