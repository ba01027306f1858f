#pragma once
#include <string>
#include <vector>

#include "model/model.hpp"
#include "support/result.hpp"
#include "test_kernel/results.hpp"

namespace vmm::tool {

/// The models to test on.
struct Selection {
  Shard shard;
  std::vector<const MachineModel*> all;  ///< Of all shards together.
  std::vector<const MachineModel*> own;  ///< Of this shard.
};

/// "all", a list separated by commas or, if empty, one of each kind of processor that Linux has tables for. `shard`
/// "I/N" selects the I-th of every N models; empty: all. Fails with kind usage.
Result<Selection> select_models(const std::string& models, const std::string& shard);

}  // namespace vmm::tool
