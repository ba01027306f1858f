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
/// each reply one line of JSON with "ok". With "snapshot" and "suspend" comes the descriptor of a file or pipe to write
/// (SCM_RIGHTS): the machine opens none itself.

/// The answer to "status".
struct MachineStatus {
  std::string state;
  std::size_t cpus{};
  std::uint64_t memory_bytes{};
};

/// Takes what became of a snapshot; called once, maybe later.
using SnapshotDone = std::function<void(const Result<void>& written)>;

/// What the protocol needs of a machine.
struct ControlHandlers {
  std::function<MachineStatus()> status;
  std::function<std::string()> counters;  ///< A JSON object, such as to_json() makes of MachineStatistics.
  std::function<void(Fd file, SnapshotDone done)> snapshot;
  std::function<void(Fd file, SnapshotDone done)> suspend;  ///< The same, after which the machine stops.
  std::function<void()> stop;
};

/// The longest request line that is looked at, in bytes.
inline constexpr std::size_t max_request_length = 4096;

/// Takes the answer to a request, a line without its end; called once, before answer_request() returns or later.
using Reply = std::function<void(std::string line)>;

/// Answers one request line; never fails: a bad request gets {"ok": false, "error": ...}. The line may be hostile.
/// `file` is the descriptor that came with it.
void answer_request(std::string_view line, const ControlHandlers& handlers, Fd file, const Reply& reply);

/// The answer to a request that is longer than max_request_length.
std::string refuse_long_request();

/// The request line for a command's name, without the line end; what `vpmu ctl` sends.
std::string make_request(std::string_view command);

}  // namespace vmm
