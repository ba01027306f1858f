#include "stat/guest_perf.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "exec/exec.hpp"
#include "exec/kernel.hpp"

namespace vmm::tool {
namespace {

Result<std::string> version_of_kernel(const ExecArguments& arguments) {
  VMM_ASSIGN(const std::string path, find_kernel(kernel_places(arguments.kernel)));
  VMM_ASSIGN(KernelFile kernel, look_at_kernel(path));
  return std::move(kernel.version);
}

}  // namespace

bool is_kept_variable(std::string_view variable, const std::vector<std::string>& more) {
  const std::string_view name = variable.substr(0, variable.find('='));
  constexpr std::array kept{"PATH", "HOME", "LANG", "LANGUAGE", "TZ"};
  return std::ranges::find(kept, name) != kept.end() || name.starts_with("LC_") ||
         std::ranges::find(more, name) != more.end();
}

Result<GuestPerfRun> describe_guest(const ExecArguments& arguments) {
  // Settles a copy: run_exec(), in its own process, settles the original.
  MachineOptions chosen = static_cast<const MachineOptions&>(arguments);
  VMM_ASSIGN(chosen.machine.memory_bytes, parse_size(chosen.memory));
  VMM_TRY(choose_automatic(chosen));
  GuestPerfRun run{.accel = std::string{name_of(chosen.machine.accel)},
                   .source = chosen.machine.source,
                   .time = chosen.machine.source_options.time,
                   .changes = chosen.machine.source_options.changes,
                   .kernel = {},
                   .memory_bytes = chosen.machine.memory_bytes};
  VMM_ASSIGN(run.kernel, version_of_kernel(arguments));
  return run;
}

}  // namespace vmm::tool
