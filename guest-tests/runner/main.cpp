#include <fmt/format.h>
#include <fnmatch.h>

#include <cstdio>
#include <fstream>

#include "command_line.hpp"
#include "machine/automatic.hpp"
#include "report.hpp"
#include "support/error.hpp"
#include "test_kernel.hpp"
#include "test_run.hpp"

namespace {

constexpr int exit_passed = 0, exit_failed = 1, exit_usage = 2;

struct Arguments {
  std::string kernel;
  std::string model{"skylake"};
  std::string source{"clock"};
  std::string accel{"kvm"};
  std::string time{"instructions"};
  std::string filter{"*"};
  std::string junit_file;
  unsigned threads{2};
  unsigned seconds{20};
  std::uint32_t compile_after{vpmu::exec::Compiling{}.after};
  bool list{};
  bool statistics{};
  bool lengthy{};
};

int report_error(const vmm::Error& error) {
  fmt::print(stderr, "guest-tests: {}\n", vmm::describe(error));
  return error.kind == vmm::ErrorKind::usage ? exit_usage : exit_failed;
}

vmm::Result<gt_runner::RunOptions> options_of(const Arguments& arguments) {
  if (arguments.accel != "kvm" && arguments.accel != "soft")
    return vmm::usage_error(fmt::format("unknown accelerator '{}'", vmm::printable(arguments.accel)),
                            "known: kvm, soft");
  if (arguments.time != "instructions" && arguments.time != "pipeline")
    return vmm::usage_error(fmt::format("unknown time '{}'", vmm::printable(arguments.time)),
                            "known: instructions, pipeline");
  // Machine::create does this too, but only when a test runs: a wrong name must not skip every test first.
  vmm::MachineConfig machine{.kernel = arguments.kernel,
                             .threads_per_core = arguments.threads,
                             .model = arguments.model,
                             .source = arguments.source,
                             .accel = arguments.accel == "soft" ? vmm::Accel::soft : vmm::Accel::kvm};
  VMM_TRY(vmm::choose_automatic(machine));
  VMM_ASSIGN(const vmm::ResolvedConfig known, vmm::resolve(machine));
  return gt_runner::RunOptions{.model = arguments.model,
                               .source = std::string{known.source},
                               .threads_per_core = arguments.threads,
                               .soft = arguments.accel == "soft",
                               .time_limit = std::chrono::seconds{arguments.seconds},
                               .source_options = {.compiling = {.after = arguments.compile_after},
                                                  .time = arguments.time == "pipeline" ? vmm::TimeModel::pipeline
                                                                                       : vmm::TimeModel::instructions},
                               .statistics = arguments.statistics,
                               .lengthy = arguments.lengthy};
}

vmm::Result<int> run(const Arguments& arguments) {
  VMM_ASSIGN(const gt_runner::RunOptions options, options_of(arguments));
  VMM_ASSIGN(const gt_runner::TestKernel kernel, gt_runner::TestKernel::open(arguments.kernel));
  std::vector<gt_runner::TestResult> results;
  for (const gt_runner::Test& test : kernel.tests()) {
    if (::fnmatch(arguments.filter.c_str(), test.name.c_str(), 0) != 0) continue;
    if (arguments.list) {
      fmt::print("{}\n", test.name);
      results.push_back({.name = test.name});
      continue;
    }
    VMM_ASSIGN(gt_runner::TestResult result, gt_runner::run_test(kernel, test, options));
    fmt::print("{}\n", gt_runner::describe(result));
    std::fflush(stdout);
    results.push_back(std::move(result));
  }
  if (results.empty())
    return vmm::usage_error(fmt::format("no test matches '{}'", vmm::printable(arguments.filter)), "--list shows all");
  if (arguments.list) return exit_passed;
  const gt_runner::Totals totals = gt_runner::count(results);
  fmt::print("{}\n", gt_runner::describe(totals));
  if (!arguments.junit_file.empty()) {
    std::ofstream out{arguments.junit_file};
    out << gt_runner::junit(results, arguments.model + "." + arguments.source);
    if (!out.flush()) return vmm::usage_error(fmt::format("cannot write {}", arguments.junit_file));
  }
  // Skipped tests alone say nothing about the PMU.
  return totals.failed == 0 && totals.passed > 0 ? exit_passed : exit_failed;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  vmm::tool::CommandLine app{"Runs guest test kernels, each test in a fresh VM.", "guest-tests"};
  app.add_option("kernel", arguments.kernel, "test kernel, an ELF file").required();
  app.add_option("--model", arguments.model, "CPU model of the virtual PMU").shows_default();
  app.add_option("--source", arguments.source, "counting source").shows_default();
  app.add_option("--threads", arguments.threads, "threads of a core; 1: its CPU has all counters").shows_default();
  app.add_option("--accel", arguments.accel, "what runs the vCPU").shows_default();
  app.add_option("--time", arguments.time, "how long instructions take with the source exact").shows_default();
  app.add_option("--compile-after", arguments.compile_after,
                 "how often the engine begins a block before it compiles it; 0: never")
      .shows_default();
  app.add_option("--filter", arguments.filter, "run only tests whose name matches this glob").shows_default();
  app.add_option("--time-limit", arguments.seconds, "seconds for one test").shows_default().within(1U, 3600U);
  app.add_option("--junit", arguments.junit_file, "write the results to this file as JUnit XML");
  app.add_flag("--list", arguments.list, "print the names of the tests and stop");
  app.add_flag("--statistics", arguments.statistics, "print the virtual PMU's counters after each test");
  app.add_flag("--long", arguments.lengthy, "tests that repeat something do all of it; give them time");
  using Kind = vmm::tool::ParseOutcome::Kind;
  const vmm::tool::ParseOutcome outcome = app.parse(argc, argv);
  if (outcome.kind == Kind::help_shown) return exit_passed;
  if (outcome.kind == Kind::wrong) {
    std::fprintf(stderr, "guest-tests: %s; type `guest-tests --help`\n", outcome.message.c_str());
    return exit_usage;
  }
  const auto code = run(arguments);
  return code ? *code : report_error(code.error());
}
