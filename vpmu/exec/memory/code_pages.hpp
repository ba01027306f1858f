#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "exec/state/core.hpp"

namespace vpmu::exec {

/// The pages that code was decoded from: a write to one makes its code stale.
class CodePages {
 public:
  /// Whether a write to the page makes code stale.
  [[nodiscard]] bool holds(GuestPhysical page) const { return slots_.contains(page.value()); }
  /// From here on a write to the page makes the code of `slot` stale.
  void add(Core& core, CodeSlot slot, GuestPhysical page);
  /// The page is about to be written: its code must be checked again.
  void forget(Core& core, GuestPhysical page);
  void clear();
  /// Slots, of all pages together.
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::unordered_map<std::uint64_t, std::vector<CodeSlot>> slots_;  ///< By physical page.
  std::size_t size_{};
};

}  // namespace vpmu::exec
