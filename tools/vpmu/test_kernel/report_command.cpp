#include "test_kernel/report_command.hpp"

#include <memory>

#include "command_line.hpp"
#include "test_kernel/delivery.hpp"
#include "test_kernel/merge.hpp"

namespace vmm::tool {
namespace {

struct ReportArguments {
  std::string file;
  std::vector<std::string> files;
  DeliveryOptions delivery;
};

Result<KernelReport> read_one(const ReportArguments& arguments) {
  return read_report_file(arguments.file, "the report");
}

Result<KernelReport> merge_files(const ReportArguments& arguments) {
  if (arguments.files.size() > max_shards) return usage_error("more reports than there can be shards", "give fewer");
  std::vector<ShardReport> parts;
  for (const std::string& file : arguments.files) {
    VMM_ASSIGN(auto report, read_report_file(file, "the report"));
    parts.push_back({.file = file, .report = std::move(report)});
  }
  return merge(parts);
}

using Source = Result<KernelReport> (*)(const ReportArguments& arguments);

Result<int> deliver(const ReportArguments& arguments, Source source) {
  VMM_ASSIGN(const KernelReport report, source(arguments));
  VMM_ASSIGN(auto delivery, Delivery::open(arguments.delivery));
  return delivery.deliver(report);
}

Command add_action(Command& report, const char* name, const char* help, Source source,
                   const std::shared_ptr<ReportArguments>& arguments, int& exit_code) {
  Command command = report.add_command(name, help);
  add_delivery_options(command, arguments->delivery);
  command.set_exit_codes(
      {{.code = "0", .meaning = "all passed"},
       {.code = "1",
        .meaning = "a check failed (with --baseline, one that had not failed before), or a shard is missing"},
       {.code = "2", .meaning = "wrong use"},
       {.code = "3", .meaning = "no guest could run"}});
  command.when_given([arguments, source, &exit_code] {
    const auto code = deliver(*arguments, source);
    exit_code = code ? *code : tell_error("vpmu report", code.error());
  });
  return command;
}

}  // namespace

void add_report(Command& app, int& exit_code) {
  auto arguments = std::make_shared<ReportArguments>();
  Command report = app.add_command("report", "show reports of `vpmu test-kernel`, or merge those of all shards");
  report.require_commands(1, 1);
  report.add_example("vpmu report merge 1.json 2.json",
                     "merges the reports of all `test-kernel --shard` runs; a missing shard is a failure");
  add_action(report, "show", "show a report in another format, or what changed since another report", read_one,
             arguments, exit_code)
      .add_option("file", arguments->file, "a report that --format json has written")
      .required()
      .takes_file();
  add_action(report, "merge", "merge the reports of all shards into one; a missing shard is a failure", merge_files,
             arguments, exit_code)
      .add_option("files", arguments->files, "reports that --format json has written, one for each shard")
      .required()
      .takes_file();
}

}  // namespace vmm::tool
