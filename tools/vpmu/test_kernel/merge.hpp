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

/// One report of those of the shards. A model that was asked for and that none of them has gets the failed check
/// `run_check`, which names its shard. Fails with kind usage where they are not of one kernel, suite, list of models
/// and number of shards, and where two of them have found different things on one model.
Result<KernelReport> merge(std::span<const ShardReport> parts);

}  // namespace vmm::tool
