#include "attach/environment.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "machine/config.hpp"

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
  MachineConfig config{.kernel = ""};
  config.model = model;
  if (const std::string source = variable("VPMU_SOURCE"); !source.empty()) config.source = source;
  const std::string choice = settle_source(config);
  VMM_ASSIGN(const ResolvedConfig resolved, resolve(config));
  if (resolved.passes_through())
    return usage_error("the source kvm is the VMM's own PMU, without this library", "leave VPMU_MODEL away, or give another VPMU_SOURCE");
  return std::optional{AttachEnvironment{.options = {.model = resolved.model, .source = std::string{resolved.source}, .source_choice = choice},
                                         .log = variable("VPMU_LOG"),
                                         .statistics = variable("VPMU_STATS")}};
}

Log make_log(const AttachEnvironment& environment) {
  std::FILE* const opened = environment.log.empty() ? nullptr : std::fopen(environment.log.c_str(), "ae");
  if (opened == nullptr && !environment.log.empty())
    std::fprintf(stderr, "vpmu: cannot open VPMU_LOG=%s: %s; messages come here\n", environment.log.c_str(), errno_text(errno).c_str());
  if (opened == nullptr)
    return Log{[](LogLevel level, std::string_view line) {
                 std::fprintf(stderr, "vpmu: %s: %s\n", std::string{name_of(level)}.c_str(), std::string{line}.c_str());
               },
               LogLevel::warning};
  const std::shared_ptr<std::FILE> file{opened, [](std::FILE* f) { std::fclose(f); }};
  return Log{[file](LogLevel level, std::string_view line) {
               std::fprintf(file.get(), "%s: %s\n", std::string{name_of(level)}.c_str(), std::string{line}.c_str());
               std::fflush(file.get());
             },
             LogLevel::debug};
}

}  // namespace vmm
