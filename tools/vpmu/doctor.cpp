#include "doctor.hpp"

#include <CLI/CLI.hpp>

namespace vmm::tool {

void add_doctor(CLI::App& app, int& exit_code) {
  CLI::App* doctor = app.add_subcommand("doctor", "tell what this host can do, and why");
  doctor->callback([&exit_code] { exit_code = 1; });
}

}  // namespace vmm::tool
