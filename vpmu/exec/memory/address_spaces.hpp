#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/memory/code_slots.hpp"
#include "exec/state/core.hpp"

namespace vpmu::exec {

/// What the engine has found out in address spaces that the guest has left, and may come back to by a MOV to CR3 that
/// keeps their translations: which pages of 64-bit code are fresh there, and where; and which of Core::known are its
/// own. A CPU's TLBs keep this, too. SDM 3A 4.10.1, 4.10.4.1.
class AddressSpaces {
 public:
  /// Linux has six PCIDs in use, and as many for its programs' own tables.
  static constexpr std::size_t max_kept = 16;

  /// Keeps what is known in the present one.
  void leave(const Core& core, const CodeSlots& slots);
  /// Goes to the one of this CR3, and takes what was kept of it, or nothing if nothing was. Of global pages what is
  /// known now holds there, too.
  void enter(Core& core, std::uint64_t cr3, const CodeSlots& slots);
  /// Forgets those with this PCID.
  void forget(std::uint16_t pcid);
  /// The code of the slot is fresh in none of them.
  void forget_slot(CodeSlot slot);
  /// The address's translation is lost in all of them.
  void forget_page(std::uint64_t linear) { lost_[lost_count_++ % lost_.size()] = linear; }
  /// None of Core::known is theirs.
  void forget_translations();
  void clear() { kept_.clear(); }

 private:
  /// Of 64-bit code: by code_privilege().
  static constexpr unsigned privileges = 2;
  struct Kept {
    std::uint64_t cr3{};
    std::uint64_t generation{};  ///< 0: none.
    std::uint64_t left{};        ///< Grows: when it was left.
    std::uint64_t lost_count{};  ///< AddressSpaces::lost_count_ then.
    std::array<std::vector<std::uint8_t>, privileges> stale;
    std::vector<std::uint64_t> base;
  };
  void lose_pages(Kept& kept, const CodeSlots& slots) const;

  std::vector<Kept> kept_;
  std::uint64_t leaves_{};
  /// Pages that all have lost, the last ones. Looked at when one is entered: of a space that was left before these
  /// nothing is known.
  std::array<std::uint64_t, 32> lost_{};
  std::uint64_t lost_count_{};
};

}  // namespace vpmu::exec
