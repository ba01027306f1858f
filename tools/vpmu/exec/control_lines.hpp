#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "exec/request.hpp"
#include "support/result.hpp"

namespace vmm::tool {

// What the host and the guest's init tell each other on the port vpmu.control, each a line of text. exec/README.md
// has the order of the lines.

/// Host: a signal for the command's process group.
struct SignalLine {
  int number{};
  bool operator==(const SignalLine&) const = default;
};
/// Host: the terminal has this size now.
struct WindowLine {
  TerminalSize size;
  bool operator==(const WindowLine&) const = default;
};
/// Host: standard input ends after so many bytes, counted from its start; without a number, after what has arrived.
struct EofLine {
  std::optional<std::uint64_t> bytes;
  bool operator==(const EofLine&) const = default;
};
/// Host: everything that the guest says it has written has arrived; the guest may power off.
struct OffLine {
  bool operator==(const OffLine&) const = default;
};
using HostLine = std::variant<SignalLine, WindowLine, EofLine, OffLine>;

/// Guest: it has booted, and next reads its request from the port vpmu.request.
struct ReadyLine {
  bool operator==(const ReadyLine&) const = default;
};
/// Guest: the next thing that happens is the command's execve().
struct StartedLine {
  bool operator==(const StartedLine&) const = default;
};
/// Guest: so many bytes have been written to the ports vpmu.stdout and vpmu.stderr, and no more will be.
struct WrittenLine {
  std::uint64_t output{};
  std::uint64_t error{};
  bool operator==(const WrittenLine&) const = default;
};
/// Guest: the command has ended with this code, or init has failed: exec_init_failed.
struct ExitLine {
  int code{};
  bool operator==(const ExitLine&) const = default;
};
/// Guest: the command was ended by this signal.
struct KilledLine {
  int signal{};
  bool operator==(const KilledLine&) const = default;
};
/// Guest: what init could not do. If init cannot go on, an ExitLine follows.
struct ErrorLine {
  std::string text;
  bool operator==(const ErrorLine&) const = default;
};
using GuestLine = std::variant<ReadyLine, StartedLine, WrittenLine, ExitLine, KilledLine, ErrorLine>;

/// The codes of ExitLine if init failed, if the command cannot be executed, and if the command was not found.
inline constexpr int exec_init_failed = 125;
inline constexpr int exec_not_executable = 126;
inline constexpr int exec_not_found = 127;

/// The line with its newline.
std::string write_line(const HostLine& line);
/// The line with its newline. The text of an ErrorLine is cut to one line of the greatest length.
std::string write_line(const GuestLine& line);

/// Reads a line without its newline. Fails with kind usage if it is not one of these.
Result<HostLine> read_host_line(std::string_view text);
Result<GuestLine> read_guest_line(std::string_view text);

/// Splits what arrives into lines.
class LineBuffer {
 public:
  /// Longer lines are dropped: neither side writes any.
  static constexpr std::size_t max_line_length = 4096;

  void add(std::string_view bytes) { text_ += bytes; }
  /// The next whole line, without its newline.
  std::optional<std::string> take_line();

 private:
  std::string text_;
};

}  // namespace vmm::tool
