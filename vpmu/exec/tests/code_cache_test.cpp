#include "exec/blocks/code_cache.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/page_tables.hpp"

namespace vpmu::exec::test {
namespace {

/// Page tables and a page of code; all other pages are the same memory.
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

// An instruction that crosses two pages, the second of which is a different one each time: the memory that the cache
// uses for that must be bounded.
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

// Code at physical address 0, which a block without a page seems to have, too: a second lookup must not find that
// block.
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

// Decoding a block again takes new memory: this must be bounded, too. At the bound all blocks are discarded.
TEST(CodeCache, CodeThatChangesForEverTakesNoMoreMemory) {
  static Ram ram;
  constexpr std::uint64_t stays = 0x100, changes = 0x200;
  constexpr std::byte nop{0x90}, halt{0xF4};
  std::byte* const code = ram.bytes(0);
  code[stays] = nop;
  code[stays + 1] = halt;
  std::fill_n(code + changes, Block::max_ops, nop);
  NoPlatform nobody;
  Engine engine{ram, nobody};
  CpuState s;
  s.rflags = 2;
  s.paging.cr0 = 1;
  const auto run_at = [&](std::uint64_t rip) {
    s.rip = rip;
    engine.load(s);
    return engine.run(1);
  };
  ASSERT_EQ(run_at(stays), Stop::budget);
  constexpr std::uint64_t rounds = CodeCache::max_bytes / (Block::max_ops * sizeof(Op));
  constexpr std::array last{nop, std::byte{0xF8}};  // CLC
  for (std::uint64_t n = 0; n < rounds; ++n) {
    code[changes + Block::max_ops - 1] = last[n % last.size()];
    ASSERT_EQ(run_at(changes), Stop::budget);
  }
  EXPECT_EQ(engine.decoded_blocks(), 1 + rounds);
  ASSERT_EQ(run_at(stays), Stop::budget);
  EXPECT_EQ(engine.decoded_blocks(), 2 + rounds) << "it was thrown away as well";
}

// If such a block changes, it keeps its slot, by which others enter its compiled code: they must not run the old code.
TEST(CodeCache, ACompiledBlockInTwoPagesIsNotRunAsItWas) {
  static Ram ram;
  ram.set(Ram::table, 1, Ram::other * page_size);
  // The block begins two bytes before the next page.
  const Assembled jump = X86("add %rdx, %rbx; add %rdx, %rbx; add %rdx, %rbx; add %rdx, %rbx; jmp .+4");  // to `block`
  const Assembled block = X86("mov $0x04030201, %eax; dec %ecx; jnz .-23; hlt");                          // to `jump`
  constexpr std::uint64_t start = page_size - 18, across = page_size - 2;
  const auto put = [](std::uint64_t at, int byte) {
    ram.bytes(at < page_size ? Ram::code : Ram::other)[at % page_size] = static_cast<std::byte>(byte);
  };
  for (std::size_t i = 0; i < jump.size(); ++i) put(start + i, jump[i]);
  for (std::size_t i = 0; i < block.size(); ++i) put(across + i, block[i]);
  NoPlatform nobody;
  TestCode room;
  Engine engine{ram, nobody, &room, {.after = 1}};
  CpuState s;
  s.rflags = 2;
  s.rip = start;
  s.gpr[rcx] = 100;
  s.paging = four_level_paging(0);
  for (const int value : {0x02, 0x55, 0x66}) {
    put(across + 2, value);
    engine.load(s);
    ASSERT_EQ(engine.run(1'000), Stop::unsupported);
    s.rip = across;  // so that the next round finds the new block before others jump to the old one
    EXPECT_EQ(engine.state().gpr[rcx], 0U);
    EXPECT_EQ(engine.state().gpr[rax], 0x0403'0001U | static_cast<unsigned>(value) << 8U);
  }
  EXPECT_GT(engine.compiled_blocks(), 3U);
}

}  // namespace
}  // namespace vpmu::exec::test
