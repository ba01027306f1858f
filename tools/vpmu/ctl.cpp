#include "ctl.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "control/protocol.hpp"
#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm::tool {
namespace {

struct CtlArguments {
  std::string path;
  std::string command;
  std::string file;
};

Result<Fd> connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return usage_error("the socket path " + printable(path) + " is too long", "give the path of `vpmu run --control`");
  }
  path.copy(address.sun_path, path.size());
  Fd socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!socket.valid() || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return host_error("no machine answers at " + printable(path), errno, "give the path of `vpmu run --control`");
  }
  return socket;
}

Result<std::string> read_line(const Fd& socket) {
  std::string line;
  char byte{};
  for (;;) {
    const auto got = ::read(socket.get(), &byte, 1);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return host_error("the machine ended the connection", got < 0 ? errno : 0);
    }
    if (byte == '\n') {
      return line;
    }
    line += byte;
  }
}

Result<std::string> ask(const CtlArguments& arguments) {
  VMM_ASSIGN(const Fd socket, connect_to(arguments.path));
  const auto request = make_request(arguments.command, arguments.file) + "\n";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
    return host_error("cannot send to the machine", errno);
  }
  return read_line(socket);
}

int ask_and_print(const CtlArguments& arguments) {
  const auto reply = ask(arguments);
  if (!reply) {
    std::fprintf(stderr, "vpmu ctl: %s\n", describe(reply.error()).c_str());
    return reply.error().kind == ErrorKind::usage ? 2 : 1;
  }
  std::printf("%s\n", reply->c_str());
  return reply->starts_with(R"({"ok": true)") ? 0 : 1;
}

}  // namespace

void add_ctl(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<CtlArguments>();
  CLI::App* ctl = app.add_subcommand("ctl", "ask a running machine");
  ctl->add_option("socket", arguments->path, "the path given to `vpmu run --control`")->required();
  ctl->add_option("command", arguments->command, "status, counters, snapshot (and go on), suspend (save and stop) or stop")
      ->required()
      ->check(CLI::IsMember({"status", "counters", "snapshot", "suspend", "stop"}));
  ctl->add_option("file", arguments->file, "for snapshot and suspend: the file to write, which `vpmu run --restore` takes");
  ctl->callback([arguments, &exit_code] {
    // The machine has a directory of its own.
    if (!arguments->file.empty()) arguments->file = std::filesystem::absolute(arguments->file);
    exit_code = ask_and_print(*arguments);
  });
}

}  // namespace vmm::tool
