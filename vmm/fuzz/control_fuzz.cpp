#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "control/protocol.hpp"
#include "fuzz_input.hpp"

// Random lines as requests to a control socket: each gets one line of JSON that says whether it was done. And random names of files: what a client
// asks for is what the machine is asked for.

namespace {

using vpmu::fuzz::require;

std::uint64_t requests_done = 0;

struct Machine {
  unsigned asked{};
  std::string file;
  vmm::ControlHandlers handlers() {
    const auto write = [this](const std::string& path) {
      ++asked;
      file = path;
      return path.starts_with('/') ? vmm::Result<void>{} : vmm::host_error("cannot write \"" + path + "\"");
    };
    return {.status = [this] { return ++asked, R"({"state": "running"})"; },
            .counters = [this] { return ++asked, R"({"machine": {}, "vcpus": []})"; },
            .snapshot = write,
            .suspend = write,
            .stop = [this] { ++asked; }};
  }
};

/// Whether it was done.
bool ask(std::string_view line, Machine& machine) {
  const std::string reply = vmm::answer_request(line, machine.handlers());
  require(reply.find('\n') == std::string::npos, "an answer is one line");
  const auto parsed = nlohmann::json::parse(reply, nullptr, false);
  require(parsed.is_object() && parsed.contains("ok") && parsed["ok"].is_boolean(), "an answer says whether it was done");
  const bool done = parsed["ok"];
  require(done || (parsed.contains("error") && parsed["error"].is_string() && !parsed["error"].get_ref<const std::string&>().empty()), "or why not");
  require(machine.asked <= 1 && (machine.asked == 1 || !done), "a request does one thing");
  requests_done += done ? 1 : 0;
  return done;
}

bool is_utf8(std::string_view text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

void check_file_name(std::string_view name) {
  const std::string path = "/" + std::string{name};
  const std::string request = vmm::make_request("suspend", path);
  require(request.find('\n') == std::string::npos, "a request is one line");
  Machine machine;
  require(ask(request, machine), "a client's request is understood");
  require(!is_utf8(path) || machine.file == path, "the file is the one that was named");
}

}  // namespace

extern "C" std::uint64_t fuzz_work() { return requests_done; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest{reinterpret_cast<const char*>(data), size};
  if (rest.size() > vmm::longest_request) rest = rest.substr(0, vmm::longest_request);
  check_file_name(rest);
  while (!rest.empty()) {
    const auto line = rest.substr(0, rest.find('\n'));
    Machine machine;
    (void)ask(line, machine);
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  return 0;
}
