#include <fcntl.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "control/protocol.hpp"
#include "fuzz_input.hpp"

// Random lines as requests to a control socket, with a file and without: each must get one line of JSON that says
// whether it was done. A file that comes along must reach the machine only if the request is for a file.

namespace {

using vpmu::fuzz::require;

std::uint64_t requests_done = 0;

struct Machine {
  unsigned asked{};
  vmm::ControlHandlers handlers() {
    const auto write = [this](const vmm::Fd& file, const vmm::SnapshotDone& done) {
      ++asked;
      require(file.valid(), "the machine gets a file to write");
      done({});
    };
    return {.status = [this] { return ++asked, vmm::MachineStatus{.state = "running"}; },
            .counters = [this] { return ++asked, R"({"machine": {}, "vcpus": []})"; },
            .snapshot = write,
            .suspend = write,
            .stop = [this] { ++asked; }};
  }
};

/// Whether the answer says that the request was done.
bool ask(std::string_view line, Machine& machine, vmm::Fd file = {}) {
  std::string reply;
  unsigned replies = 0;
  vmm::answer_request(line, machine.handlers(), std::move(file), [&](std::string answer) {
    ++replies;
    reply = std::move(answer);
  });
  require(replies == 1, "a request gets one answer");
  require(reply.find('\n') == std::string::npos, "an answer is one line");
  const auto parsed = nlohmann::json::parse(reply, nullptr, false);
  require(parsed.is_object() && parsed.contains("ok") && parsed["ok"].is_boolean(),
          "an answer says whether it was done");
  const bool done = parsed["ok"];
  require(done || (parsed.contains("error") && parsed["error"].is_string() &&
                   !parsed["error"].get_ref<const std::string&>().empty()),
          "or why not");
  require(machine.asked <= 1 && (machine.asked == 1 || !done), "a request does one thing");
  requests_done += done ? 1 : 0;
  return done;
}

vmm::Fd some_file() {
  static const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  return vmm::Fd{::fcntl(null, F_DUPFD_CLOEXEC, 0)};
}

/// What a client asks for is done, with a file where there has to be one.
void check_commands() {
  for (const std::string_view command : {"status", "counters", "stop", "snapshot", "suspend"}) {
    const std::string request = vmm::make_request(command);
    require(request.find('\n') == std::string::npos, "a request is one line");
    const bool takes_file = command == "snapshot" || command == "suspend";
    Machine with, without;
    require(ask(request, with, some_file()), "a client's request is understood");
    require(ask(request, without) == !takes_file, "nothing is written where there is no file");
  }
}

}  // namespace

extern "C" std::uint64_t fuzz_work() { return requests_done; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest{reinterpret_cast<const char*>(data), size};
  if (rest.size() > vmm::max_request_length) rest = rest.substr(0, vmm::max_request_length);
  static const bool checked = (check_commands(), true);
  require(checked, "once");
  while (!rest.empty()) {
    const auto line = rest.substr(0, rest.find('\n'));
    Machine machine;
    (void)ask(line, machine, line.size() % 2 == 0 ? some_file() : vmm::Fd{});
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  return 0;
}
