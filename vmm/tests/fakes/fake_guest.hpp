#pragma once
#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "fakes/fake_backend.hpp"
#include "fakes/fake_ram.hpp"
#include "memory/linear.hpp"
#include "support/x86.hpp"
#include "vcpu/breakpoints.hpp"
#include "vcpu/guest_view.hpp"
#include "vpmu/bits.hpp"

namespace vmm::test {

/// What a page of the guest may be used for. SDM 3A 4.6.
struct PageUse {
  bool is_user{};
  bool is_writable{true};
};

/// A 64-bit guest: RAM, four-level page tables that the test fills page by page, and a vCPU at ring 0.
class FakeGuest {
 public:
  static constexpr std::uint64_t cr0_paging = x86::cr0::PG::mask | x86::cr0::WP::mask | x86::cr0::PE::mask;
  static constexpr std::uint64_t efer_long = x86::efer::LME::mask | x86::efer::LMA::mask | x86::efer::NXE::mask;

  FakeRam ram{4 << 20};
  FakeBackend backend;
  LinearMemory memory{ram};
  GuestView view{backend, memory};
  Breakpoints breakpoints{backend};

  FakeGuest() {
    backend.special.cr0 = cr0_paging;
    backend.special.cr3 = new_frame();
    backend.special.cr4 = vpmu::bit(5);
    backend.special.efer = efer_long;
    backend.registers.rflags = 2;
    enter_ring(0);
  }

  void enter_ring(std::uint8_t cpl) {
    backend.special.cs = {.limit = 0xFFFF'FFFF, .type = 0xB, .present = 1, .dpl = cpl, .s = 1, .l = 1, .g = 1};
    backend.special.ss = {.limit = 0xFFFF'FFFF, .type = 0x3, .present = 1, .dpl = cpl, .db = 1, .s = 1, .g = 1};
    backend.special.cs.selector = cpl == 0 ? 0x10 : 0x33;
    backend.special.ss.selector = cpl == 0 ? 0x18 : 0x2B;
  }

  /// Maps the pages of `bytes` bytes at `at` to fresh frames.
  void map(std::uint64_t at, std::uint64_t bytes, PageUse use = {}) {
    const std::uint64_t first = at & ~(vpmu::page_size - 1);
    for (std::uint64_t page = first; page < at + bytes; page += vpmu::page_size) map_to(page, new_frame(), use);
  }
  /// Maps one page to a frame, which may lie outside RAM.
  void map_to(std::uint64_t at, std::uint64_t frame, PageUse use = {}) {
    const std::uint64_t attributes = 1 | (use.is_writable ? 2U : 0U) | (use.is_user ? 4U : 0U);
    set_entry(leaf(at), frame | attributes);
  }
  void unmap(std::uint64_t at) { set_entry(leaf(at), 0); }
  /// The page-table entry that maps `at`.
  [[nodiscard]] std::uint64_t entry(std::uint64_t at) { return get_entry(leaf(at)); }

  /// Stores bytes at a mapped address, whatever its protection, and leaves accessed and dirty bits alone.
  void store(std::uint64_t at, std::span<const std::byte> bytes) const {
    ASSERT_TRUE(memory.patch(paging_state(backend.special, backend.registers, {}), vpmu::GuestLinear{at}, bytes))
        << std::hex << at;
  }
  void store_word(std::uint64_t at, std::uint64_t word) const { store(at, std::as_bytes(std::span{&word, 1})); }
  void store_code(std::uint64_t at, const std::vector<std::uint8_t>& code) const {
    store(at, std::as_bytes(std::span{code}));
  }
  [[nodiscard]] std::vector<std::uint8_t> load(std::uint64_t at, std::size_t bytes) {
    std::vector<std::uint8_t> out(bytes);
    EXPECT_FALSE(view.read(vpmu::GuestLinear{at}, std::as_writable_bytes(std::span{out}))) << std::hex << at;
    return out;
  }
  [[nodiscard]] std::uint64_t load_word(std::uint64_t at) {
    std::uint64_t word = 0;
    EXPECT_FALSE(view.read(vpmu::GuestLinear{at}, std::as_writable_bytes(std::span{&word, 1}))) << std::hex << at;
    return word;
  }

 private:
  std::uint64_t new_frame() { return next_frame_ += vpmu::page_size; }
  std::uint64_t get_entry(std::uint64_t at) { return ram.read_word(vpmu::GuestPhysical{at}, 8).value_or(0); }
  void set_entry(std::uint64_t at, std::uint64_t entry) {
    ASSERT_TRUE(ram.write(vpmu::GuestPhysical{at}, std::as_bytes(std::span{&entry, 1})));
  }
  /// Where the leaf entry of `at` lies; makes the tables above it.
  std::uint64_t leaf(std::uint64_t at) {
    constexpr std::uint64_t everything = 7;
    std::uint64_t table = backend.special.cr3;
    for (unsigned shift = 39; shift > 12; shift -= 9) {
      const std::uint64_t where = table + ((at >> shift) & 0x1FF) * 8;
      if (get_entry(where) == 0) set_entry(where, new_frame() | everything);
      table = get_entry(where) & ~0xFFFULL;
    }
    return table + ((at >> 12) & 0x1FF) * 8;
  }

  std::uint64_t next_frame_{};
};

}  // namespace vmm::test
