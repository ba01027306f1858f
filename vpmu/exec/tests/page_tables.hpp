#pragma once
#include <cstring>
#include <initializer_list>

#include "exec/tests/flat_ram.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/paging.hpp"

namespace vpmu::exec::test {

/// Rights that an entry of a page table gives. SDM 3A table 4-19.
constexpr std::uint64_t present = 1, writable = 2, user = 4;

/// Four levels of tables from `cr3` on, with CR0.WP. SDM 3A 4.5.
inline PagingState four_level_paging(std::uint64_t cr3) {
  return {.cr0 = bit(31) | bit(16) | 1,
          .cr3 = cr3,
          .cr4 = bit(5),
          .efer = bit(8) | bit(10),
          .physical_width = 52,
          .alignment_check = false};
}
/// Pages by their numbers in `ram`.
inline void link_page(const FlatRam& ram, std::uint64_t table, std::size_t entry, std::uint64_t to,
                      std::uint64_t rights) {
  const std::uint64_t word = (ram.address() + to * page_size) | present | rights;
  std::memcpy(&ram.bytes()[table * page_size + entry * sizeof word], &word, sizeof word);
}
inline void put_code(const FlatRam& ram, std::uint64_t page, std::size_t offset, std::initializer_list<unsigned> code) {
  std::size_t at = page * page_size + offset;
  for (const unsigned byte : code) ram.bytes()[at++] = static_cast<std::byte>(byte);
}

}  // namespace vpmu::exec::test
