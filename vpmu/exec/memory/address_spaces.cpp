#include "exec/memory/address_spaces.hpp"

#include <algorithm>
#include <cstring>

#include "exec/memory/access.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec {

static_assert(code_privilege(Rights::supervisor, CodeMode::bits64) == 0 &&
              code_privilege(Rights::user, CodeMode::bits64) == 1);

namespace {

/// Changes bytes of 0 or 1, by words where there are as many: this is done at each MOV to CR3.
template <class Change>
void each_word(std::size_t count, std::uint8_t* bytes, const std::uint8_t* a, const std::uint8_t* b, Change change) {
  constexpr std::uint64_t ones = 0x0101'0101'0101'0101;
  const auto word = [](const std::uint8_t* from) {
    std::uint64_t value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  };
  std::size_t at = 0;
  for (; at + sizeof ones <= count; at += sizeof ones) {
    const std::uint64_t value = change(word(bytes + at), word(a + at), word(b + at), ones);
    std::memcpy(bytes + at, &value, sizeof value);
  }
  for (; at < count; ++at) bytes[at] = static_cast<std::uint8_t>(change(bytes[at], a[at], b[at], std::uint8_t{1}));
}

}  // namespace

void AddressSpaces::leave(const Core& core, const CodeSlots& slots) {
  auto place = std::ranges::find(kept_, core.paging.cr3, &Kept::cr3);
  if (place == kept_.end())
    place =
        kept_.size() < max_kept ? kept_.insert(kept_.end(), Kept{}) : std::ranges::min_element(kept_, {}, &Kept::left);
  place->cr3 = core.paging.cr3;
  place->generation = core.tlb_generation;
  place->left = ++leaves_;
  place->lost_count = lost_count_;
  const auto in_use = static_cast<std::ptrdiff_t>(slots.size());
  for (unsigned privilege = 0; privilege < privileges; ++privilege)
    place->stale[privilege].assign(core.stale[privilege].begin(), core.stale[privilege].begin() + in_use);
  place->base.assign(core.base.begin(), core.base.begin() + in_use);
}

void AddressSpaces::lose_pages(Kept& kept, const CodeSlots& slots) const {
  if (lost_count_ - kept.lost_count > lost_.size()) {
    for (auto& stale : kept.stale) std::ranges::fill(stale, std::uint8_t{1});
    return;
  }
  for (std::uint64_t n = kept.lost_count; n != lost_count_; ++n)
    for (std::size_t slot = 0; slot < kept.base.size(); ++slot)
      if (slots.depends(slot, kept.base[slot], lost_[n % lost_.size()]))
        for (auto& stale : kept.stale) stale[slot] = 1;
}

void AddressSpaces::enter(Core& core, std::uint64_t cr3, const CodeSlots& slots) {
  const auto kept = std::ranges::find(kept_, cr3, &Kept::cr3);
  flush_tlb(&core);
  std::size_t known = 0;
  if (kept != kept_.end()) {
    if (kept->generation != 0) core.tlb_generation = kept->generation;
    lose_pages(*kept, slots);
    known = kept->base.size();
    for (std::size_t slot = 0; slot < known; ++slot)
      if (slots.global()[slot] == 0) core.base[slot] = kept->base[slot];
  }
  for (unsigned privilege = privileges; privilege < code_privileges; ++privilege)
    std::fill_n(core.stale[privilege].begin(), slots.size(), std::uint8_t{1});
  for (unsigned privilege = 0; privilege < privileges; ++privilege) {
    std::uint8_t* const stale = core.stale[privilege].data();
    if (known != 0)
      each_word(known, stale, kept->stale[privilege].data(), slots.global().data(),
                [](auto now, auto then, auto global, auto ones) { return (now & global) | (then & (global ^ ones)); });
    each_word(slots.size() - known, stale + known, stale + known, slots.global().data() + known,
              [](auto now, auto, auto global, auto ones) { return now | (global ^ ones); });
  }
}

void AddressSpaces::forget(std::uint16_t pcid) {
  std::erase_if(kept_, [pcid](const Kept& kept) { return (kept.cr3 & x86::cr3::PCID::mask) == pcid; });
}

void AddressSpaces::forget_slot(CodeSlot slot) {
  for (Kept& kept : kept_)
    for (auto& stale : kept.stale)
      if (slot < stale.size()) stale[slot] = 1;
}

void AddressSpaces::forget_translations() {
  for (Kept& kept : kept_) kept.generation = 0;
}

}  // namespace vpmu::exec
