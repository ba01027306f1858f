#include "vpmu/paging.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "vpmu/bits.hpp"
#include "vpmu/x86.hpp"

namespace vpmu {
namespace {

// Bits that paging-structure entries of all modes have in common. SDM 3A 4.3 to 4.5.
namespace entry {
using P = Bits<0>;
using RW = Bits<1>;
using US = Bits<2>;
using A = Bits<5>;
using D = Bits<6>;
using PS = Bits<7>;
using G = Bits<8>;
using FRAME = Bits<51, 12>;
using XD = Bits<63>;
}  // namespace entry

/// When an entry of a level maps a page instead of pointing to a table.
enum class MapsPage : std::uint8_t { never, if_ps, always };

/// One level of a paging mode: which bits of the linear address index it, and which bits of its entries are reserved.
struct Level {
  std::uint8_t shift{};
  std::uint8_t index_bits{};
  MapsPage maps_page{MapsPage::never};
  std::uint64_t reserved_in_table{};  ///< In entries that point to a table.
  std::uint64_t reserved_in_page{};   ///< In entries that map a page.
  bool has_attributes{true};          ///< R/W, U/S, A and XD exist; only the PDPTE of PAE paging lacks them.
  bool page_is_pse36{};               ///< Bits 20:13 of a page's entry hold address bits 39:32. SDM 3A 4.3.
};

constexpr Level pml5e{.shift = 48, .index_bits = 9, .reserved_in_table = entry::PS::mask};
constexpr Level pml4e{.shift = 39, .index_bits = 9, .reserved_in_table = entry::PS::mask};
constexpr Level pdpte{
    .shift = 30, .index_bits = 9, .maps_page = MapsPage::if_ps, .reserved_in_page = Bits<29, 13>::mask};
constexpr Level pdpte_without_pages{.shift = 30, .index_bits = 9, .reserved_in_table = entry::PS::mask};
constexpr Level pde{.shift = 21, .index_bits = 9, .maps_page = MapsPage::if_ps, .reserved_in_page = Bits<20, 13>::mask};
constexpr Level pte{.shift = 12, .index_bits = 9, .maps_page = MapsPage::always};
constexpr std::array long_levels{pml5e, pml4e, pdpte, pde, pte};  // SDM 3A 4.5, tables 4-14 to 4-19.
constexpr std::array long_levels_without_gigabyte{pml5e, pml4e, pdpte_without_pages, pde, pte};

// SDM 3A 4.4, tables 4-8 to 4-11. Bit 5 of a PDPTE is reserved too, but emulated CPUs set it as accessed after CR3 was
// loaded: a PDPTE that a CPU still uses must not fault here.
constexpr std::uint64_t pae_reserved = Bits<62, 52>::mask;
constexpr std::array pae_levels{
    Level{.shift = 30,
          .index_bits = 2,
          .reserved_in_table = Bits<2, 1>::mask | Bits<8, 6>::mask | pae_reserved | entry::XD::mask,
          .has_attributes = false},
    Level{.shift = 21,
          .index_bits = 9,
          .maps_page = MapsPage::if_ps,
          .reserved_in_table = pae_reserved,
          .reserved_in_page = pae_reserved | Bits<20, 13>::mask},
    Level{.shift = 12, .index_bits = 9, .maps_page = MapsPage::always, .reserved_in_page = pae_reserved}};

// SDM 3A 4.3, tables 4-4 to 4-6. Without CR4.PSE the PS bit is ignored.
constexpr Level legacy_pte{.shift = 12, .index_bits = 10, .maps_page = MapsPage::always};
constexpr std::array legacy_levels{Level{.shift = 22, .index_bits = 10}, legacy_pte};
constexpr std::array legacy_pse_levels{Level{.shift = 22,
                                             .index_bits = 10,
                                             .maps_page = MapsPage::if_ps,
                                             .reserved_in_page = Bits<21>::mask,
                                             .page_is_pse36 = true},
                                       legacy_pte};

constexpr std::size_t max_levels = long_levels.size();
constexpr unsigned max_attempts = 16;
constexpr unsigned legacy_linear_bits = 32;
constexpr unsigned four_level_linear_bits = 48;
constexpr unsigned five_level_linear_bits = 57;

/// A paging mode: its levels from the root down. SDM 3A 4.1.1.
struct Mode {
  std::span<const Level> levels;
  std::uint8_t entry_bytes{};
  std::uint64_t root_mask{};  ///< The bits of CR3 that locate the first table.
};

bool is_long_mode(const PagingState& s) { return x86::cr0::PG::test(s.cr0) && x86::efer::LME::test(s.efer); }

Mode mode_of(const PagingState& s) {
  if (!x86::cr4::PAE::test(s.cr4)) {
    const auto& levels = x86::cr4::PSE::test(s.cr4) ? legacy_pse_levels : legacy_levels;
    return {.levels = levels, .entry_bytes = 4, .root_mask = Bits<31, 12>::mask};
  }
  if (!is_long_mode(s)) return {.levels = pae_levels, .entry_bytes = 8, .root_mask = Bits<31, 5>::mask};
  const std::span<const Level> all = s.gigabyte_pages ? long_levels : long_levels_without_gigabyte;
  return {
      .levels = x86::cr4::LA57::test(s.cr4) ? all : all.subspan(1), .entry_bytes = 8, .root_mask = entry::FRAME::mask};
}

bool entry_maps_page(const Level& level, std::uint64_t word) {
  switch (level.maps_page) {
    case MapsPage::never: return false;
    case MapsPage::if_ps: return entry::PS::test(word);
    case MapsPage::always: return true;
  }
  return true;
}

/// The physical address of the page or table that `word` refers to.
std::uint64_t frame_of(const Level& level, std::uint64_t word, bool is_page) {
  if (!is_page) return word & entry::FRAME::mask;
  if (level.page_is_pse36) return (word & Bits<31, 22>::mask) | Bits<39, 32>::make(Bits<20, 13>::get(word));
  return word & entry::FRAME::mask & ~low_bits(level.shift);
}

/// An entry on the path to the page.
struct Entry {
  GuestPhysical at;
  std::uint64_t word{};
};

/// The rights that all entries on the path grant. SDM 3A 4.6.
struct Rights {
  bool user{true};
  bool write{true};
  bool execute{true};

  void narrow(std::uint64_t word) {
    user = user && entry::US::test(word);
    write = write && entry::RW::test(word);
    execute = execute && !entry::XD::test(word);
  }
};

/// A complete path from the root to a page.
struct Path {
  std::array<Entry, max_levels> entries{};
  std::size_t depth{};
  Rights rights;
  Mapped target;
};

/// The page walk of one access; short-lived.
class Walker {
 public:
  Walker(const PagingState& state, PhysicalWords& memory, GuestLinear at, PagingAccess access,
         PagingPrivilege privilege)
      : state_{state}, memory_{memory}, mode_{mode_of(state)}, at_{at}, access_{access}, privilege_{privilege} {}

  /// Follows the tables and checks rights; changes nothing. On success `path` is complete.
  Walk walk(Path& path) const {
    path = {};
    std::uint64_t table = state_.cr3 & mode_.root_mask;
    for (const Level& level : mode_.levels) {
      const GuestPhysical where = entry_address(level, table);
      const auto read = memory_.read_word(where, mode_.entry_bytes);
      if (!read) return BadTable{where};
      const std::uint64_t word = *read;
      path.entries[path.depth++] = {where, word};
      if (!entry::P::test(word)) return fault(0);
      const bool is_page = entry_maps_page(level, word);
      if (has_reserved_bits(level, word, is_page)) return fault(page_fault_error::P | page_fault_error::RSVD);
      if (level.has_attributes) path.rights.narrow(word);
      table = frame_of(level, word, is_page);
      if (!is_page) continue;
      path.target = {.address = GuestPhysical{table | (at_.value() & low_bits(level.shift))},
                     .page_bytes = bit(level.shift),
                     .global = x86::cr4::PGE::test(state_.cr4) && entry::G::test(word)};
      break;
    }
    if (!is_allowed(path.rights)) return fault(page_fault_error::P);
    return path.target;
  }

  /// Sets accessed bits on the path and the dirty bit of the page. Empty on success, else the entry that changed
  /// meanwhile.
  std::optional<GuestPhysical> mark(Path& path) const {
    for (std::size_t i = 0; i < path.depth; ++i) {
      if (!mode_.levels[i].has_attributes) continue;
      const bool is_dirty = access_ == PagingAccess::write && i + 1 == path.depth;
      const std::uint64_t flags = entry::A::mask | (is_dirty ? entry::D::mask : 0);
      if (!mark_entry(path.entries[i], flags)) return path.entries[i].at;
    }
    return std::nullopt;
  }

 private:
  unsigned physical_width() const { return std::clamp<unsigned>(state_.physical_width, 32, 52); }

  GuestPhysical entry_address(const Level& level, std::uint64_t table) const {
    const std::uint64_t index = (at_.value() >> level.shift) & low_bits(level.index_bits);
    return GuestPhysical{table + index * mode_.entry_bytes};
  }

  bool has_reserved_bits(const Level& level, std::uint64_t word, bool is_page) const {
    const std::uint64_t fixed = is_page ? level.reserved_in_page : level.reserved_in_table;
    const bool is_xd_reserved = !x86::efer::NXE::test(state_.efer) && entry::XD::test(word);
    const std::uint64_t beyond_width = frame_of(level, word, is_page) & ~low_bits(physical_width());
    return (word & fixed) != 0 || is_xd_reserved || beyond_width != 0;
  }

  /// SDM 3A 4.6.1.
  bool is_allowed(const Rights& page) const {
    if (privilege_ == PagingPrivilege::user) return page.user && allows_access(page, true);
    if (page.user && !supervisor_reaches_user_page()) return false;
    return allows_access(page, x86::cr0::WP::test(state_.cr0));
  }

  bool allows_access(const Rights& page, bool obeys_read_only) const {
    switch (access_) {
      case PagingAccess::read: return true;
      case PagingAccess::write: return page.write || !obeys_read_only;
      case PagingAccess::execute: return page.execute;
    }
    return false;
  }

  bool supervisor_reaches_user_page() const {
    if (access_ == PagingAccess::execute) return !x86::cr4::SMEP::test(state_.cr4);
    return !x86::cr4::SMAP::test(state_.cr4) || state_.alignment_check;
  }

  /// `cause` is P and RSVD; the rest describes the access. SDM 3A 4.7.
  PageFault fault(std::uint32_t cause) const {
    const bool reports_fetch =
        x86::cr4::SMEP::test(state_.cr4) || (x86::cr4::PAE::test(state_.cr4) && x86::efer::NXE::test(state_.efer));
    std::uint32_t code = cause;
    if (access_ == PagingAccess::write) code |= page_fault_error::W;
    if (privilege_ == PagingPrivilege::user) code |= page_fault_error::U;
    if (access_ == PagingAccess::execute && reports_fetch) code |= page_fault_error::I;
    return {at_, code};
  }

  /// Other CPUs may set A and D of the same entry; any other change makes the path void.
  bool mark_entry(Entry& entry, std::uint64_t flags) const {
    for (unsigned attempt = 0; attempt < max_attempts; ++attempt) {
      const std::uint64_t marked = entry.word | flags;
      if (marked == entry.word) return true;
      if (memory_.exchange_word(entry.at, mode_.entry_bytes, entry.word, marked)) return true;
      const auto now = memory_.read_word(entry.at, mode_.entry_bytes);
      if (!now || ((*now ^ entry.word) & ~(entry::A::mask | entry::D::mask)) != 0) return false;
      entry.word = *now;
    }
    return false;
  }

  const PagingState& state_;
  PhysicalWords& memory_;
  Mode mode_;
  GuestLinear at_;
  PagingAccess access_;
  PagingPrivilege privilege_;
};

}  // namespace

Walk translate(const PagingState& state, PhysicalWords& memory, GuestLinear at, PagingAccess access,
               PagingPrivilege privilege, AccessedDirty accessed_dirty) {
  if (is_long_mode(state)) {
    const unsigned width = x86::cr4::LA57::test(state.cr4) ? five_level_linear_bits : four_level_linear_bits;
    if (!is_canonical(at.value(), width)) return NonCanonical{};
  } else {
    at = GuestLinear{at.value() & low_bits(legacy_linear_bits)};
  }
  if (!x86::cr0::PG::test(state.cr0)) return Mapped{GuestPhysical{at.value()}, page_size};

  const Walker walker{state, memory, at, access, privilege};
  Path path;
  GuestPhysical changed;
  for (unsigned attempt = 0; attempt < max_attempts; ++attempt) {
    const Walk result = walker.walk(path);
    if (accessed_dirty == AccessedDirty::leave || !std::holds_alternative<Mapped>(result)) return result;
    const auto unstable = walker.mark(path);
    if (!unstable) return result;
    changed = *unstable;
  }
  return Contended{changed};
}

}  // namespace vpmu
