#pragma once

#include "command_line.hpp"

namespace vmm::tool {

/// Adds `vpmu compare`: two measurements of `vpmu stat`, and what has changed between them.
void add_compare(Command& app, int& exit_code);

}  // namespace vmm::tool
