#include <cstdio>
#include <exception>
#include <string>

#include "cache/cache.hpp"
#include "command_line.hpp"
#include "ctl/ctl.hpp"
#include "doctor/doctor.hpp"
#include "documents.hpp"
#include "exec/exec.hpp"
#include "profile/profile.hpp"
#include "run/run.hpp"
#include "shared/output.hpp"
#include "shared/process.hpp"
#include "stat/compare.hpp"
#include "stat/stat.hpp"
#include "tables/events.hpp"
#include "tables/models.hpp"
#include "tables/records.hpp"
#include "test_kernel/report_command.hpp"
#include "test_kernel/test_kernel.hpp"
#include "version.hpp"
#include "virt/virt.hpp"

#ifdef __SANITIZE_ADDRESS__
// The leak checker stops all threads as a debugger does, which the jail forbids.
extern "C" int __lsan_is_turned_off() { return 1; }
#endif

namespace {

constexpr int exit_usage = 2;

int report_wrong_use(const vmm::tool::ParseOutcome& outcome) {
  const std::string command = outcome.command.empty() ? "vpmu" : "vpmu " + outcome.command;
  std::fprintf(stderr, "%s: %s; type `%s --help`\n", command.c_str(), outcome.message.c_str(), command.c_str());
  return exit_usage;
}

int report_no_command(const vmm::tool::CommandDescription& program) {
  std::string names;
  for (const auto& command : program.commands) names += command.name + ", ";
  std::fprintf(stderr, "vpmu: no command; give one of %sor type `vpmu --help`\n", names.c_str());
  return exit_usage;
}

}  // namespace

int main(int argc, char** argv) try {
  using vmm::tool::ParseOutcome;
  if (const int failed = vmm::tool::prepare_process(); failed != 0) return failed;
  vmm::tool::CommandLine app{"A virtual Intel PMU with PEBS for KVM guests", "vpmu"};
  app.require_commands(0, 1);
  app.set_footer("`vpmu COMMAND --help` lists the options and exit codes of a command.");
  app.set_exit_codes({{.code = "0", .meaning = "done"},
                      {.code = "1", .meaning = "standard output could not be written"},
                      {.code = "2", .meaning = "no such command or option, or a wrong value"},
                      {.code = "any other", .meaning = "see the command's help"}});
  app.add_example("vpmu --version", "prints version, commit and compiler, and what this host has for it");
  bool wants_version = false;
  app.add_flag("--version", wants_version,
               "print version, commit and compiler, and what this host's CPU and KVM have for it");
  int exit_code = 0;
  app.begin_section("Run a command in a guest");
  vmm::tool::add_exec(app, exit_code);
  vmm::tool::add_stat(app, exit_code);
  vmm::tool::add_compare(app, exit_code);
  vmm::tool::add_profile(app, exit_code);
  app.begin_section("Test kernels, run machines");
  vmm::tool::add_test_kernel(app, exit_code);
  vmm::tool::add_report(app, exit_code);
  vmm::tool::add_run(app, exit_code);
  vmm::tool::add_ctl(app, exit_code);
  vmm::tool::add_virt(app, exit_code);
  app.begin_section("Look something up");
  vmm::tool::add_doctor(app, exit_code);
  vmm::tool::add_models(app, exit_code);
  vmm::tool::add_events(app, exit_code);
  vmm::tool::add_records(app, exit_code);
  app.begin_section("Look after vpmu");
  vmm::tool::add_cache(app, exit_code);
  vmm::tool::add_documents(app, exit_code);
  const ParseOutcome outcome = app.parse(argc, argv);
  if (outcome.kind == ParseOutcome::Kind::help_shown) return vmm::tool::finish_output(0);
  if (outcome.kind == ParseOutcome::Kind::wrong) return vmm::tool::finish_output(report_wrong_use(outcome));
  if (wants_version) {
    vmm::tool::print(vmm::tool::describe_version());
    return vmm::tool::finish_output(0);
  }
  if (outcome.command.empty()) {
    return report_no_command(app.describe());
  }
  return vmm::tool::finish_output(exit_code);
} catch (const std::exception& error) {
  // Our own code throws nothing.
  std::fprintf(stderr, "vpmu: %s\n", error.what());
  return 1;
}
