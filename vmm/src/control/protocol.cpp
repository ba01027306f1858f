#include "control/protocol.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "support/error.hpp"

namespace vmm {
namespace {

using Json = nlohmann::ordered_json;

/// One line of JSON, whatever bytes its strings have.
std::string line_of(const Json& json) { return json.dump(-1, ' ', true, Json::error_handler_t::replace); }

std::string refusal(const std::string& reason) { return line_of({{"error", reason}, {"ok", false}}); }

std::string done() { return line_of({{"ok", true}}); }

std::string done(const char* what, Json result) { return line_of({{"ok", true}, {what, std::move(result)}}); }

Json as_json(const MachineStatus& status) {
  return {{"state", status.state}, {"cpus", status.cpus}, {"memory_bytes", status.memory_bytes}};
}

}  // namespace

std::string answer_request(std::string_view line, const ControlHandlers& handlers, Fd file) {
  const auto request = Json::parse(line, nullptr, false);
  if (request.is_discarded() || !request.is_object()) {
    return refusal("the request is not a JSON object");
  }
  const auto member = request.find("command");
  if (member == request.end() || !member->is_string()) {
    return refusal("the request has no \"command\"; known: status, counters, snapshot, suspend, stop");
  }
  const auto& command = member->get_ref<const std::string&>();
  if (command == "status") return done("status", as_json(handlers.status()));
  if (command == "counters") return done("counters", Json::parse(handlers.counters()));
  if (command == "snapshot" || command == "suspend") {
    if (!file.valid())
      return refusal("the request has no file to write the snapshot to (SCM_RIGHTS); `vpmu ctl` sends one");
    const auto written = (command == "suspend" ? handlers.suspend : handlers.snapshot)(std::move(file));
    return written ? done() : refusal(describe(written.error()));
  }
  if (command == "stop") {
    handlers.stop();
    return done();
  }
  return refusal(
      fmt::format("unknown command \"{}\"; known: status, counters, snapshot, suspend, stop", printable(command)));
}

std::string refuse_long_request() {
  return refusal(fmt::format("the request has more than {} bytes; the connection is closed", longest_request));
}

std::string make_request(std::string_view command) { return line_of({{"command", command}}); }

}  // namespace vmm
