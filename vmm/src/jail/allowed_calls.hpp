#pragma once
#include <seccomp.h>

#include <vector>

#include "jail/syscall_filter.hpp"

namespace vmm {

/// A system call that is on a list; with several entries any of them allows it.
struct AllowedCall {
  int number;
  std::vector<scmp_arg_cmp> arguments{};  ///< All of which must hold; empty: any arguments.
};

/// The lists. None has a call that opens, makes or removes a file by name, executes a program, makes a process or a
/// socket, connects to one, traces or signals another process, or changes who the process is.
std::vector<AllowedCall> allowed_calls(Confined whom, VcpuNeeds needs);

}  // namespace vmm
