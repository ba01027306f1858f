#pragma once
#include <span>
#include <string>

#include "support/result.hpp"
#include "test_kernel/results.hpp"

namespace vmm::tool {

/// The report of one shard, and its file.
struct ShardReport {
  std::string file;
  KernelReport report;
};

/// Merges the reports of all shards. A model that was requested but is in no report gets the failed check
/// `run_check`, which names its shard. Fails with kind usage if the reports differ in kernel, suite, list of models
/// or number of shards, or if two of them have different results for one model.
Result<KernelReport> merge(std::span<const ShardReport> parts);

}  // namespace vmm::tool
