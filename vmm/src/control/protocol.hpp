#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace vmm {


/// The control protocol: each request is one line {"command": "status" | "counters" | "stop"}, each reply one line of JSON with "ok".

/// What the protocol needs of a machine.
struct ControlHandlers {
  std::function<std::string()> status;    ///< A JSON object.
  std::function<std::string()> counters;  ///< A JSON object.
  std::function<void()> stop;
};

/// The longest request line that is looked at, in bytes.
inline constexpr std::size_t longest_request = 4096;

/// Answers one request line; never fails: a bad request gets {"ok": false, "error": ...}. The line may be hostile.
std::string answer_request(std::string_view line, const ControlHandlers& handlers);

/// The request line for a command's name, without the line end; what `vpmu ctl` sends.
std::string make_request(std::string_view command);

}  // namespace vmm
