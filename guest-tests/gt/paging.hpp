#pragma once
#include <cstdint>

/// The page tables of the test kernel: 4 GiB mapped linear = physical for CPL 0 and 3, and a window of 4 KiB pages for
/// tests to shape.
namespace gt::paging {

inline constexpr std::uint64_t present = 1ULL << 0, writable = 1ULL << 1, user = 1ULL << 2, accessed = 1ULL << 5,
                               dirty = 1ULL << 6, no_execute = 1ULL << 63;

/// A window of 1024 pages at a linear address that equals no physical one; empty at the start of a test.
inline constexpr std::uint64_t window = 0x80'0000'0000;
inline constexpr unsigned window_pages = 1024;

/// Switches to the kernel's own tables; sets CR0.WP.
void set_up();

/// Maps one page of the window. `linear` and `physical` are page aligned. Flags as in an entry, accessed and dirty
/// start clear.
void map(std::uint64_t linear, std::uint64_t physical, std::uint64_t flags);
void unmap(std::uint64_t linear);
/// Changes the page's entry and nothing else: translations may be stale until INVLPG or MOV to CR3.
void change(std::uint64_t linear, std::uint64_t physical, std::uint64_t flags);
/// The page's entry as it is now: shows accessed and dirty.
std::uint64_t entry(std::uint64_t linear);

}  // namespace gt::paging
