#pragma once
#include <optional>
#include <vector>

#include "pmu/task_counts.hpp"
#include "stat/passes.hpp"
#include "support/result.hpp"

namespace vmm::tool {

struct ExecArguments;

/// A command that was counted by the VMM, beside the guest's PMU.
struct CountedRun {
  int code{};                          ///< As run_exec() returns it.
  std::optional<TaskTotals> totals{};  ///< Empty: the command has not run to its end.
};

/// Whether it is kept which code has counted what, and which files the command has opened.
enum class Recording : bool { no, yes };

/// Runs the command in a guest of a child process. On an accelerator and a source that count beside the PMU: soft,
/// exact. Fails if the guest's kernel is not one whose tasks can be told from each other (TaskCounts).
Result<CountedRun> run_counted(const ExecArguments& arguments, const std::vector<TaskEvent>& events,
                               Recording recording, const Meanwhile& meanwhile);

}  // namespace vmm::tool
