#pragma once
#include <cstdint>
#include <optional>
#include <variant>

#include "vpmu/address.hpp"

namespace vpmu {

/// The registers and CPU features that decide how the guest's linear addresses are translated. SDM 3A 4.1.
struct PagingState {
  std::uint64_t cr0{};
  std::uint64_t cr3{};
  std::uint64_t cr4{};
  std::uint64_t efer{};
  std::uint8_t physical_width{
      39};                    ///< CPUID.80000008H:EAX[7:0], 32 to 52; higher address bits in an entry are reserved.
  bool alignment_check{};     ///< RFLAGS.AC: lets explicit supervisor data accesses reach user pages under SMAP.
                              ///< False for implicit accesses such as the PMU's own (SDM 3A 4.6).
  bool gigabyte_pages{true};  ///< CPUID.80000001H:EDX[26]; without it the PS bit of a PDPTE is reserved.
};

/// What an access does. SDM 3A 4.6.
enum class PagingAccess : std::uint8_t { read, write, execute };
/// The privilege of an access: user at CPL 3, else supervisor; supervisor for implicit accesses at any CPL. SDM 3A 4.6.
enum class PagingPrivilege : std::uint8_t { supervisor, user };

/// Whether the walk sets accessed and dirty bits, as the CPU does.
enum class AccessedDirty : std::uint8_t { leave, set };

/// Physical memory as the page walker sees it. Entries are read and changed as whole aligned words.
class PhysicalWords {
 public:
  /// Reads `bytes` (4 or 8) at an aligned address, zero-extended; empty when there is no RAM.
  virtual std::optional<std::uint64_t> read_word(GuestPhysical at, unsigned bytes) = 0;
  /// Atomically replaces `expected` by `desired`; false when there is no RAM or another CPU changed the word.
  virtual bool exchange_word(GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) = 0;

 protected:
  ~PhysicalWords() = default;
};

/// The result of a successful walk.
struct Mapped {
  GuestPhysical address;       ///< Of the byte asked for. It may lie outside RAM: the walk does not check that.
  std::uint64_t page_bytes{};  ///< 4 KiB, 2 MiB, 4 MiB or 1 GiB. Without paging 4 KiB.
  bool global{};               ///< A global page, with CR4.PGE. SDM 3A 4.10.2.4.
  friend constexpr bool operator==(const Mapped&, const Mapped&) = default;
};

/// The bits of a page-fault error code. SDM 3A 4.7, figure 4-12.
namespace page_fault_error {
inline constexpr std::uint32_t P = 1U << 0;     ///< The page was present: a protection or reserved-bit violation.
inline constexpr std::uint32_t W = 1U << 1;     ///< A write.
inline constexpr std::uint32_t U = 1U << 2;     ///< A user-mode access.
inline constexpr std::uint32_t RSVD = 1U << 3;  ///< A reserved bit is set in an entry.
inline constexpr std::uint32_t I = 1U << 4;     ///< An instruction fetch, while SMEP or execute-disable is on.
}  // namespace page_fault_error

/// The access would raise #PF. SDM 3A 4.7.
struct PageFault {
  GuestLinear address;         ///< What CR2 would hold.
  std::uint32_t error_code{};  ///< Bits of `page_fault_error`.
  friend constexpr bool operator==(const PageFault&, const PageFault&) = default;
};

/// A paging-structure entry lies where there is no RAM.
struct BadTable {
  GuestPhysical entry;
  friend constexpr bool operator==(const BadTable&, const BadTable&) = default;
};

/// The linear address is not canonical: #GP or #SS on a CPU.
struct NonCanonical {
  friend constexpr bool operator==(const NonCanonical&, const NonCanonical&) = default;
};

/// The tables kept changing under the walk, or accessed and dirty bits cannot be stored in this memory.
struct Contended {
  GuestPhysical entry;
  friend constexpr bool operator==(const Contended&, const Contended&) = default;
};

/// What a walk found, or why it found nothing.
using Walk = std::variant<Mapped, PageFault, BadTable, NonCanonical, Contended>;

/// Walks the guest's page tables for one byte: no paging, 32-bit, PAE, 4-level and 5-level, large pages; applies U/S,
/// R/W, CR0.WP, NX, SMEP, SMAP and reserved bits. SDM 3A chapter 4. Protection keys are not applied.
///
/// Outside IA-32e mode linear addresses have 32 bits: bits 63:32 of `at` are ignored, and `PageFault::address` lacks
/// them. Accessed and dirty bits are set only when the whole walk succeeds; a CPU may set some of them before a fault.
/// PAE: the four PDPTEs are read from memory at each walk, whereas a CPU reads them when CR3 is loaded and keeps them.
/// So a PDPTE that is changed without a reload of CR3 takes effect early. Reserved bits of a PDPTE, for which a CPU
/// raises #GP at the reload, are reported as a page fault with RSVD; bit 5 is ignored, because QEMU's TCG sets it as an
/// accessed bit.
///
/// Reads at most five entries, unless other CPUs change them meanwhile: then it starts again, at most 16 times. Never
/// allocates.
Walk translate(const PagingState& state, PhysicalWords& memory, GuestLinear at, PagingAccess access,
               PagingPrivilege privilege, AccessedDirty accessed_dirty);

}  // namespace vpmu
