#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace vmm {

/// Who has to act on an error; decides the exit code of the command line program.
enum class ErrorKind {
  usage,  ///< What was asked for is wrong: a bad option, file or size. Exit code 2.
  host,   ///< The host refuses or lacks something. Exit code 1.
};

/// A failure on the host side. Guest-visible failures are values of their own, never an Error.
struct Error {
  ErrorKind kind{ErrorKind::host};
  std::string what;    ///< What failed and the value seen, without a full stop.
  std::string advice;  ///< What to do or type next; may be empty.
  int system_errno{};  ///< errno of the failed call; 0 when there was none.
};

/// The error as one line: "what: reason; advice". Allocates; never fails.
std::string describe(const Error& error);

/// The text of an errno value ("Permission denied"). Thread-safe.
std::string errno_text(int system_errno);

/// `text` cut to `max` characters with control characters replaced, so that a hostile value cannot break the one-line
/// rule.
std::string printable(std::string_view text, std::size_t max = 80);

}  // namespace vmm
