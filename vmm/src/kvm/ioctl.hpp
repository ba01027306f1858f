#pragma once
#include <cstdint>
#include <map>
#include <string_view>

#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

/// The system call itself, never the C library's ioctl(), which a library of ours may have replaced (attach/).
/// @return -1 with errno set on failure.
int ioctl_call(int fd, unsigned long request, std::uintptr_t argument);

/// One ioctl whose argument is a structure. Repeats it when a signal interrupts it (EINTR); KVM_RUN does not go through
/// here.
/// @param name  the request as the kernel spells it, for the error text.
/// @return the (non-negative) result. Cost: one system call.
Result<int> ioctl_with(const Fd& fd, unsigned long request, const char* name, void* argument);

/// The same for an argument that is a plain number.
Result<int> ioctl_value(const Fd& fd, unsigned long request, const char* name, std::uintptr_t argument = 0);

/// How many ioctls of both kinds this thread has made, by request.
const std::map<std::string_view, std::uint64_t>& ioctls_made();

}  // namespace vmm

/// Calls ioctl_with and names the request by its own spelling.
#define VMM_IOCTL(fd, request, argument) ::vmm::ioctl_with((fd), (request), #request, (argument))
/// Calls ioctl_value and names the request by its own spelling.
#define VMM_IOCTL_VALUE(fd, request, value) ::vmm::ioctl_value((fd), (request), #request, (value))
