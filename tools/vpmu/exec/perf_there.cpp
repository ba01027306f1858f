#include "exec/perf_there.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

namespace vmm::tool {

Result<void> check_for_perf(const std::string& root) {
  if (root != "/") return {};
  const char* const path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    if (::access(fmt::format("{}/perf", rest.substr(0, end)).c_str(), X_OK) == 0) return {};
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return host_error("there is no perf on this machine; the guest counts with this machine's", 0,
                    "install it: apt install linux-perf (Debian), linux-tools-generic (Ubuntu), perf (Fedora)");
}

}  // namespace vmm::tool
