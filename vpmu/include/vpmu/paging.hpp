#pragma once
#include <cstdint>
#include <optional>
#include <variant>

#include "vpmu/address.hpp"

namespace vpmu {

/// The registers that decide how the guest's linear addresses are translated. SDM 3A 4.1.
struct PagingState {
  std::uint64_t cr0{};
  std::uint64_t cr3{};
  std::uint64_t cr4{};
  std::uint64_t efer{};
  std::uint8_t physical_width{39};  ///< CPUID.80000008H:EAX[7:0], bits; higher bits in an entry are reserved.
  bool alignment_check{};           ///< RFLAGS.AC: lets supervisor data accesses reach user pages under SMAP.
};

enum class PagingAccess : std::uint8_t { read, write, execute };
enum class PagingPrivilege : std::uint8_t { supervisor, user };

/// Whether the walk sets accessed and dirty bits, as the CPU does.
enum class AccessedDirty : std::uint8_t { leave, set };

/// Physical memory as the page walker sees it. Entries are read and changed as whole aligned words.
class PhysicalWords {
 public:
  /// Reads `bytes` (4 or 8) at an aligned address; empty when there is no RAM.
  virtual std::optional<std::uint64_t> read_word(GuestPhysical at, unsigned bytes) = 0;
  /// Atomically replaces `expected` by `desired`; false when there is no RAM or another CPU changed the word.
  virtual bool exchange_word(GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) = 0;

 protected:
  ~PhysicalWords() = default;
};

/// A linear address found.
struct Mapped {
  GuestPhysical address;      ///< Of the byte asked for.
  std::uint64_t page_bytes{}; ///< 4 KiB, 2 MiB, 4 MiB or 1 GiB.
};

/// The access would raise #PF. SDM 3A 4.7.
struct PageFault {
  GuestLinear address;
  std::uint32_t error_code{};
};

/// A paging-structure entry lies where there is no RAM.
struct BadTable {
  GuestPhysical entry;
};

/// The linear address is not canonical: #GP or #SS on a CPU.
struct NonCanonical {};

using Walk = std::variant<Mapped, PageFault, BadTable, NonCanonical>;

/// Walks the guest's page tables for one byte: no paging, 32-bit, PAE, 4-level and 5-level, large pages; applies U/S, R/W, CR0.WP,
/// NX, SMEP, SMAP and reserved bits. Reads at most five entries. SDM 3A chapter 4. Protection keys are not applied.
Walk translate(const PagingState& state, PhysicalWords& memory, GuestLinear at, PagingAccess access,
               PagingPrivilege privilege, AccessedDirty accessed_dirty);

}  // namespace vpmu
