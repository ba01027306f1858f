#include "exec/code_cache.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "exec/engine.hpp"
#include "exec/tests/page_tables.hpp"

namespace vpmu::exec::test {
namespace {

/// Page tables and a page of code; every other page is one and the same.
class Ram final : public exec::Ram {
 public:
  enum Page : std::uint64_t { pml4, pdpt, directory, table, code, other, count };

  Ram() {
    for (std::uint64_t level = pml4; level < table; ++level) set(level, 0, (level + 1) * page_size);
    set(table, 0, code * page_size);
  }
  void set(std::uint64_t table_page, std::uint64_t entry, std::uint64_t to) {
    const std::uint64_t word = to | 3;
    std::memcpy(bytes(table_page) + 8 * entry, &word, sizeof word);
  }
  std::byte* bytes(std::uint64_t page) { return memory_.data() + std::min<std::uint64_t>(page, other) * page_size; }
  std::byte* page(GuestPhysical at) override { return bytes(at.value() / page_size); }
  void will_write(GuestPhysical) override {}
  std::optional<std::uint64_t> read_word(GuestPhysical at, unsigned size) override {
    std::uint64_t word{};
    std::memcpy(&word, bytes(at.value() / page_size) + at.value() % page_size, size);
    return word;
  }
  bool exchange_word(GuestPhysical at, unsigned size, std::uint64_t, std::uint64_t desired) override {
    std::memcpy(bytes(at.value() / page_size) + at.value() % page_size, &desired, size);
    return true;
  }

 private:
  alignas(page_size) std::array<std::byte, count * page_size> memory_{};
};

// One instruction in two pages, the second of which is another one each time: what the cache remembers of that has an
// end.
TEST(CodeCache, ABlockInAnyNumberOfPagesTakesNoMoreMemory) {
  static Ram ram;
  ram.bytes(Ram::code)[page_size - 1] = std::byte{0x66};
  ram.bytes(Ram::other)[0] = std::byte{0x90};
  ram.bytes(Ram::other)[1] = std::byte{0xF4};
  NoPlatform nobody;
  Engine engine{ram, nobody};
  CpuState s;
  s.rflags = 2;
  s.rip = page_size - 1;
  s.paging = four_level_paging(0);
  constexpr std::uint64_t rounds = 2 * code_slots + 100;
  for (std::uint64_t n = 0; n < rounds; ++n) {
    ram.set(Ram::table, 1, (Ram::other + n) * page_size);
    engine.load(s);
    ASSERT_EQ(engine.run(1), Stop::budget);
  }
  EXPECT_EQ(engine.decoded_blocks(), 3U) << "all that was known was thrown away twice";
}

// At the physical address 0, which a block without pages seems to have: the second look must not find something to run.
TEST(CodeCache, WhatBecameUnknownStaysSo) {
  static Ram ram;
  constexpr std::uint64_t at = 0x100;
  constexpr std::byte nop{0x90}, no_instruction{0x06};  // PUSH ES, in other modes
  std::byte* const code = ram.bytes(0) + at;
  code[0] = nop;
  code[1] = no_instruction;
  NoPlatform nobody;
  Engine engine{ram, nobody};
  CpuState s;
  s.rflags = 2;
  s.rip = at;
  s.paging.cr0 = 1;
  engine.load(s);
  ASSERT_EQ(engine.run(1), Stop::budget);
  code[0] = no_instruction;
  for (int look = 0; look < 3; ++look) {
    engine.load(s);
    EXPECT_EQ(engine.run(1), Stop::unsupported);
    EXPECT_EQ(engine.run(1), Stop::unsupported);
  }
}

}  // namespace
}  // namespace vpmu::exec::test
