#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "support/result.hpp"
#include "vpmu/generation.hpp"

namespace vmm::tool {

/// The events of a list as `perf stat -e` takes it: with commas, groups "{a,b}:u", whose modifier each of them gets,
/// and names with `*`, `?` or `[...]`, which stand for all names of `vpmu events` and of Linux that match. A comma
/// between two slashes belongs to the event. Fails with kind usage on an empty name, a group without an end or in
/// another one, and a pattern that no name matches.
Result<std::vector<std::string>> split_event_list(std::string_view list, const vpmu::GenerationDesc& generation);

/// The names of the generation that are most like this one, at most three: none of them is far from it.
std::vector<std::string> similar_names(std::string_view name, const vpmu::GenerationDesc& generation);

}  // namespace vmm::tool
