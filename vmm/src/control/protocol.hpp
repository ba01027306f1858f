#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

/// The control protocol: each request is one line {"command": "status" | "counters" | "snapshot" | "suspend" | "stop"},
/// each reply one line of JSON with "ok". With "snapshot" and "suspend" comes the descriptor of a file to write
/// (SCM_RIGHTS): the machine opens none itself.

/// The answer to "status".
struct MachineStatus {
  std::string state;
  std::size_t cpus{};
  std::uint64_t memory_bytes{};
};

/// What the protocol needs of a machine.
struct ControlHandlers {
  std::function<MachineStatus()> status;
  std::function<std::string()> counters;  ///< A JSON object, such as to_json() makes of MachineStatistics.
  std::function<Result<void>(Fd file)> snapshot;
  std::function<Result<void>(Fd file)> suspend;  ///< The same, after which the machine stops.
  std::function<void()> stop;
};

/// The longest request line that is looked at, in bytes.
inline constexpr std::size_t longest_request = 4096;

/// Answers one request line; never fails: a bad request gets {"ok": false, "error": ...}. The line may be hostile.
/// `file` is the descriptor that came with it.
std::string answer_request(std::string_view line, const ControlHandlers& handlers, Fd file = {});

/// The answer to a request that is longer than longest_request.
std::string refuse_long_request();

/// The request line for a command's name, without the line end; what `vpmu ctl` sends.
std::string make_request(std::string_view command);

}  // namespace vmm
