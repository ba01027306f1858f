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
  Fd terminal;       ///< Our side of it; none with pipes.
  Fd terminal_user;  ///< Its user's side, held so that it does not hang up before the command is waited for.
  std::optional<Stream> input, output, error;
};

/// Why there is none: a line for the user, and the code that a shell would give.
struct NotStarted {
  Error error;
  int code{exec_init_failed};
};

/// Executes the request's command; `control` is told just before.
tl::expected<Command, NotStarted> start_command(const ExecRequest& request, StreamPorts ports, int control);

}  // namespace vmm::tool::guest
