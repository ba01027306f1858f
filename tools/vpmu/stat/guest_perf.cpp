#include "stat/guest_perf.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>

#include "exec/exec.hpp"
#include "exec/kernel.hpp"
#include "files/input_file.hpp"

namespace vmm::tool {
namespace {

Result<std::string> version_of_kernel(const ExecArguments& arguments) {
  constexpr std::uint64_t longest_kernel = 1ULL << 30U;
  VMM_ASSIGN(const std::string path, find_kernel(kernel_places(arguments.kernel)));
  VMM_ASSIGN(
      const auto image,
      read_whole_file(path, {.what = "the kernel", .advice = "give a readable bzImage with --kernel"}, longest_kernel));
  return kernel_version(image);
}

}  // namespace

Result<void> check_for_perf(const std::string& root) {
  if (root != "/") return {};
  const char* const path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    if (::access(fmt::format("{}/perf", rest.substr(0, end)).c_str(), X_OK) == 0) return {};
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return host_error("there is no perf on this machine, which counts in the guest", 0,
                    "install it: apt install linux-perf (Debian), linux-tools-generic (Ubuntu), perf (Fedora)");
}

bool is_kept_variable(std::string_view variable, const std::vector<std::string>& more) {
  const std::string_view name = variable.substr(0, variable.find('='));
  constexpr std::array kept{"PATH", "HOME", "LANG", "LANGUAGE", "TZ"};
  return std::ranges::find(kept, name) != kept.end() || name.starts_with("LC_") ||
         std::ranges::find(more, name) != more.end();
}

Result<GuestPerfRun> describe_guest(const ExecArguments& arguments) {
  // Of a copy: the machine's own process settles it for itself.
  MachineOptions settled = static_cast<const MachineOptions&>(arguments);
  VMM_ASSIGN(settled.machine.memory_bytes, parse_size(settled.memory));
  VMM_TRY(settle(settled));
  GuestPerfRun run{.accel = settled.machine.accel == Accel::soft ? "soft" : "kvm",
                   .source = settled.machine.source,
                   .kernel = {},
                   .memory_bytes = settled.machine.memory_bytes};
  // As run_exec() does: whoever measures one command wants its counts.
  if (settled.machine.source_was_open && run.source == "clock") run.source = "exact";
  VMM_ASSIGN(run.kernel, version_of_kernel(arguments));
  return run;
}

}  // namespace vmm::tool
