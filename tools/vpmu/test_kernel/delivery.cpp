#include "test_kernel/delivery.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include <fmt/format.h>

#include "command_line.hpp"
#include "files/input_file.hpp"
#include "shared/output.hpp"
#include "test_kernel/report.hpp"
#include "test_kernel/test_kernel.hpp"

namespace vmm::tool {
namespace {

struct Format {
  std::string_view name;
  std::string (*write)(const KernelReport& report);
};
constexpr auto formats = std::to_array<Format>(
    {{"table", report_as_table}, {"tap", report_as_tap}, {"junit", report_as_junit}, {"json", report_as_json}});

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const Format& format : formats) names.emplace_back(format.name);
  return names;
}

int exit_code_of(const KernelReport& report, const std::optional<std::vector<Change>>& changed) {
  if (!has_run(report)) return test_kernel_cannot_run;
  const bool failed =
      changed ? std::ranges::count(*changed, Change::Kind::worse, &Change::kind) > 0 : count(report, Outcome::fail) > 0;
  return failed ? test_kernel_failed : test_kernel_passed;
}

}  // namespace

void add_delivery_options(Command& command, DeliveryOptions& options) {
  command.add_option("--format", options.format, "format of the report").shows_default().one_of(format_names());
  command.add_option("--output", options.output, "write the report to this file, not to standard output").takes_file();
  command
      .add_option("--baseline", options.baseline,
                  "print only what changed since this report, which --format json had written")
      .takes_file();
}

Result<KernelReport> read_report_file(const std::string& path, const std::string& what) {
  constexpr std::uint64_t max = 64ULL << 20U;
  VMM_ASSIGN(const auto bytes, read_whole_file(path, {.what = what, .advice = "give a report of --format json"}, max));
  return read_report({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

Result<Delivery> Delivery::open(DeliveryOptions options) {
  Delivery delivery{std::move(options)};
  if (!delivery.options_.baseline.empty()) {
    VMM_ASSIGN(delivery.before_, read_report_file(delivery.options_.baseline, "the baseline"));
  }
  if (!delivery.options_.output.empty()) {
    VMM_ASSIGN(auto file,
               OutputFile::open(delivery.options_.output,
                                {.what = "the report", .advice = "give a file that can be written with --output"}));
    delivery.output_.emplace(std::move(file));
  }
  return delivery;
}

Result<int> Delivery::deliver(const KernelReport& report) {
  const std::string text = std::ranges::find(formats, options_.format, &Format::name)->write(report);
  if (output_)
    VMM_TRY(output_->replace(text));
  else if (!before_)
    print(text);
  std::optional<std::vector<Change>> changed;
  if (before_) {
    changed = changes(*before_, report);
    print(describe(*changed, *before_, report));
  }
  return exit_code_of(report, changed);
}

std::string describe_counts(const KernelReport& report) {
  return fmt::format("{} passed, {} failed, {} skipped", count(report, Outcome::pass), count(report, Outcome::fail),
                     count(report, Outcome::skip));
}

int tell_error(const char* command, const Error& error) {
  std::fprintf(stderr, "%s: %s\n", command, describe(error).c_str());
  return error.kind == ErrorKind::usage ? test_kernel_usage : test_kernel_cannot_run;
}

}  // namespace vmm::tool
