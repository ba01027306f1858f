#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "support/result.hpp"

namespace vmm::tool {

/// The modules that have to be loaded before this one, as its section .modinfo names them. Fails with
/// kind usage if it is no module for x86-64.
Result<std::vector<std::string>> module_dependencies(std::span<const std::byte> module);

}  // namespace vmm::tool
