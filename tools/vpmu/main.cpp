#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "ctl.hpp"
#include "doctor.hpp"
#include "events.hpp"
#include "models.hpp"
#include "output.hpp"
#include "records.hpp"
#include "run.hpp"
#include "version.hpp"
#include "virt.hpp"

#ifdef __SANITIZE_ADDRESS__
// The leak checker looks at all threads as a debugger does, which nobody in the jail may do.
extern "C" int __lsan_is_turned_off() { return 1; }
#endif

namespace {

constexpr int exit_usage = 2;

/// The first line of a message that may have several.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int report_parse_error(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    return app.exit(error);  // --help
  }
  const auto chosen = app.get_subcommands();
  const std::string command = chosen.empty() ? "vpmu" : "vpmu " + chosen.front()->get_name();
  std::fprintf(stderr, "%s: %s; type `%s --help`\n", command.c_str(), first_line(error.what()).c_str(), command.c_str());
  return exit_usage;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{"A virtual Intel PMU with PEBS for KVM guests", "vpmu"};
  app.require_subcommand(0, 1);
  bool wants_version = false;
  app.add_flag("--version", wants_version, "tell the version, the commit, what built it, and what this host has for it");
  int exit_code = 0;
  vmm::tool::add_run(app, exit_code);
  vmm::tool::add_doctor(app, exit_code);
  vmm::tool::add_events(app, exit_code);
  vmm::tool::add_models(app, exit_code);
  vmm::tool::add_records(app, exit_code);
  vmm::tool::add_ctl(app, exit_code);
  vmm::tool::add_virt(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return vmm::tool::finish_output(report_parse_error(app, error));
  }
  if (wants_version) {
    vmm::tool::print(vmm::tool::describe_version());
    return vmm::tool::finish_output(0);
  }
  if (app.get_subcommands().empty()) {
    std::fputs("vpmu: no command; give one of run, doctor, events, models, records, ctl, virt, or type `vpmu --help`\n", stderr);
    return exit_usage;
  }
  return vmm::tool::finish_output(exit_code);
} catch (const std::exception& error) {
  // Out of memory and the like: nothing of ours throws.
  std::fprintf(stderr, "vpmu: %s\n", error.what());
  return 1;
}
