#include "test_kernel/test_kernel.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "command_line.hpp"
#include "exec/exec.hpp"
#include "exec/kernel.hpp"
#include "exec/perf_there.hpp"
#include "machine/config.hpp"
#include "model/own_part.hpp"
#include "shared/set_option.hpp"
#include "tables/models.hpp"
#include "test_kernel/delivery.hpp"
#include "test_kernel/expectations.hpp"
#include "test_kernel/guests.hpp"
#include "test_kernel/selection.hpp"

namespace vmm::tool {
namespace {

struct TestKernelArguments {
  std::string kernel, models, suite{"quick"}, shard, modules, append, accel{"soft"}, time{"instructions"}, wrong;
  std::vector<std::string> set;
  vpmu::uarch::ProfileChanges changes;  ///< Those of `set`.
  DeliveryOptions delivery;
  unsigned jobs{};
  std::optional<double> timeout;
  bool quiet{}, no_cache{};

  /// The full suite uses perf, and therefore this machine's root.
  [[nodiscard]] bool is_full() const { return suite == "full"; }
};

// nowatchdog: the watchdog would occupy a counter. The others: each sample has an interrupt, and the kernel would drop
// samples if interrupts took much of its time.
constexpr std::string_view kernel_options =
    "nowatchdog sysctl.kernel.dmesg_restrict=0 sysctl.kernel.perf_event_max_sample_rate=100000000 "
    "sysctl.kernel.perf_cpu_time_max_percent=0";

/// Reads the kernel's file and identifies the kernel.
Result<KernelReport> describe_kernel(const std::string& kernel) {
  VMM_ASSIGN(const KernelFile file, look_at_kernel(kernel));
  KernelReport report;
  report.kernel = kernel;
  report.version = file.version;
  report.checksum = fmt::format("{:016x}", file.checksum);
  return report;
}

/// The check of this model that is made to expect something wrong; empty: none.
Result<std::string> wrong_check_of(const std::string& wrong, std::string_view model) {
  if (wrong.empty()) return std::string{};
  const std::size_t slash = wrong.find('/');
  if (slash == std::string::npos || find_machine_model(wrong.substr(0, slash)) == nullptr)
    return usage_error("--expect-wrong " + printable(wrong) + " is no check", "give MODEL/CHECK");
  return wrong.substr(0, slash) == model ? wrong.substr(slash + 1) : std::string{};
}

Result<std::vector<std::string>> command_of(const TestKernelArguments& arguments, const MachineModel& model,
                                            const CheckerRoot& root) {
  const double patience = arguments.is_full() ? 1500 : 300;
  std::vector<std::string> command{"vpmu",      "exec",
                                   "--accel",   arguments.accel,
                                   "--source",  "exact",
                                   "--time",    arguments.time,
                                   "--model",   std::string{model.name},
                                   "--kernel",  arguments.kernel,
                                   "--root",    arguments.is_full() ? "/" : root.path(),
                                   "--append",  fmt::format("{} {}", kernel_options, arguments.append),
                                   "--timeout", fmt::format("{}", arguments.timeout.value_or(patience))};
  if (arguments.no_cache) command.emplace_back("--no-cache");
  if (!arguments.changes.empty()) command.insert(command.end(), {"--set", arguments.changes.text()});
  if (!arguments.modules.empty()) command.insert(command.end(), {"--modules", arguments.modules});
  command.insert(command.end(),
                 {"--", arguments.is_full() ? root.path() + CheckerRoot::program : CheckerRoot::program});
  const auto told = checker_arguments(model, MachineConfig{}.threads_per_core);
  command.insert(command.end(), told.begin(), told.end());
  if (arguments.is_full()) command.emplace_back("perf=1");
  VMM_ASSIGN(const std::string wrong, wrong_check_of(arguments.wrong, model.name));
  if (!wrong.empty()) command.push_back("wrong=" + wrong);
  return command;
}

Result<void> check_changes(const MachineModel& model, const vpmu::uarch::ProfileChanges& changes) {
  if (const auto profile = changed_profile(vpmu::describe(model.generation), changes); !profile)
    return usage_error(fmt::format("{}: {}", model.name, profile.error().what),
                       profile.error().advice + ", or other --models");
  return {};
}

void tell_progress(std::size_t done, std::size_t all, const ModelResult& result) {
  const auto failed = std::ranges::count(result.checks, Outcome::fail, &CheckResult::outcome);
  std::fprintf(stderr, "vpmu test-kernel: %zu of %zu: %s: %s\n", done, all, result.model.c_str(),
               failed == 0 ? "passed" : fmt::format("{} of {} failed", failed, result.checks.size()).c_str());
}

Result<std::vector<ModelResult>> run_models(const TestKernelArguments& arguments,
                                            const std::vector<const MachineModel*>& models) {
  VMM_ASSIGN(const CheckerRoot root, CheckerRoot::create());
  std::vector<std::vector<std::string>> commands;
  for (const MachineModel* const model : models) {
    VMM_ASSIGN(commands.emplace_back(), command_of(arguments, *model, root));
  }
  const unsigned jobs = arguments.jobs != 0 ? arguments.jobs : std::max(1U, std::thread::hardware_concurrency());
  std::vector<ModelResult> results(models.size());
  std::size_t done = 0;
  VMM_TRY(run_guests(commands, jobs, [&](std::size_t number, const GuestEnd& end) {
    results[number] = result_of(models[number]->name, end);
    ++done;
    if (!arguments.quiet) tell_progress(done, models.size(), results[number]);
  }));
  return results;
}

Result<int> test(TestKernelArguments& arguments) {
  VMM_ASSIGN(const Selection selection, select_models(arguments.models, arguments.shard));
  VMM_ASSIGN(arguments.changes, read_changes(arguments.set));
  for (const MachineModel* const model : selection.all) VMM_TRY(check_changes(*model, arguments.changes));
  if (arguments.is_full()) VMM_TRY(check_for_perf("/"));
  VMM_ASSIGN(KernelReport report, describe_kernel(arguments.kernel));
  report.suite = arguments.suite;
  report.time = arguments.time;
  report.set = arguments.changes.text();
  report.shard = selection.shard;
  for (const MachineModel* const model : selection.all) report.asked.emplace_back(model->name);
  VMM_ASSIGN(auto delivery, Delivery::open(arguments.delivery));
  VMM_ASSIGN(report.models, run_models(arguments, selection.own));
  VMM_ASSIGN(const int code, delivery.deliver(report));
  if (!arguments.quiet)
    std::fprintf(stderr, "vpmu test-kernel: Linux %s: %s\n", report.version.c_str(), describe_counts(report).c_str());
  return code;
}

int test_and_report(TestKernelArguments& arguments) {
  const auto code = test(arguments);
  return code ? *code : tell_error("vpmu test-kernel", code.error());
}

/// The single values of --models.
std::vector<std::string> all_and_models() {
  auto names = model_names();
  names.insert(names.begin(), "all");
  return names;
}

}  // namespace

void add_test_kernel(Command& app, int& exit_code) {
  auto arguments = std::make_shared<TestKernelArguments>();
  Command test = app.add_command("test-kernel", "check a kernel's perf code on every CPU model");
  test.add_option("kernel", arguments->kernel, "the kernel's bzImage").required().takes_file();
  test.add_option("--models", arguments->models,
                  "all, or a list separated by commas; default: one of each kind of processor that Linux knows")
      .suggests(all_and_models());
  test.add_option("--suite", arguments->suite, "which checks; full: also those with this machine's perf")
      .shows_default()
      .one_of({"quick", "full"});
  add_delivery_options(test, arguments->delivery);
  test.add_option("--jobs", arguments->jobs, "guests at a time; 0: as many as there are CPUs").shows_default();
  test.add_option("--shard", arguments->shard, "I/N: test only the I-th of every N models");
  test.add_option("--modules", arguments->modules, "the kernel's modules; default: where packages have them")
      .takes_file();
  test.add_option("--append", arguments->append, "added to the kernel's command line");
  test.add_flag("--no-cache", arguments->no_cache, no_cache_help);
  test.add_option("--accel", arguments->accel, "what runs the guests' code: soft (the same in each run), kvm")
      .shows_default()
      .one_of({"soft", "kvm"});
  test.add_option("--time", arguments->time,
                  "how long instructions take in the guests: a cycle each, or by a model of the core's pipeline")
      .shows_default()
      .one_of({"instructions", "pipeline"});
  add_set_option(test, arguments->set);
  test.add_option("--timeout", arguments->timeout,
                  "seconds for each guest; 0: no limit. Default: 300, with the full suite 1500")
      .within(0.0, 1e9);
  test.add_option("--expect-wrong", arguments->wrong,
                  "MODEL/CHECK: make this check expect something wrong, to see its failure reported");
  test.add_flag("--quiet", arguments->quiet, "no progress on standard error");
  test.set_exit_codes({{.code = "0", .meaning = "all passed"},
                       {.code = "1", .meaning = "a check failed; with --baseline, one that had not failed before"},
                       {.code = "2", .meaning = "wrong use"},
                       {.code = "3", .meaning = "no guest could run"}});
  test.add_example("vpmu test-kernel bzImage",
                   "tests a kernel's perf code on each CPU model; prints a table, TAP or JUnit");
  test.when_given([arguments, &exit_code] { exit_code = test_and_report(*arguments); });
}

}  // namespace vmm::tool
