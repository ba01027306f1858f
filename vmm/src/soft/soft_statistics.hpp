#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string_view>

namespace vmm {

struct SoftStatistics {
  std::uint64_t instructions{};  ///< Retired, by the engine and by the units of the processor.
  std::uint64_t system{};        ///< Of these: system instructions.
  std::uint64_t mmio{};          ///< Accesses outside RAM.
  std::uint64_t exceptions{};
  std::uint64_t interrupts{};  ///< Including NMIs.
  std::map<std::string_view, std::uint64_t>
      unknown;  ///< Instructions that this vCPU does not support (#UD), by mnemonic.

  /// Calls `visit(name, value)` for each.
  void visit(const std::function<void(std::string_view, std::uint64_t)>& visit) const;
};

}  // namespace vmm
