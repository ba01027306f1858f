#include "gt/paging.hpp"

#include <array>

#include "gt/asm.hpp"
#include "vpmu/x86.hpp"

namespace gt::paging {
namespace {

using Table = std::array<std::uint64_t, 512>;

inline constexpr std::uint64_t large = 1ULL << 7, uncached = (1ULL << 3) | (1ULL << 4);
inline constexpr std::uint64_t large_page = 2ULL << 20;

alignas(4096) constinit Table pml4{};
alignas(4096) constinit Table identity_pdpt{};
alignas(4096) constinit std::array<Table, 4> identity_pd{};
alignas(4096) constinit Table window_pdpt{};
alignas(4096) constinit Table window_pd{};
alignas(4096) constinit std::array<Table, window_pages / 512> window_pt{};

std::uint64_t link_to(const Table& table) {
  return reinterpret_cast<std::uint64_t>(&table) | present | writable | user;
}

// The processor changes the guest's own tables (accessed, dirty), hence volatile.
volatile std::uint64_t& entry_of(std::uint64_t linear) {
  const std::uint64_t page = (linear - window) / 4096;
  return window_pt[(page / 512) % window_pt.size()][page % 512];
}

}  // namespace

void set_up() {
  for (std::uint64_t gib = 0; gib < identity_pd.size(); ++gib) {
    for (std::uint64_t i = 0; i < 512; ++i) {
      const std::uint64_t at = (gib << 30) + i * large_page;
      identity_pd[gib][i] =
          at | present | writable | user | large | (at == x86::apic_base::base_after_reset ? uncached : 0);
    }
    identity_pdpt[gib] = link_to(identity_pd[gib]);
  }
  for (std::uint64_t i = 0; i < window_pt.size(); ++i) window_pd[i] = link_to(window_pt[i]);
  window_pdpt[0] = link_to(window_pd);
  pml4[0] = link_to(identity_pdpt);
  pml4[window >> 39] = link_to(window_pdpt);
  write_cr3(reinterpret_cast<std::uint64_t>(&pml4));
  write_cr0(read_cr0() | x86::cr0::WP::mask);
}

void change(std::uint64_t linear, std::uint64_t physical, std::uint64_t flags) {
  entry_of(linear) = physical | flags | present;
}

void map(std::uint64_t linear, std::uint64_t physical, std::uint64_t flags) {
  change(linear, physical, flags);
  invlpg(linear);
}

void unmap(std::uint64_t linear) {
  entry_of(linear) = 0;
  invlpg(linear);
}

std::uint64_t entry(std::uint64_t linear) { return entry_of(linear); }

}  // namespace gt::paging
