#pragma once
#include <string>
#include <string_view>

#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm::tool::guest {

/// "what: reason; advice". describe() would bring in the streams and locales of the standard library.
std::string text_of(const Error& error);

/// open(2) without leaving it to what is executed.
Result<Fd> open_file(const std::string& path, int flags);
/// All of a file, also of one whose size the kernel does not know before.
Result<std::string> read_file(const std::string& path);
Result<void> write_file(const std::string& path, std::string_view text);

/// A line for the kernel's log; lost where there is none.
void log(std::string_view text);

/// Milliseconds of the guest's clock.
long now();

}  // namespace vmm::tool::guest
