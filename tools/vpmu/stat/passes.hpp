#pragma once
#include <chrono>
#include <functional>

#include "support/result.hpp"

namespace vmm::tool {

/// What in_child() does while it waits: `act` at the end of each interval.
struct Meanwhile {
  std::chrono::seconds interval{};
  std::function<void()> act{};
};

/// Calls `act` in a child process and returns its exit code. Signals that would end this process go to the child, while
/// this process waits. If this process ends in any way, so does the child. Call it before the process has threads.
/// Fails if the child cannot be made, or if a signal ended it.
Result<int> in_child(const std::function<int()>& act, const Meanwhile& meanwhile = {});

/// Sets standard input back to `offset`.
Result<void> rewind_input(long offset);

}  // namespace vmm::tool
