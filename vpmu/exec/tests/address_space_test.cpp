// Code stays decoded and compiled when translations change, but the engine must run what is mapped and in memory now.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <initializer_list>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/page_tables.hpp"

namespace vpmu::exec::test {
namespace {

/// Two address spaces. At linear 0 both have the same page of code; at 1000H one has `first` and the other `second`;
/// at 2000H `third`. The parameter: after how many times a block is compiled.
class AddressSpaces : public testing::TestWithParam<std::uint32_t> {
 protected:
  enum Page : std::uint64_t {
    pml4,
    pdpt,
    directory,
    table,
    levels,
    other_pdpt,
    other_directory,
    other_table,
    common,
    first,
    second,
    third,
    count
  };

  AddressSpaces() {
    for (const Page root : {pml4, levels}) {
      for (std::uint64_t level = root; level < root + table; ++level) link(level, 0, level + 1);
      link(root + table, 0, common);
      link(root + table, 2, third);
    }
    link(table, 1, first);
    link(levels + table, 1, second);
    state_.paging = four_level_paging(at(pml4));
    state_.rflags = 2;
    engine_.load(state_);
    put(common, 0, {0xE9, 0xFB, 0x0F, 0, 0});                        // jmp 0x1000
    put(first, 0, {0x83, 0xC0, 1, 0xE9, 0xF8, 0xEF, 0xFF, 0xFF});    // add $1, %eax; jmp 0
    put(second, 0, {0x83, 0xC0, 16, 0xE9, 0xF8, 0xEF, 0xFF, 0xFF});  // add $16, %eax; jmp 0
  }

  [[nodiscard]] std::uint64_t at(std::uint64_t page) const { return ram_.address() + page * page_size; }
  void put(std::uint64_t page, std::size_t offset, std::initializer_list<unsigned> code) {
    put_code(ram_, page, offset, code);
  }
  void link(std::uint64_t table_page, std::size_t entry, std::uint64_t to) {
    link_page(ram_, table_page, entry, to, writable);
  }
  /// Runs from address 0 with RAX 0, and returns RAX.
  std::uint64_t run(std::uint64_t instructions) {
    state_.rip = 0;
    state_.gpr = {};
    engine_.resume(state_);
    EXPECT_EQ(engine_.run(instructions), Stop::budget);
    return engine_.state().gpr[rax];
  }
  void be_in(std::uint64_t root) { state_.paging.cr3 = at(root); }

  static constexpr std::uint64_t rounds = 10;
  FlatRam ram_{count * page_size};
  CpuState state_;
  NoPlatform platform_;
  TestCode host_code_;
  Engine engine_{ram_, platform_, &host_code_, Compiling{.after = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Interpreted, AddressSpaces, testing::Values(0));
INSTANTIATE_TEST_SUITE_P(Compiled, AddressSpaces, testing::Values(1));

TEST_P(AddressSpaces, EachHasItsOwnCodeAndKeepsIt) {
  for (unsigned n = 0; n < 4; ++n) {
    be_in(pml4);
    EXPECT_EQ(run(3 * rounds), rounds);
    be_in(levels);
    EXPECT_EQ(run(3 * rounds), 16 * rounds);
  }
  EXPECT_EQ(engine_.decoded_blocks(), 3U);
  EXPECT_EQ(engine_.compiled_blocks(), GetParam() == 0 ? 0U : 3U);
}

// A change of CR3 costs one check for each page, not for each entry of each block.
TEST_P(AddressSpaces, BlocksStayLinked) {
  const auto both = [&](std::uint64_t instructions) {
    const std::uint64_t before = engine_.entered_compiled();
    for (const std::uint64_t root : {std::uint64_t{pml4}, std::uint64_t{levels}}) {
      be_in(root);
      run(instructions);
    }
    return engine_.entered_compiled() - before;
  };
  both(30 * rounds);
  const std::uint64_t few = both(3 * rounds);
  EXPECT_EQ(both(300 * rounds), few) << "no more often for a hundred times the work";
  EXPECT_EQ(few != 0, GetParam() != 0);
  EXPECT_LE(few, 8U) << "in each of two address spaces two pages, and the way to what is another page there";
}

// Returns to two callers, 256 bytes apart, whose blocks share an entry of the near jump table but not of the far one.
TEST_P(AddressSpaces, ComputedJumpsFindBlocksThatShareAPlace) {
  constexpr std::uint64_t first_call = 0x1000, second_call = first_call + CompiledState::near_jumps;
  static_assert(CompiledState::near_place(first_call + 5) == CompiledState::near_place(second_call + 5));
  static_assert(CompiledState::far_place(first_call + 5) != CompiledState::far_place(second_call + 5));
  put(first, 0, {0xE8, 0xFB, 0x07, 0, 0, 0xE9, 0xF6, 0, 0, 0});               // call 0x1800; jmp to the second
  put(first, 0x100, {0xE8, 0xFB, 0x06, 0, 0, 0xE9, 0xF6, 0xFE, 0xFF, 0xFF});  // call 0x1800; jmp to the first
  put(first, 0x800, {0x83, 0xC0, 1, 0xC3});                                   // add $1, %eax; ret
  const auto enters = [&](std::uint64_t calls) {
    const std::uint64_t before = engine_.entered_compiled();
    state_.rip = first_call;
    state_.gpr = {};
    state_.gpr[rsp] = 0x2800;
    engine_.resume(state_);
    EXPECT_EQ(engine_.run(4 * calls), Stop::budget);
    EXPECT_EQ(engine_.state().gpr[rax], calls);
    return engine_.entered_compiled() - before;
  };
  enters(50);
  const std::uint64_t few = enters(10);
  EXPECT_EQ(enters(1000), few);
  EXPECT_EQ(few, GetParam() == 0 ? 0U : 1U);
}

// A page of a program is mapped to another frame, and back: SDM 3A 4.10.4.
TEST_P(AddressSpaces, APageThatIsMappedElsewhere) {
  for (unsigned n = 0; n < 4; ++n) {
    link(table, 1, first);
    engine_.forget_translations();
    EXPECT_EQ(run(3 * rounds), rounds);
    link(table, 1, second);
    engine_.forget_translations();
    EXPECT_EQ(run(3 * rounds), 16 * rounds);
  }
  EXPECT_EQ(engine_.decoded_blocks(), 3U);
}

TEST_P(AddressSpaces, APageThatIsGone) {
  EXPECT_EQ(run(3 * rounds), rounds);
  const std::uint64_t nothing = 0;
  std::memcpy(&ram_.bytes()[table * page_size + sizeof nothing], &nothing, sizeof nothing);
  engine_.forget_translations();
  state_.rip = 0;
  engine_.resume(state_);
  EXPECT_EQ(engine_.run(10), Stop::fault);
  EXPECT_EQ(engine_.state().rip, 0x1000U);
}

// A device changes code without telling the engine: two blocks of one page that jump to each other.
TEST_P(AddressSpaces, CodeThatIsAnotherBehindItsBack) {
  put(first, 0, {0xEB, 0x0E});                    // jmp to 0x1010
  put(first, 0x10, {0x83, 0xC0, 1, 0xEB, 0xEB});  // add $1, %eax; jmp to 0x1000
  EXPECT_EQ(run(1 + 3 * rounds), rounds);
  EXPECT_EQ(run(1 + 3 * rounds), rounds);
  const std::uint64_t decoded = engine_.decoded_blocks();
  put(first, 0x12, {2});
  engine_.forget_translations();
  EXPECT_EQ(run(1 + 3 * rounds), 2 * rounds);
  EXPECT_EQ(engine_.decoded_blocks(), decoded + 1) << "the other one is as it was";
  put(first, 0x12, {1});
  engine_.forget_translations();
  EXPECT_EQ(run(1 + 3 * rounds), rounds);
}

// Another vCPU may write new code, which may be run at once: SDM 3A 8.1.3.
TEST_P(AddressSpaces, NewCodeInAPageThatIsKnown) {
  EXPECT_EQ(run(3 * rounds), rounds);
  put(first, 0x800, {0x83, 0xC0, 5, 0x0F, 0x0B});  // add $5, %eax; ud2
  state_.rip = 0x1800;
  state_.gpr = {};
  engine_.resume(state_);
  EXPECT_EQ(engine_.run(10), Stop::unsupported);
  EXPECT_EQ(engine_.state().gpr[rax], 5U);
}

// An instruction that crosses two pages, of which the second changes.
TEST_P(AddressSpaces, AnInstructionInTwoPages) {
  put(common, 0, {0xE9, 0xF8, 0x1F, 0, 0});                                              // jmp 0x1FFD
  for (const Page page : {first, second}) put(page, page_size - 3, {0x90, 0x83, 0xC0});  // nop; add $..., %eax
  put(third, 0, {1, 0xE9, 0xFA, 0xDF, 0xFF, 0xFF});                                      // ...1; jmp 0
  EXPECT_EQ(run(4 * rounds), rounds);
  EXPECT_EQ(run(4 * rounds), rounds);
  put(third, 0, {3});
  engine_.written(GuestPhysical{at(third)});
  EXPECT_EQ(run(4 * rounds), 3 * rounds);
  put(third, 0, {4});
  engine_.forget_translations();
  EXPECT_EQ(run(4 * rounds), 4 * rounds);
  put(second, page_size - 3, {0x90, 0x83, 0xE8});  // nop; sub
  be_in(levels);
  EXPECT_EQ(run(4 * rounds), static_cast<std::uint32_t>(0 - 4 * rounds));
  be_in(pml4);
  EXPECT_EQ(run(4 * rounds), 4 * rounds);
}

// The guest writes to its own code, which is compiled and linked.
TEST_P(AddressSpaces, CodeThatTheGuestItselfChanges) {
  put(first, 0, {0x83, 0xC0, 1, 0xEB, 0x0B});                                            // add $1, %eax; jmp 0x1010
  put(first, 0x10, {0xFE, 0x04, 0x25, 0x02, 0x10, 0, 0, 0xE9, 0xE4, 0xEF, 0xFF, 0xFF});  // incb 0x1002; jmp 0
  EXPECT_EQ(run(5 * 4), 1U + 2 + 3 + 4);
}

}  // namespace
}  // namespace vpmu::exec::test
