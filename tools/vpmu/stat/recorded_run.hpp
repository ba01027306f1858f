#pragma once
#include <span>
#include <string>
#include <vector>

#include "pmu/task_counts.hpp"
#include "stat/counts.hpp"
#include "stat/passes.hpp"
#include "support/result.hpp"

namespace vmm::tool {

struct ExecArguments;

/// The directory and the root that a command's file names are relative to.
struct FileRoot {
  std::string root{"/"}, directory;
};

/// The files that these names are on this machine, and what runs them: by their canonical paths, with their size and
/// checksum. Names that are no files here are left out: the guest has its own /proc, /sys, /dev and /run, and what the
/// command has made there is gone.
std::vector<StatFile> given_files(const FileNames& names, const FileRoot& root);

/// Which functions have counted these events; `kallsyms` is the guest's. An event whose places are not known has none.
std::vector<StatFunction> functions_of(const TaskTotals& totals, std::span<const StatEvent> events,
                                       std::span<const StatFile> files, std::string_view kallsyms);

/// The symbols of the kernel that a guest of these arguments has: it boots once more, or goes on from where it had
/// booted, and so has the same addresses.
Result<std::string> read_kernel_symbols(const ExecArguments& arguments, const Meanwhile& meanwhile);

}  // namespace vmm::tool
