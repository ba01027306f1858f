#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvm/paging_vm.hpp"
#include "vpmu/paging.hpp"

namespace vmm::test {

/// One level of a paging mode: which bits of the linear address select its entry.
struct GuestTableLevel {
  unsigned shift{};
  unsigned index_bits{};
};

/// What the guest's single access did.
struct AccessOutcome {
  bool faulted{};
  std::uint64_t cr2{};         ///< Valid after a fault.
  std::uint32_t error_code{};  ///< Valid after a fault: as the CPU pushed it.
};

/// A guest that makes one access to one linear address and reports whether it page-faulted: the CPU as an oracle for
/// page walks. The root table's first entry maps the guest's own code, stack and descriptor tables, its second the
/// address under test.
class AccessGuest {
 public:
  /// The physical address of the access if every level maps it; large pages at frame 0 lead there, too.
  static constexpr std::uint64_t target = 0x3'0040;
  static constexpr std::uint64_t ram_bytes = 16 << 20;

  AccessGuest(PagingVm& vm, std::vector<GuestTableLevel> levels, unsigned entry_bytes);

  /// Moves the root and the tables under test to pages never used before: KVM's shadow page tables do not follow writes
  /// that this process makes. RAM suffices for 600 cases.
  void begin_case();

  [[nodiscard]] std::size_t depth() const { return levels_.size(); }
  /// The linear address under test.
  [[nodiscard]] vpmu::GuestLinear linear() const;
  /// Physical address of the entry at `level` that maps the address under test.
  [[nodiscard]] std::uint64_t entry_at(std::size_t level) const;
  /// Physical address of the frame or table to which this entry must point.
  [[nodiscard]] std::uint64_t frame_of(std::size_t level) const;
  void set_entry(std::size_t level, std::uint64_t word);
  [[nodiscard]] std::uint64_t entry(std::size_t level) const;

  /// The root table, to be loaded into CR3.
  [[nodiscard]] std::uint64_t root() const { return tables_; }

  /// Makes the access. Fails if the guest ends neither with a completed access nor with a page fault.
  Result<AccessOutcome> run(const vpmu::PagingState& state, vpmu::PagingAccess access, vpmu::PagingPrivilege privilege);

 private:
  /// The tables that map the guest's own pages: the table of level i is i pages after this address.
  static constexpr std::uint64_t own_tables = 0x1'0000;
  static constexpr std::uint64_t first_tables = 0x20'0000;

  [[nodiscard]] bool has_pae_root() const { return entry_bytes_ == 8 && levels_.front().index_bits == 2; }
  void poke_entry(std::uint64_t at, std::uint64_t word);
  void map_own_pages();
  void write_code();
  void write_descriptors(bool is_long);
  Result<void> load(const vpmu::PagingState& state, vpmu::PagingAccess access, vpmu::PagingPrivilege privilege);

  PagingVm& vm_;
  std::vector<GuestTableLevel> levels_;
  unsigned entry_bytes_;
  std::uint64_t tables_{
      first_tables};  ///< The root of this case, then its tables from the second level down, page by page.
};

}  // namespace vmm::test
