#pragma once
#include <string>

#include "support/result.hpp"

namespace vmm::tool {

class Command;

/// The guests that have booted and are kept: a head line, a line for each, the last used first, and their sum. Fails as
/// GuestCache::open() does.
Result<std::string> list_cache();
/// Removes them all, and returns a line that says how many they were.
Result<std::string> clear_cache();

/// Adds `vpmu cache` to the command line. It sets `exit_code`, which must live as long as `app`.
void add_cache(Command& app, int& exit_code);

}  // namespace vmm::tool
