#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "support/result.hpp"

namespace vmm {

/// The control protocol: each request is one line {"command": "status" | "counters" | "snapshot" | "suspend" | "stop"}, "snapshot" and
/// "suspend" with {"file": PATH}, each reply one line of JSON with "ok".

/// What the protocol needs of a machine.
struct ControlHandlers {
  std::function<std::string()> status;    ///< A JSON object.
  std::function<std::string()> counters;  ///< A JSON object.
  std::function<Result<void>(const std::string& path)> snapshot;
  std::function<Result<void>(const std::string& path)> suspend;  ///< The same, and the machine stops there.
  std::function<void()> stop;
};

/// The longest request line that is looked at, in bytes.
inline constexpr std::size_t longest_request = 4096;

/// Answers one request line; never fails: a bad request gets {"ok": false, "error": ...}. The line may be hostile.
std::string answer_request(std::string_view line, const ControlHandlers& handlers);

/// The answer to a request that has no end within longest_request.
std::string refuse_long_request();

/// The request line for a command's name, without the line end; what `vpmu ctl` sends.
/// `file` is for the command that has one.
std::string make_request(std::string_view command, std::string_view file = {});

}  // namespace vmm
