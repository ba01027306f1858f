#include "control/protocol.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tl/expected.hpp>

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

constexpr const char* known = "known: status, counters, snapshot, suspend, stop";

bool is_for_a_file(std::string_view command) { return command == "snapshot" || command == "suspend"; }

/// The command's name, or why there is none.
tl::expected<std::string, std::string> command_of(std::string_view line) {
  const auto request = Json::parse(line, nullptr, false);
  if (request.is_discarded() || !request.is_object())
    return tl::unexpected{std::string{"the request is not a JSON object"}};
  const auto member = request.find("command");
  if (member == request.end() || !member->is_string())
    return tl::unexpected{fmt::format("the request has no \"command\"; {}", known)};
  return member->get<std::string>();
}

std::string answer_at_once(std::string_view command, const ControlHandlers& handlers) {
  if (command == "status") return done("status", as_json(handlers.status()));
  if (command == "counters") return done("counters", Json::parse(handlers.counters()));
  if (command == "stop") {
    handlers.stop();
    return done();
  }
  return refusal(fmt::format("unknown command \"{}\"; {}", printable(command), known));
}

}  // namespace

void answer_request(std::string_view line, const ControlHandlers& handlers, Fd file, const Reply& reply) {
  const auto command = command_of(line);
  if (!command) return reply(refusal(command.error()));
  if (!is_for_a_file(*command)) return reply(answer_at_once(*command, handlers));
  if (!file.valid())
    return reply(refusal("the request has no file to write the snapshot to (SCM_RIGHTS); `vpmu ctl` sends one"));
  (*command == "suspend" ? handlers.suspend : handlers.snapshot)(std::move(file), [reply](const Result<void>& written) {
    reply(written ? done() : refusal(describe(written.error())));
  });
}

std::string refuse_long_request() {
  return refusal(fmt::format("the request has more than {} bytes; the connection is closed", max_request_length));
}

std::string make_request(std::string_view command) { return line_of({{"command", command}}); }

}  // namespace vmm
