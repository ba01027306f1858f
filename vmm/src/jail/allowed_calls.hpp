#pragma once
#include <seccomp.h>

#include <vector>

#include "jail/syscall_filter.hpp"

namespace vmm {

/// An allowed system call. If a list has several entries for it, any of them allows it.
struct AllowedCall {
  int number;
  std::vector<scmp_arg_cmp> arguments{};  ///< All of these must hold; empty: any arguments.
};

/// The list for `whom`. No list has a call that opens, makes or removes a file by name, executes a program, makes a
/// process or a socket, connects a socket, traces or signals another process, or changes the process's user.
std::vector<AllowedCall> allowed_calls(Confined whom, VcpuNeeds needs);

}  // namespace vmm
