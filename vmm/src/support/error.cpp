#include "support/error.hpp"

#include <system_error>

namespace vmm {

std::string errno_text(int system_errno) { return std::generic_category().message(system_errno); }

std::string describe(const Error& error) {
  std::string line = error.what;
  if (error.system_errno != 0) {
    line += ": " + errno_text(error.system_errno);
  }
  if (!error.advice.empty()) {
    line += "; " + error.advice;
  }
  return line;
}

std::string printable(std::string_view text, std::size_t max) {
  std::string out;
  for (const char c : text.substr(0, max)) {
    const auto code = static_cast<unsigned char>(c);
    out += (code < 0x20 || code == 0x7F) ? '?' : c;
  }
  if (text.size() > max) {
    out += "...";
  }
  return out;
}

}  // namespace vmm
