#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "support/result.hpp"

namespace vmm::tool {

/// The modules that a module names in its section .modinfo as those that it needs to be loaded before it. Fails with
/// kind usage on what is no module for x86-64.
Result<std::vector<std::string>> module_dependencies(std::span<const std::byte> module);

}  // namespace vmm::tool
