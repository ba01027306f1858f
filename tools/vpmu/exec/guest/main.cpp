// The init of `vpmu exec`: process 1 of the guest. ../README.md describes what it does.
#include <sys/reboot.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "exec/guest/control.hpp"
#include "exec/guest/mounts.hpp"
#include "exec/guest/ports.hpp"
#include "exec/guest/session.hpp"
#include "exec/guest/settings.hpp"
#include "exec/guest/system.hpp"

namespace vmm::tool::guest {
namespace {

/// From the initramfs or, if that has none, from the host: this machine has booted, and asks for it.
Result<ExecRequest> take_request(Control& control, Announcements& announcements) {
  const std::string path = "/" + std::string{exec_request_file};
  if (::access(path.c_str(), F_OK) == 0) {
    VMM_ASSIGN(const std::string file, read_file(path));
    return read_request(file);
  }
  control.say(ReadyLine{});
  VMM_ASSIGN(const Fd port, open_port("vpmu.request", announcements));
  VMM_ASSIGN(const std::string text, read_port(port));
  return read_request(text);
}

/// Sets the guest up as the request says.
Result<void> prepare(const ExecRequest& request) {
  VMM_TRY(load_modules(request));
  VMM_TRY(mount_root(request));
  return apply_settings(request);
}

Result<StreamPorts> open_stream_ports(const ExecRequest& request, Announcements& announcements) {
  StreamPorts ports;
  VMM_ASSIGN(ports.input, open_port("vpmu.stdin", announcements));
  VMM_ASSIGN(ports.output, open_port("vpmu.stdout", announcements));
  if (!request.terminal) {
    VMM_ASSIGN(ports.error, open_port("vpmu.stderr", announcements));
  }
  return ports;
}

Result<void> run_command(const ExecRequest& request, StreamPorts ports, Control& control) {
  log("the command starts");
  auto command = start_command(request, std::move(ports), control.port());
  if (!command) {
    control.say(command.error().error);
    control.say(WrittenLine{});
    control.say(ExitLine{command.error().code});
    return {};
  }
  return Session{control, std::move(*command)}.run();
}

Result<void> live(Control& control) {
  VMM_TRY(mount_first());
  log("init starts");
  VMM_ASSIGN(Announcements announcements, Announcements::create());
  const auto loaded = load_first_modules();
  // Whether or not this worked, the host has to be told.
  VMM_ASSIGN(Fd port, open_port("vpmu.control", announcements));
  control.attach(std::move(port));
  VMM_TRY(loaded);
  VMM_ASSIGN(const ExecRequest request, take_request(control, announcements));
  VMM_TRY(prepare(request));
  VMM_ASSIGN(StreamPorts ports, open_stream_ports(request, announcements));
  return run_command(request, std::move(ports), control);
}

}  // namespace
}  // namespace vmm::tool::guest

int main() {
  ::umask(0);
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t children{};
  ::sigemptyset(&children);
  ::sigaddset(&children, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &children, nullptr);
  vmm::tool::guest::Control control;
  if (const auto lived = vmm::tool::guest::live(control); !lived) {
    control.say(lived.error());
    control.say(vmm::tool::WrittenLine{});
    control.say(vmm::tool::ExitLine{vmm::tool::exec_init_failed});
  }
  control.wait_for_off();
  ::sync();
  ::reboot(RB_POWER_OFF);
  return 1;
}
