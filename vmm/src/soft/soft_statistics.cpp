#include "soft/soft_statistics.hpp"

#include <fmt/format.h>

namespace vmm {

void SoftStatistics::visit(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  visit("soft.instructions", instructions);
  visit("soft.system", system);
  visit("soft.mmio", mmio);
  visit("soft.exceptions", exceptions);
  visit("soft.interrupts", interrupts);
  for (const auto& [mnemonic, count] : unknown) visit(fmt::format("soft.unknown.{}", mnemonic), count);
}

}  // namespace vmm
