#include "control/protocol.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "support/error.hpp"

namespace vmm {
namespace {

std::string refusal(const std::string& reason) {
  return nlohmann::json{{"ok", false}, {"error", reason}}.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string answer_request(std::string_view line, const ControlHandlers& handlers, Fd file) {
  const auto request = nlohmann::json::parse(line, nullptr, false);
  if (request.is_discarded() || !request.is_object()) {
    return refusal("not a JSON object");
  }
  const auto member = request.find("command");
  if (member == request.end() || !member->is_string()) {
    return refusal("no \"command\"; known: status, counters, snapshot, suspend, stop");
  }
  const auto& command = member->get_ref<const std::string&>();
  if (command == "status") {
    return fmt::format(R"({{"ok": true, "status": {}}})", handlers.status());
  }
  if (command == "counters") {
    return fmt::format(R"({{"ok": true, "counters": {}}})", handlers.counters());
  }
  if (command == "snapshot" || command == "suspend") {
    if (!file.valid()) return refusal("no file to write the snapshot to came with the request; `vpmu ctl` sends one");
    const auto written = (command == "suspend" ? handlers.suspend : handlers.snapshot)(std::move(file));
    return written ? R"({"ok": true})" : refusal(describe(written.error()));
  }
  if (command == "stop") {
    handlers.stop();
    return R"({"ok": true})";
  }
  return refusal(
      fmt::format("unknown command \"{}\"; known: status, counters, snapshot, suspend, stop", printable(command)));
}

std::string refuse_long_request() {
  return refusal(fmt::format("a request of more than {} bytes; the connection ends", longest_request));
}

std::string make_request(std::string_view command) {
  return nlohmann::json{{"command", command}}.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace vmm
