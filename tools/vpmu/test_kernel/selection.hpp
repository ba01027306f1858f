#pragma once
#include <string>
#include <vector>

#include "machine/model.hpp"
#include "support/result.hpp"

namespace vmm::tool {

/// The models to test on: "all", a list with commas between, or, empty, one for each kind of processor that Linux has
/// tables for. `shard` "I/N" takes those whose turn it is, of every N the I-th; empty: all. Fails with kind usage.
Result<std::vector<const MachineModel*>> select_models(const std::string& models, const std::string& shard);

}  // namespace vmm::tool
