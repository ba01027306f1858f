#pragma once
#include <string>
#include <vector>

#include "machine/config.hpp"
#include "support/result.hpp"

namespace vmm::tool {

class Command;

/// What was given with --policy, as NAME=VALUE.
struct PolicyArguments {
  std::vector<std::string> settings;
};

/// Adds --policy to a subcommand; its help lists every policy and its values, the default first.
void add_policies(Command& command, PolicyArguments& arguments);

/// Puts the settings into the configuration. Fails (usage) on an unknown name or value, and lists the known ones.
Result<void> apply(const PolicyArguments& arguments, MachineConfig& config);

}  // namespace vmm::tool
