#pragma once
#include <string>
#include <vector>

#include "support/result.hpp"
#include "uarch/profile_changes.hpp"

namespace vmm::tool {

class Command;

/// Adds --set, whose lists ("l3=16M,dram=240") go to `set`.
void add_set_option(Command& command, std::vector<std::string>& set);

/// The changes of all lists of --set. Fails with kind usage.
Result<vpmu::uarch::ProfileChanges> read_changes(const std::vector<std::string>& set);

}  // namespace vmm::tool
