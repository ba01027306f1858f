#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/state/core.hpp"

namespace vpmu::exec {

/// What the slots in use are for. Slot 0 is never_fresh.
class CodeSlots {
 public:
  /// A slot for code in a page that was mapped like `seen`; `in_two`: and in the page after it.
  CodeSlot add(const SeenPage& seen, bool in_two) {
    slots_.push_back({.pages = seen.page_bytes / page_size, .in_two = in_two});
    global_.push_back(seen.global && !in_two ? 1 : 0);
    return static_cast<CodeSlot>(slots_.size() - 1);
  }
  void clear() {
    slots_.resize(1);
    global_.resize(1);
  }
  [[nodiscard]] std::size_t size() const { return slots_.size(); }
  /// By slot. 1: of a global page, which is the same in all address spaces.
  [[nodiscard]] const std::vector<std::uint8_t>& global() const { return global_; }
  /// Whether code that stands in the page at `base` depends on the translation of the address, perhaps as part of a
  /// large page.
  [[nodiscard]] bool depends(std::size_t slot, std::uint64_t base, std::uint64_t linear) const {
    const Slot& of = slots_[slot];
    const std::uint64_t mask = ~(of.pages * page_size - 1);
    return ((base ^ linear) & mask) == 0 || (of.in_two && (((base + page_size) ^ linear) & mask) == 0);
  }

 private:
  struct Slot {
    std::uint64_t pages{1};  ///< More than 1: it is part of a large page of so many.
    bool in_two{};
  };
  std::vector<Slot> slots_{1};
  std::vector<std::uint8_t> global_{0};
};

}  // namespace vpmu::exec
