#include "exec/memory/code_pages.hpp"

#include <algorithm>

#include "exec/memory/access.hpp"
#include "exec/memory/address_spaces.hpp"

namespace vpmu::exec {

void CodePages::add(Core& core, CodeSlot slot, GuestPhysical page) {
  auto& of_page = slots_[page.value()];
  if (of_page.empty()) {  // it may have been open for writing
    flush_tlb(&core);
    core.spaces->forget_translations();
  }
  if (std::ranges::find(of_page, slot) != of_page.end()) return;
  of_page.push_back(slot);
  ++size_;
}

void CodePages::forget(Core& core, GuestPhysical page) {
  const auto found = slots_.find(page.value());
  if (found == slots_.end()) return;
  for (const CodeSlot slot : found->second) {
    core.changed[slot] = 1;
    for (auto& of_privilege : core.stale) of_privilege[slot] = 1;
    core.spaces->forget_slot(slot);
  }
  size_ -= found->second.size();
  slots_.erase(found);
}

void CodePages::clear() {
  slots_.clear();
  size_ = 0;
}

}  // namespace vpmu::exec
