#pragma once
#include <optional>

#include "exec/control_lines.hpp"
#include "exec/guest/stream.hpp"
#include "exec/request.hpp"
#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm::tool::guest {

/// The ports of the command's streams. With a terminal there is none for errors.
struct StreamPorts {
  Fd input;
  Fd output;
  Fd error;
};

/// The command while it runs, and its streams.
struct Command {
  pid_t process{};
  Fd terminal;       ///< Our side of the terminal; none with pipes.
  Fd terminal_user;  ///< The command's side, held open so that the terminal does not hang up too early.
  std::optional<Stream> input, output, error;
};

/// Why the command could not be started: a line for the user, and the exit code that a shell would give.
struct NotStarted {
  Error error;
  int code{exec_init_failed};
};

/// Executes the request's command, and sends StartedLine to `control` just before.
tl::expected<Command, NotStarted> start_command(const ExecRequest& request, StreamPorts ports, int control);

}  // namespace vmm::tool::guest
