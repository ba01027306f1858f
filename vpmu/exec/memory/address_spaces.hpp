#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/state/core.hpp"

namespace vpmu::exec {

/// What the engine has found out in address spaces that the guest has left, and may come back to by a MOV to CR3 that
/// keeps their translations: which pages of 64-bit code are fresh there, and which of Core::known are its own. A CPU's
/// TLBs keep this, too. SDM 3A 4.10.1, 4.10.4.1.
class AddressSpaces {
 public:
  /// Linux has six PCIDs in use, and as many for its programs' own tables.
  static constexpr std::size_t max_kept = 16;

  /// Keeps what is known in the present one; `slots` are in use.
  void leave(const Core& core, unsigned slots);
  /// Goes to the one of this CR3, and takes what was kept of it, or nothing if nothing was. In all spaces alike:
  /// `everywhere` has a 1 for each slot of a global page.
  void enter(Core& core, std::uint64_t cr3, unsigned slots, const std::vector<std::uint8_t>& everywhere);
  /// Forgets those with this PCID.
  void forget(std::uint16_t pcid);
  /// The code of the slot is fresh in none of them.
  void forget_slot(CodeSlot slot);
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
    std::array<std::vector<std::uint8_t>, privileges> stale;
  };

  std::vector<Kept> kept_;
  std::uint64_t leaves_{};
};

}  // namespace vpmu::exec
