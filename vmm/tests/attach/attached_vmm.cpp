#include "attach/attached_vmm.hpp"

#include <nlohmann/json.hpp>

namespace vmm::test {

std::map<std::string, std::uint64_t> vcpu_counters(const std::string& line, std::optional<unsigned> id) {
  std::map<std::string, std::uint64_t> counters;
  if (line.empty()) return counters;
  const auto statistics = nlohmann::json::parse(line);
  for (const auto& vcpu : statistics.at("vcpus"))
    if (!id || vcpu.at("id") == *id) vcpu.get_to(counters);
  return counters;
}

}  // namespace vmm::test
