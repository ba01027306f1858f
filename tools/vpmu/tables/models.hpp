#pragma once
#include <string>
#include <vector>

namespace vmm::tool {

class Command;

/// The CPU models that a guest can have, oldest first: a head line, then a line for each, its name first. Names are
/// those of `vpmu run --model`; the PMU is the name under which docs and tables describe it. PMCs are the counters with
/// SMT, and without. With `features`, lines after each model list its CPU's features, and which of them a guest
/// without KVM lacks.
std::string list_models(bool features = false);
/// The same as JSON: an array with an object for each model. "pmcs" is the number of counters with SMT, and
/// "pmcs_no_smt" without.
std::string list_models_as_json();

/// The names alone, oldest first: what `--model` takes.
std::vector<std::string> model_names();

/// Adds `vpmu models` to the command line: prints one of the lists. `exit_code`: 0 done, 1 the output could not be
/// written. It must live as long as `app`.
void add_models(Command& app, int& exit_code);

}  // namespace vmm::tool
