// What the engine keeps of an address space that the guest has left, and what it forgets.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "exec/memory/address_spaces.hpp"
#include "exec/tests/fixtures/address_spaces.hpp"

namespace vpmu::exec::test {
namespace {

// What MOV to CR3 keeps or loses, and what INVLPG loses: the engine forgets no more than that, and no less. SDM 3A
// 4.10.4.1.
class KeptSpaces : public AddressSpaces {
 protected:
  static constexpr std::uint64_t global = 1 << 8;

  KeptSpaces() {
    state_.paging.cr4 |= x86::cr4::PCIDE::mask | x86::cr4::PGE::mask;
    put(third, 0, {1, 0, 0, 0});
    put(other_frame, 0, {2, 0, 0, 0});
    for (const Page page : {first, second}) put(page, 0, X86("add 0x2000, %eax; jmp .-0x1007"));  // to 0
    go_to(pml4, TlbFlush::Of::everything);
  }
  [[nodiscard]] std::uint16_t pcid() const { return x86::pcid_of(state_.paging.cr3, state_.paging.cr4); }
  /// Each has its own PCID.
  void go_to(std::uint64_t root, TlbFlush::Of of) {
    state_.paging.cr3 = at(root) | (root == pml4 ? 1 : 2);
    engine_.resume(state_, TlbFlush{.of = of, .pcid = pcid()});
  }
  void invalidate(std::uint64_t linear) {
    engine_.resume(state_, TlbFlush{.of = TlbFlush::Of::page, .pcid = pcid(), .linear = linear});
  }
  /// Runs in both, and is in the first one then.
  void run_in_both() {
    for (const Page root : {pml4, levels, pml4}) {
      go_to(root, TlbFlush::Of::nothing);
      EXPECT_EQ(run(3 * rounds), rounds);
    }
  }
  /// What is at 2000H is twice as much, in both.
  void change_data() {
    for (const std::uint64_t root : {std::uint64_t{0}, std::uint64_t{levels}}) link(root + table, 2, other_frame);
  }
};
INSTANTIATE_TEST_SUITE_P(Interpreted, KeptSpaces, testing::Values(0));
INSTANTIATE_TEST_SUITE_P(Compiled, KeptSpaces, testing::Values(1));

TEST_P(KeptSpaces, ComeBackAsTheyWere) {
  // Each has its data elsewhere: of pages at one address the engine knows the last.
  link(levels + table, 3, third);
  put(second, 0, X86("add 0x3000, %eax; jmp .-0x1007"));
  engine_.written(GuestPhysical{at(second)});
  run_in_both();
  change_data();
  link(levels + table, 3, other_frame);
  EXPECT_EQ(run(3 * rounds), rounds) << "as a TLB has it";
  go_to(levels, TlbFlush::Of::nothing);
  EXPECT_EQ(run(3 * rounds), rounds);
  go_to(pml4, TlbFlush::Of::nothing);
  EXPECT_EQ(run(3 * rounds), rounds);
  go_to(levels, TlbFlush::Of::address_space);
  EXPECT_EQ(run(3 * rounds), 2 * rounds);
  go_to(pml4, TlbFlush::Of::nothing);
  EXPECT_EQ(run(3 * rounds), rounds) << "only that one was lost";
  go_to(pml4, TlbFlush::Of::address_space);
  EXPECT_EQ(run(3 * rounds), 2 * rounds);
}

TEST_P(KeptSpaces, CodeComesBackAsItWas) {
  run_in_both();
  const std::uint64_t decoded = engine_.decoded_blocks(), compiled = engine_.compiled_blocks();
  link(table, 1, other_frame);  // no code
  go_to(levels, TlbFlush::Of::nothing);
  go_to(pml4, TlbFlush::Of::nothing);
  EXPECT_EQ(run(3 * rounds), rounds) << "as a TLB has it";
  EXPECT_EQ(engine_.decoded_blocks(), decoded);
  EXPECT_EQ(engine_.compiled_blocks(), compiled);
  go_to(levels, TlbFlush::Of::nothing);
  go_to(pml4, TlbFlush::Of::address_space);
  state_.rip = 0;
  engine_.resume(state_);
  engine_.run(3 * rounds);
  EXPECT_NE(engine_.state().gpr[rax], 2 * rounds);
  EXPECT_GT(engine_.decoded_blocks(), decoded);
}

TEST_P(KeptSpaces, LoseAPageInAll) {
  run_in_both();
  change_data();
  invalidate(0x1FFF);
  EXPECT_EQ(run(3 * rounds), rounds);
  invalidate(0x2FFF);
  EXPECT_EQ(run(3 * rounds), 2 * rounds);
  // A CPU may keep it in the other one; the engine does not.
  go_to(levels, TlbFlush::Of::nothing);
  EXPECT_EQ(run(3 * rounds), 2 * rounds);
}

TEST_P(KeptSpaces, LoseAPageOfCode) {
  run_in_both();
  unlink(table, 1);
  EXPECT_EQ(run(3 * rounds), rounds) << "as a TLB has it";
  invalidate(0x2000);
  EXPECT_EQ(run(3 * rounds), rounds);
  invalidate(0x1800);
  expect_left(Stop::fault, 0x1000);
}

// An instruction in two pages, of which the second is another one in the other space, or is gone.
TEST_P(KeptSpaces, LoseTheSecondPageOfAnInstruction) {
  put_across();
  for (const Page page : {first, second}) put(page, page_size - 2, {0x83, 0xC0});
  put(other_frame, 0, X86(".byte 2; jmp .-0x2001"));
  link(levels + table, 2, other_frame);
  go_to(pml4, TlbFlush::Of::everything);
  for (unsigned n = 0; n < 4; ++n) {
    go_to(pml4, TlbFlush::Of::nothing);
    EXPECT_EQ(run(3 * rounds), rounds);
    go_to(levels, TlbFlush::Of::nothing);
    EXPECT_EQ(run(3 * rounds), 2 * rounds);
  }
  unlink(levels + table, 2);
  invalidate(0x2000);
  expect_left(Stop::unsupported, 0x1FFE);
}

// A large page, of which the engine knows parts: INVLPG of any address in it.
TEST_P(KeptSpaces, LoseALargePage) {
  constexpr std::uint64_t large = 1 << 7, large_bytes = 2 << 20;
  const std::uint64_t frame = at(0) / large_bytes * large_bytes, entry = frame | present | writable | large;
  std::memcpy(&ram_.bytes()[directory * page_size + 8], &entry, sizeof entry);  // from 200000H
  const std::uint64_t linear = large_bytes + at(third) % large_bytes, disp = linear;
  std::vector<unsigned> code{0x03, 0x04, 0x25};  // add [disp32], %eax
  for (unsigned n = 0; n < 4; ++n) code.push_back(disp >> 8 * n & 0xFF);
  put(first, 0, code);
  put(first, 7, X86("jmp .-0x1007"));
  if (at(third) / large_bytes != at(0) / large_bytes) GTEST_SKIP() << "the RAM begins at the end of 2 MiB";
  go_to(pml4, TlbFlush::Of::everything);
  EXPECT_EQ(run(3 * rounds), rounds);
  link(directory, 1, other_table);  // 4 KiB pages from here on
  link(other_table, linear % large_bytes / page_size, other_frame);
  EXPECT_EQ(run(3 * rounds), rounds) << "as a TLB has it";
  invalidate(large_bytes);
  EXPECT_EQ(run(3 * rounds), 2 * rounds);
}

// Code in so many pages that their freshness is kept by words.
TEST_P(KeptSpaces, OfManyPages) {
  constexpr std::uint64_t last = 21, one = 12, each = last + 2;
  put(first, 0, X86("add $1, %eax; jmp .-0x15003"));  // to 0
  put(second, 0, X86("add $2, %eax; jmp .-0x15003"));
  for (std::uint64_t page = 1; page < last; ++page) put(some + page, 0, X86("jmp .+0x1000"));
  for (const std::uint64_t root : {std::uint64_t{0}, std::uint64_t{levels}}) {
    for (std::uint64_t page = 1; page < last; ++page) link(root + table, page, some + page);
    link(root + table, last, root == 0 ? first : second);
  }
  go_to(pml4, TlbFlush::Of::everything);
  for (unsigned n = 0; n < 3; ++n) {
    go_to(pml4, TlbFlush::Of::nothing);
    EXPECT_EQ(run(each * rounds), rounds);
    go_to(levels, TlbFlush::Of::nothing);
    EXPECT_EQ(run(each * rounds), 2 * rounds);
  }
  unlink(table, one);
  unlink(levels + table, one);
  EXPECT_EQ(run(each * rounds), 2 * rounds) << "as a TLB has it";
  go_to(pml4, TlbFlush::Of::nothing);
  EXPECT_EQ(run(each * rounds), rounds);
  go_to(levels, TlbFlush::Of::address_space);
  state_.rip = 0;
  engine_.resume(state_);
  EXPECT_EQ(engine_.run(each), Stop::fault);
  EXPECT_EQ(engine_.state().rip, one * page_size);
  go_to(pml4, TlbFlush::Of::nothing);
  EXPECT_EQ(run(each * rounds), rounds);
  invalidate(one * page_size);
  state_.rip = 0;
  engine_.resume(state_);
  EXPECT_EQ(engine_.run(each), Stop::fault);
  EXPECT_EQ(engine_.state().rip, one * page_size);
}

// Global pages belong to all spaces: MOV to CR3 keeps the code in them, and INVLPG loses it.
TEST_P(KeptSpaces, GlobalCodeIsKept) {
  for (const std::uint64_t root : {std::uint64_t{0}, std::uint64_t{levels}})
    link_page(ram_, root + table, 1, first, writable | global);
  go_to(pml4, TlbFlush::Of::everything);
  EXPECT_EQ(run(3 * rounds), rounds);
  unlink(table, 1);
  unlink(levels + table, 1);
  go_to(levels, TlbFlush::Of::address_space);
  EXPECT_EQ(run(3 * rounds), rounds) << "as a TLB has it";
  go_to(pml4, TlbFlush::Of::address_space);
  EXPECT_EQ(run(3 * rounds), rounds);
  invalidate(0x1000);
  expect_left(Stop::fault, 0x1000);
  go_to(levels, TlbFlush::Of::nothing);
  expect_left(Stop::fault, 0x1000);
}

// Code that changes while another space is in use.
TEST_P(KeptSpaces, CodeThatChangesMeanwhile) {
  run_in_both();
  go_to(levels, TlbFlush::Of::nothing);
  put(first, 0, X86("add $5, %eax; jmp .-0x1003"));
  engine_.written(GuestPhysical{at(first)});
  go_to(pml4, TlbFlush::Of::nothing);
  EXPECT_EQ(run(3 * rounds), 5 * rounds);
  go_to(levels, TlbFlush::Of::nothing);
  put(first, 0, X86("add $6, %eax; jmp .-0x1003"));
  engine_.written_unseen();
  go_to(pml4, TlbFlush::Of::nothing);
  EXPECT_EQ(run(3 * rounds), 6 * rounds);
}

// Somebody else changes CR3 after the guest has run INVLPG, or another MOV to CR3.
TEST_P(KeptSpaces, ControlRegistersThatChangeBesides) {
  put(second, 0, X86("add $16, %eax; jmp .-0x1003"));
  go_to(levels, TlbFlush::Of::everything);
  for (const TlbFlush::Of of : {TlbFlush::Of::page, TlbFlush::Of::nothing, TlbFlush::Of::address_space}) {
    go_to(pml4, TlbFlush::Of::nothing);
    EXPECT_EQ(run(3 * rounds), rounds);
    const std::uint16_t before = pcid();
    link(levels + table, 1, of == TlbFlush::Of::nothing ? second : first);
    state_.paging.cr3 = at(levels) | 2;
    engine_.resume(state_, TlbFlush{.of = of, .pcid = before, .linear = 0x5000});
    EXPECT_EQ(run(3 * rounds), (of == TlbFlush::Of::nothing ? 16 : 1) * rounds);
  }
}

// A page is written to in one space, becomes code in the other, and is written to again in the first, which had found
// that it may be.
TEST_P(KeptSpaces, AnOpenPageBecomesCode) {
  put(first, 0, X86("add $1, %eax; jmp .-0x1003"));
  put(second, 0, X86("movb $7, 0x3002; jmp .-8"));  // the constant of the other one's code
  link(levels + table, 3, first);
  link(levels + table, 4, second);
  const auto write = [&] {
    go_to(levels, TlbFlush::Of::nothing);
    state_.rip = 0x4000;
    engine_.resume(state_);
    EXPECT_EQ(engine_.run(2 * rounds), Stop::budget);
    go_to(pml4, TlbFlush::Of::nothing);
  };
  write();
  EXPECT_EQ(run(3 * rounds), 7 * rounds);
  put(first, 2, {3});
  engine_.written(GuestPhysical{at(first)});
  EXPECT_EQ(run(3 * rounds), 3 * rounds);
  write();
  EXPECT_EQ(run(3 * rounds), 7 * rounds);
}

/// Counts lines of code by their physical page.
class FetchedPages final : public Observer {
 public:
  void fetched(const SeenCode& code) override { ++fetches[code.physical / page_size]; }
  void accessed(const SeenAccess&, std::uint64_t) override {}
  void retired(bool, bool) override {}
  void branched(const SeenBranch&) override {}
  void abandoned() override {}
  void flushed_line(const SeenFlush&) override {}
  void flushed(const TlbFlush&) override {}
  std::map<std::uint64_t, std::uint64_t> fetches;
};

// The second page of an instruction is another one in each space, with the same bytes.
TEST_P(KeptSpaces, AnInstructionInTwoPagesOfEach) {
  put_across();
  put(other_frame, 0, X86(".byte 1; jmp .-0x2001"));
  link(levels + table, 1, first);
  link(levels + table, 2, other_frame);
  FetchedPages seen;
  engine_.observe(&seen);
  for (unsigned n = 0; n < 4; ++n)
    for (const Page root : {pml4, levels}) {
      go_to(root, TlbFlush::Of::nothing);
      seen.fetches.clear();
      EXPECT_EQ(run(3 * rounds), rounds);
      EXPECT_EQ(seen.fetches[at(root == pml4 ? other_frame : third) / page_size], 0U);
      EXPECT_EQ(seen.fetches[at(root == pml4 ? third : other_frame) / page_size], rounds);
    }
}

// What may be written to, as it was found under another CR0.WP, is not taken up again.
TEST_P(KeptSpaces, WpChangesMeanwhile) {
  constexpr std::uint64_t wp = 1U << 16;
  link_page(ram_, table, 2, third, 0);
  put(first, 0, X86("mov %al, 0x2000; jmp .-0x1007"));  // to 0
  state_.paging.cr0 &= ~wp;
  go_to(pml4, TlbFlush::Of::everything);
  EXPECT_EQ(run(3 * rounds), 0U);
  go_to(levels, TlbFlush::Of::nothing);
  state_.paging.cr0 |= wp;
  engine_.resume(state_);
  go_to(pml4, TlbFlush::Of::nothing);
  expect_left(Stop::fault, 0x1000);
}

// More spaces than are kept: those that were left first are lost, which changes nothing.
TEST_P(KeptSpaces, OfManySpacesTheLast) {
  for (unsigned n = 0; n < 3 * exec::AddressSpaces::max_kept; ++n) {
    state_.paging.cr3 = at(n % 2 == 0 ? std::uint64_t{pml4} : std::uint64_t{levels}) | (n + 1);
    engine_.resume(state_, TlbFlush{.of = TlbFlush::Of::nothing, .pcid = pcid()});
    EXPECT_EQ(run(3 * rounds), rounds);
  }
}

}  // namespace
}  // namespace vpmu::exec::test
