#include "attach/environment.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "files/output_file.hpp"
#include "machine/automatic.hpp"

namespace vmm {
namespace {

std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace

Result<std::optional<AttachEnvironment>> read_environment() {
  const std::string model = variable("VPMU_MODEL");
  if (model.empty()) return std::optional<AttachEnvironment>{};
  MachineConfig config{.kernel = "", .accel = Accel::kvm};
  config.model = model;
  if (const std::string source = variable("VPMU_SOURCE"); !source.empty()) config.source = source;
  VMM_ASSIGN(const Chosen chosen, choose_automatic(config));
  VMM_ASSIGN(const ResolvedConfig resolved, resolve(config, {.model = "in VPMU_MODEL", .source = "in VPMU_SOURCE"}));
  if (resolved.passes_through())
    return usage_error("VPMU_SOURCE=kvm means the VMM's own PMU, which does not need this library",
                       "unset VPMU_MODEL, or set another VPMU_SOURCE");
  return std::optional{AttachEnvironment{.options = {.model = resolved.model,
                                                     .source = std::string{resolved.source},
                                                     .source_options = config.source_options,
                                                     .source_choice = chosen.source},
                                         .log = variable("VPMU_LOG"),
                                         .statistics = variable("VPMU_STATS")}};
}

std::vector<std::string> unknown_variables() {
  // The last two are of this project's own scripts.
  constexpr std::array<std::string_view, 8> known{"VPMU_MODEL", "VPMU_SOURCE", "VPMU_LOG", "VPMU_STATS",
                                                  "VPMU_QEMU",  "VPMU_CACHE",  "VPMU_KVM", "VPMU_BEDS"};
  std::vector<std::string> unknown;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text{*variable};
    const auto name = text.substr(0, text.find('='));
    if (name.starts_with("VPMU_") && std::ranges::find(known, name) == known.end()) unknown.push_back(printable(name));
  }
  return unknown;
}

Log make_log(const AttachEnvironment& environment) {
  Result<Fd> opened = Fd{};
  if (!environment.log.empty())
    opened = open_to_write(
        environment.log, {.what = "the file of VPMU_LOG", .advice = "messages go to standard error instead"}, O_APPEND);
  if (!opened) std::fprintf(stderr, "vpmu: %s\n", describe(opened.error()).c_str());
  if (!opened || !opened->valid())
    return Log{[](LogLevel level, std::string_view line) {
                 std::fprintf(stderr, "vpmu: %s: %s\n", std::string{name_of(level)}.c_str(), std::string{line}.c_str());
               },
               LogLevel::warning};
  // One call writes a whole line. A line for which the disk has no room is lost.
  return Log{[file = std::make_shared<Fd>(*std::move(opened))](LogLevel level, std::string_view line) {
               (void)write_all(file->get(), std::string{name_of(level)} + ": " + std::string{line} + "\n");
             },
             LogLevel::debug};
}

}  // namespace vmm
