#pragma once
#include <string>
#include <string_view>

#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm::tool::guest {

/// "what: reason; advice". Not by describe(), which would link the streams and locales of the standard library.
std::string text_of(const Error& error);

/// open(2) with O_CLOEXEC.
Result<Fd> open_file(const std::string& path, int flags);
/// All of a file, even if the kernel does not know its size beforehand.
Result<std::string> read_file(const std::string& path);
Result<void> write_file(const std::string& path, std::string_view text);

/// Writes a line to the kernel's log; it is lost if there is none. A quiet console shows errors alone.
void log(std::string_view text);
void log_error(std::string_view text);

/// What to do about a kernel that lacks something.
inline constexpr const char* lacking_advice = "build the kernel with it, or give its modules with --modules";

/// Milliseconds of the guest's clock.
long now();

}  // namespace vmm::tool::guest
