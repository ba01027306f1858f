// Code stays decoded and compiled when translations change, but the engine must run what is mapped and in memory now.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "exec/tests/fixtures/address_spaces.hpp"

namespace vpmu::exec::test {
namespace {

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

// SDM 3A 4.6.1: a supervisor writes to a page that its entry has as read-only if CR0.WP is 0. What is known of code and
// of what may be read stays when WP changes, and so it does when bits of CR0 change that paging does not heed.
TEST_P(AddressSpaces, WpDecidesAboutWritesAtOnce) {
  constexpr std::uint64_t ts = 1U << 3, wp = 1U << 16;
  link_page(ram_, table, 2, third, 0);
  put(first, 0, X86("mov %al, 0x2000; jmp .-0x1007"));  // to 0
  for (unsigned n = 0; n < 4; ++n) {
    state_.paging.cr0 &= ~wp;
    EXPECT_EQ(run(3 * rounds), 0U);
    state_.paging.cr0 ^= ts;
    EXPECT_FALSE(engine_.flush_before(state_).has_value());
    EXPECT_EQ(run(3 * rounds), 0U);
    state_.paging.cr0 |= wp;
    EXPECT_FALSE(engine_.flush_before(state_).has_value());
    expect_left(Stop::fault, 0x1000);
    EXPECT_TRUE(engine_.missing() && engine_.missing()->write);
  }
  EXPECT_LE(engine_.decoded_blocks(), 3U);
}

// A page whose translation is forgotten is looked up anew, alone.
TEST_P(AddressSpaces, OnePageIsForgotten) {
  put(first, 0, X86("add 0x2000, %eax; jmp .-0x1007"));  // to 0
  put(third, 0, {1, 0, 0, 0});
  put(second, 0, {2, 0, 0, 0});
  EXPECT_EQ(run(3 * rounds), rounds);
  link(table, 2, second);
  EXPECT_EQ(run(3 * rounds), rounds) << "as a TLB has it";
  engine_.forget_page(0x2345);
  EXPECT_EQ(run(3 * rounds), 2 * rounds);
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
  put(first, 0, X86("call .+0x800; jmp .+251"));        // to 0x1800, the second
  put(first, 0x100, X86("call .+0x700; jmp .-0x105"));  // to 0x1800, the first
  put(first, 0x800, X86("add $1, %eax; ret"));
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
    engine_.resume(engine_.state(), TlbFlush{});
    EXPECT_EQ(run(3 * rounds), rounds);
    link(table, 1, second);
    engine_.resume(engine_.state(), TlbFlush{});
    EXPECT_EQ(run(3 * rounds), 16 * rounds);
  }
  EXPECT_EQ(engine_.decoded_blocks(), 3U);
}

TEST_P(AddressSpaces, APageThatIsGone) {
  EXPECT_EQ(run(3 * rounds), rounds);
  unlink(table, 1);
  engine_.resume(engine_.state(), TlbFlush{});
  expect_left(Stop::fault, 0x1000);
}

// The second page of a hot instruction is reclaimed and read in again.
TEST_P(AddressSpaces, TheSecondPageOfAnInstructionGoesAndComesBack) {
  put_across();
  EXPECT_EQ(run(3 * rounds), rounds);
  EXPECT_EQ(run(3 * rounds), rounds);
  const std::uint64_t decoded = engine_.decoded_blocks(), compiled = engine_.compiled_blocks();
  for (unsigned n = 0; n < 4; ++n) {
    unlink(table, 2);
    engine_.resume(engine_.state(), TlbFlush{});
    expect_left(Stop::unsupported, 0x1FFE);
    expect_left(Stop::unsupported, 0x1FFE);
    link(table, 2, n % 2 == 0 ? third : other_frame);
    if (n % 2 != 0) put(other_frame, 0, X86(".byte 1; jmp .-0x2001"));
    engine_.resume(engine_.state(), TlbFlush{});
    EXPECT_EQ(run(3 * rounds), rounds);
  }
  EXPECT_EQ(engine_.decoded_blocks(), decoded) << "the same bytes are the same block";
  EXPECT_EQ(engine_.compiled_blocks(), compiled) << "and it is still compiled";
  EXPECT_EQ(compiled, GetParam() == 0 ? 0U : 2U);
}

// A child of fork() has the same code, but nothing is mapped yet; its parent goes on beside it.
TEST_P(AddressSpaces, AfterForkPagesAreMappedOneByOne) {
  put_across();
  for (const std::size_t entry : {0U, 1U, 2U}) unlink(levels + table, entry);
  EXPECT_EQ(run(3 * rounds), rounds);
  EXPECT_EQ(run(3 * rounds), rounds);
  be_in(levels);
  expect_left(Stop::fault, 0);
  link(levels + table, 0, common);
  expect_left(Stop::fault, 0x1FFE);
  link(levels + table, 1, first);
  expect_left(Stop::unsupported, 0x1FFE);
  be_in(pml4);
  EXPECT_EQ(run(3 * rounds), rounds);
  be_in(levels);
  expect_left(Stop::unsupported, 0x1FFE);
  link(levels + table, 2, third);
  EXPECT_EQ(run(3 * rounds), rounds);
  be_in(pml4);
  EXPECT_EQ(run(3 * rounds), rounds);
}

// The first byte of hot code becomes an instruction that is none, and comes back.
TEST_P(AddressSpaces, AnInstructionBecomesUndefinedAndComesBack) {
  EXPECT_EQ(run(3 * rounds), rounds);
  EXPECT_EQ(run(3 * rounds), rounds);
  const std::uint64_t decoded = engine_.decoded_blocks(), compiled = engine_.compiled_blocks();
  for (unsigned n = 0; n < 4; ++n) {
    put(first, 0, {0x06});  // PUSH ES, in other modes
    engine_.written(GuestPhysical{at(first)});
    expect_left(Stop::unsupported, 0x1000);
    expect_left(Stop::unsupported, 0x1000);
    put(first, 0, {0x83});
    engine_.written(GuestPhysical{at(first)});
    EXPECT_EQ(run(3 * rounds), rounds);
  }
  EXPECT_EQ(engine_.decoded_blocks(), decoded);
  EXPECT_EQ(engine_.compiled_blocks(), compiled);
  EXPECT_EQ(compiled, GetParam() == 0 ? 0U : 2U);
}

// A block in two pages that was replaced while its second page was another one: what jumps to it must not run the old
// code, nor the new one once the page is back.
TEST_P(AddressSpaces, ABlockInTwoPagesIsReplacedAndTakesItsPlaceAgain) {
  put_across();
  put(other_frame, 0, X86(".byte 3; jmp .-0x2001"));
  for (unsigned n = 0; n < 4; ++n) {
    EXPECT_EQ(run(3 * rounds), rounds);
    EXPECT_EQ(run(3 * rounds), rounds);
    link(table, 2, other_frame);
    engine_.resume(engine_.state(), TlbFlush{});
    EXPECT_EQ(run(3 * rounds), 3 * rounds);
    unlink(table, 2);
    engine_.resume(engine_.state(), TlbFlush{});
    expect_left(Stop::unsupported, 0x1FFE);
    link(table, 2, third);
    engine_.resume(engine_.state(), TlbFlush{});
  }
}

// A device changes code without telling the engine: two blocks of one page that jump to each other.
TEST_P(AddressSpaces, CodeThatIsAnotherBehindItsBack) {
  put(first, 0, X86("jmp .+16"));                   // to 0x1010
  put(first, 0x10, X86("add $1, %eax; jmp .-19"));  // to 0x1000
  EXPECT_EQ(run(1 + 3 * rounds), rounds);
  EXPECT_EQ(run(1 + 3 * rounds), rounds);
  const std::uint64_t decoded = engine_.decoded_blocks();
  put(first, 0x12, {2});
  engine_.resume(engine_.state(), TlbFlush{});
  EXPECT_EQ(run(1 + 3 * rounds), 2 * rounds);
  EXPECT_EQ(engine_.decoded_blocks(), decoded + 1) << "the other one is as it was";
  put(first, 0x12, {1});
  engine_.resume(engine_.state(), TlbFlush{});
  EXPECT_EQ(run(1 + 3 * rounds), rounds);
}

// Another vCPU may write new code, which may be run at once: SDM 3A 8.1.3.
TEST_P(AddressSpaces, NewCodeInAPageThatIsKnown) {
  EXPECT_EQ(run(3 * rounds), rounds);
  put(first, 0x800, X86("add $5, %eax; ud2"));
  state_.rip = 0x1800;
  state_.gpr = {};
  engine_.resume(state_);
  EXPECT_EQ(engine_.run(10), Stop::unsupported);
  EXPECT_EQ(engine_.state().gpr[rax], 5U);
}

// An instruction that crosses two pages, of which the second changes.
TEST_P(AddressSpaces, AnInstructionInTwoPages) {
  put(common, 0, X86("jmp .+0x1FFD"));                                                             // to 0x1FFD
  for (const Page page : {first, second}) put(page, page_size - 3, X86("nop; .byte 0x83, 0xC0"));  // add $..., %eax
  put(third, 0, X86(".byte 1; jmp .-0x2001"));                                                     // ...1; to 0
  EXPECT_EQ(run(4 * rounds), rounds);
  EXPECT_EQ(run(4 * rounds), rounds);
  put(third, 0, {3});
  engine_.written(GuestPhysical{at(third)});
  EXPECT_EQ(run(4 * rounds), 3 * rounds);
  put(third, 0, {4});
  engine_.resume(engine_.state(), TlbFlush{});
  EXPECT_EQ(run(4 * rounds), 4 * rounds);
  put(second, page_size - 3, X86("nop; .byte 0x83, 0xE8"));  // sub $..., %eax
  be_in(levels);
  EXPECT_EQ(run(4 * rounds), static_cast<std::uint32_t>(0 - 4 * rounds));
  be_in(pml4);
  EXPECT_EQ(run(4 * rounds), 4 * rounds);
}

// The guest writes to its own code, which is compiled and linked.
TEST_P(AddressSpaces, CodeThatTheGuestItselfChanges) {
  put(first, 0, X86("add $1, %eax; jmp .+13"));        // to 0x1010
  put(first, 0x10, X86("incb 0x1002; jmp .-0x1017"));  // to 0
  EXPECT_EQ(run(5 * 4), 1U + 2 + 3 + 4);
}

/// Counts accesses and fetches by whether their page is global.
class GlobalPages final : public Observer {
 public:
  void fetched(const SeenCode& code) override { ++fetches.at(code.global ? 1 : 0); }
  void accessed(const SeenAccess& access, std::uint64_t) override { ++accesses.at(access.global ? 1 : 0); }
  void retired(bool, bool) override {}
  void branched(const SeenBranch&) override {}
  void abandoned() override {}
  void flushed_line(const SeenFlush&) override {}
  void flushed(const TlbFlush&) override {}
  std::array<std::uint64_t, 2> fetches{}, accesses{};
};

// SDM 3A 4.10.2.4.
TEST_P(AddressSpaces, TellWhichPagesAreGlobal) {
  constexpr std::uint64_t global = 1 << 8;
  link_page(ram_, table, 1, first, writable | global);
  link_page(ram_, table, 2, third, writable | global);
  link(table, 3, other_frame);
  put(first, 0, X86("add %eax, 0x2000; incl 0x2ffe; mov 0x3000, %ebx; jmp .-0x1015"));  // to 0
  state_.paging.cr4 |= x86::cr4::PGE::mask;
  GlobalPages seen;
  engine_.observe(&seen);
  run(5 * rounds);
  EXPECT_EQ(seen.fetches, (std::array{rounds, rounds}));
  EXPECT_EQ(seen.accesses, (std::array{3 * rounds, 4 * rounds})) << "of the one in two pages both halves";
}

}  // namespace
}  // namespace vpmu::exec::test
