#include "paging_model.hpp"

#include <vector>

namespace vpmu::test {
namespace {

using u64 = std::uint64_t;

bool has_bit(u64 word, unsigned n) { return ((word >> n) & 1) != 0; }
u64 field(u64 word, unsigned high, unsigned low) {
  u64 result = 0;
  for (unsigned n = low; n <= high; ++n) result |= static_cast<u64>(has_bit(word, n)) << (n - low);
  return result;
}

/// What a walk saw so far.
struct Seen {
  std::vector<u64> entry_addresses;  ///< Of entries that have an accessed bit.
  bool every_user{true};
  bool every_write{true};
  bool any_xd{false};
};

class Model {
 public:
  Model(const PagingState& state, TableMemory& memory, u64 at, PagingAccess access, PagingPrivilege privilege,
        AccessedDirty accessed_dirty)
      : s_{state},
        memory_{memory},
        at_{at},
        is_write_{access == PagingAccess::write},
        is_fetch_{access == PagingAccess::execute},
        is_user_{privilege == PagingPrivilege::user},
        sets_flags_{accessed_dirty == AccessedDirty::set} {}

  Walk legacy();
  Walk pae();
  Walk four_or_five_levels();

  bool wp() const { return has_bit(s_.cr0, 16); }
  bool pse() const { return has_bit(s_.cr4, 4); }
  bool has_pae() const { return has_bit(s_.cr4, 5); }
  bool la57() const { return has_bit(s_.cr4, 12); }
  bool smep() const { return has_bit(s_.cr4, 20); }
  bool smap() const { return has_bit(s_.cr4, 21); }
  bool nxe() const { return has_bit(s_.efer, 11); }

 private:
  bool in_ram(u64 address, unsigned bytes) const { return address + bytes <= memory_.size(); }
  unsigned width() const { return s_.physical_width; }

  Walk fault(bool present, bool reserved) const {
    std::uint32_t code = 0;
    if (present) code += 1;
    if (is_write_) code += 2;
    if (is_user_) code += 4;
    if (reserved) code += 8;
    if (is_fetch_ && smep()) {
      code += 16;
    } else if (is_fetch_ && has_pae() && nxe()) {
      code += 16;
    }
    return PageFault{GuestLinear{at_}, code};
  }

  void take_rights(u64 entry, u64 address) {
    seen_.entry_addresses.push_back(address);
    if (!has_bit(entry, 1)) seen_.every_write = false;
    if (!has_bit(entry, 2)) seen_.every_user = false;
    if (has_bit(entry, 63)) seen_.any_xd = true;
  }

  /// SDM 3A 4.6.1, access by access.
  bool permitted() const {
    const bool user_page = seen_.every_user;
    if (is_user_) {
      if (!user_page) return false;
      if (is_write_) return seen_.every_write;
      if (is_fetch_) return !seen_.any_xd;
      return true;
    }
    if (is_fetch_) {
      if (user_page && smep()) return false;
      return !seen_.any_xd;
    }
    if (user_page && smap() && !s_.alignment_check) return false;
    if (is_write_ && wp()) return seen_.every_write;
    return true;
  }

  Walk finish(u64 frame, u64 page_bytes, unsigned entry_bytes) {
    if (!permitted()) return fault(true, false);
    if (sets_flags_) {
      for (const u64 a : seen_.entry_addresses) memory_.poke(a, memory_.peek(a, entry_bytes) | 0x20, entry_bytes);
      const u64 leaf = seen_.entry_addresses.back();
      if (is_write_) memory_.poke(leaf, memory_.peek(leaf, entry_bytes) | 0x40, entry_bytes);
    }
    // SDM 3A 4.10.2.4.
    const bool global = has_bit(memory_.peek(seen_.entry_addresses.back(), entry_bytes), 8) && has_bit(s_.cr4, 7);
    return Mapped{GuestPhysical{frame + at_ % page_bytes}, page_bytes, global};
  }

  /// Any bit of [51:width], and XD while NXE is off.
  bool wide_reserved(u64 entry) const {
    for (unsigned n = width(); n <= 51; ++n) {
      if (has_bit(entry, n)) return true;
    }
    return has_bit(entry, 63) && !nxe();
  }

  const PagingState& s_;
  TableMemory& memory_;
  u64 at_;
  bool is_write_, is_fetch_, is_user_, sets_flags_;
  Seen seen_;
};

Walk Model::legacy() {
  const u64 pde_at = field(s_.cr3, 31, 12) * 4096 + field(at_, 31, 22) * 4;
  if (!in_ram(pde_at, 4)) return BadTable{GuestPhysical{pde_at}};
  const u64 pde = memory_.peek(pde_at, 4);
  if (!has_bit(pde, 0)) return fault(false, false);
  take_rights(pde, pde_at);
  if (pse() && has_bit(pde, 7)) {
    if (has_bit(pde, 21)) return fault(true, true);
    for (unsigned n = 13; n <= 20; ++n) {
      if (has_bit(pde, n) && n - 13 + 32 >= width()) return fault(true, true);
    }
    return finish((field(pde, 20, 13) << 32) + (field(pde, 31, 22) << 22), 4 << 20, 4);
  }
  const u64 pte_at = field(pde, 31, 12) * 4096 + field(at_, 21, 12) * 4;
  if (!in_ram(pte_at, 4)) return BadTable{GuestPhysical{pte_at}};
  const u64 pte = memory_.peek(pte_at, 4);
  if (!has_bit(pte, 0)) return fault(false, false);
  take_rights(pte, pte_at);
  return finish(field(pte, 31, 12) * 4096, 4096, 4);
}

Walk Model::pae() {
  const u64 pdpte_at = field(s_.cr3, 31, 5) * 32 + field(at_, 31, 30) * 8;
  if (!in_ram(pdpte_at, 8)) return BadTable{GuestPhysical{pdpte_at}};
  const u64 pdpte = memory_.peek(pdpte_at, 8);
  if (!has_bit(pdpte, 0)) return fault(false, false);
  if (field(pdpte, 2, 1) != 0 || field(pdpte, 8, 6) != 0 || field(pdpte, 63, width()) != 0) return fault(true, true);

  const u64 pde_at = field(pdpte, 51, 12) * 4096 + field(at_, 29, 21) * 8;
  if (!in_ram(pde_at, 8)) return BadTable{GuestPhysical{pde_at}};
  const u64 pde = memory_.peek(pde_at, 8);
  if (!has_bit(pde, 0)) return fault(false, false);
  if (field(pde, 62, width()) != 0 || wide_reserved(pde)) return fault(true, true);
  take_rights(pde, pde_at);
  if (has_bit(pde, 7)) {
    if (field(pde, 20, 13) != 0) return fault(true, true);
    return finish(field(pde, 51, 21) << 21, 2 << 20, 8);
  }

  const u64 pte_at = field(pde, 51, 12) * 4096 + field(at_, 20, 12) * 8;
  if (!in_ram(pte_at, 8)) return BadTable{GuestPhysical{pte_at}};
  const u64 pte = memory_.peek(pte_at, 8);
  if (!has_bit(pte, 0)) return fault(false, false);
  if (field(pte, 62, width()) != 0 || wide_reserved(pte)) return fault(true, true);
  take_rights(pte, pte_at);
  return finish(field(pte, 51, 12) * 4096, 4096, 8);
}

Walk Model::four_or_five_levels() {
  const unsigned linear_bits = la57() ? 57 : 48;
  const u64 sign = field(at_, 63, linear_bits - 1);
  if (sign != 0 && sign != field(~u64{0}, 63, linear_bits - 1)) return NonCanonical{};
  u64 table = field(s_.cr3, 51, 12) * 4096;
  for (unsigned level = la57() ? 5 : 4; level >= 1; --level) {
    const unsigned low = 12 + 9 * (level - 1);
    const u64 entry_at = table + field(at_, low + 8, low) * 8;
    if (!in_ram(entry_at, 8)) return BadTable{GuestPhysical{entry_at}};
    const u64 entry = memory_.peek(entry_at, 8);
    if (!has_bit(entry, 0)) return fault(false, false);
    if (wide_reserved(entry)) return fault(true, true);
    if (level >= 4 && has_bit(entry, 7)) return fault(true, true);
    if (level == 3 && has_bit(entry, 7) && !s_.gigabyte_pages) return fault(true, true);
    take_rights(entry, entry_at);
    if (level == 3 && has_bit(entry, 7)) {
      if (field(entry, 29, 13) != 0) return fault(true, true);
      return finish(field(entry, 51, 30) << 30, 1 << 30, 8);
    }
    if (level == 2 && has_bit(entry, 7)) {
      if (field(entry, 20, 13) != 0) return fault(true, true);
      return finish(field(entry, 51, 21) << 21, 2 << 20, 8);
    }
    table = field(entry, 51, 12) * 4096;
  }
  return finish(table, 4096, 8);
}

}  // namespace

Walk model_translate(const PagingState& state, TableMemory& memory, std::uint64_t at, PagingAccess access,
                     PagingPrivilege privilege, AccessedDirty accessed_dirty) {
  const bool paging = has_bit(state.cr0, 31);
  const bool pae = has_bit(state.cr4, 5);
  const bool long_mode = paging && has_bit(state.efer, 8);
  const u64 linear = long_mode ? at : field(at, 31, 0);
  Model model{state, memory, linear, access, privilege, accessed_dirty};
  if (!paging) return Mapped{GuestPhysical{linear}, 4096};
  if (!pae) return model.legacy();
  return long_mode ? model.four_or_five_levels() : model.pae();
}

}  // namespace vpmu::test
