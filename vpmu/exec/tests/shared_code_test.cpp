// A page of code is decoded and compiled once, wherever it is mapped: as programs share libraries, each at addresses of
// its own.
#include <gtest/gtest.h>

#include <vector>

#include "exec/tests/fixtures/address_spaces.hpp"

namespace vpmu::exec::test {
namespace {

/// In each of the two spaces the page `first` is elsewhere; `common`, at 0 in both, jumps to it by a register.
class SharedCode : public AddressSpaces {
 protected:
  static constexpr std::uint64_t here = 0x1000, there = 0x5000;

  SharedCode() {
    link(levels + table, there / page_size, first);
    unlink(levels + table, 1);
    state_.paging.cr4 |= x86::cr4::PCIDE::mask;
    put(common, 0, X86("jmp *%rbx"));
    put(common, 0x40, X86("jmp *%r12"));
  }
  /// Another MOV to CR3, after which the engine knows as much as a CPU's TLBs.
  void go_to(std::uint64_t root, TlbFlush::Of of = TlbFlush::Of::nothing) {
    state_.paging.cr3 = at(root) | (root == pml4 ? 1 : 2);
    engine_.resume(state_, TlbFlush{.of = of, .pcid = x86::pcid_of(state_.paging.cr3, state_.paging.cr4)});
  }
  /// Runs from 0 with the code at `base`.
  CpuState run_at(std::uint64_t base, std::uint64_t instructions) {
    state_.rip = 0;
    state_.gpr = {};
    state_.gpr[rbx] = base;
    state_.gpr[rsp] = 0x2800;
    engine_.resume(state_);
    EXPECT_EQ(engine_.run(instructions), Stop::budget);
    return engine_.state();
  }
  void go_to_and_run(std::uint64_t root, std::uint64_t instructions, std::uint64_t rax_is) {
    go_to(root);
    EXPECT_EQ(run_at(root == pml4 ? here : there, instructions).gpr[rax], rax_is);
  }
};
INSTANTIATE_TEST_SUITE_P(Interpreted, SharedCode, testing::Values(0));
INSTANTIATE_TEST_SUITE_P(Compiled, SharedCode, testing::Values(1));

// All that names its own address: operands and LEA relative to RIP, the address that CALL pushes, jumps.
TEST_P(SharedCode, KnowsWhereItStands) {
  constexpr std::uint64_t in_a_round = 11, routine = 0x114, value = 0x806;
  put(first, 0, X86("lea 0x123(%rip), %rcx; lea 0x10(%rip), %edx; mov 0x7F2(%rip), %rax; call .+0x100; jmp *%rbx"));
  put(first, routine, X86("pop %rsi; push %rsi; add %rax, %rdi; cmp $1, %rdi; jnz .+0x50; ret"));
  put(first, routine + 0x59, X86("ret"));
  put(first, value, {1, 0, 0, 0, 0, 0, 0, 0});
  std::uint64_t decoded = 0, compiled = 0;
  for (unsigned n = 0; n < 6; ++n) {
    for (const Page root : {pml4, levels}) {
      go_to(root, n % 2 == 0 ? TlbFlush::Of::address_space : TlbFlush::Of::nothing);
      const std::uint64_t base = root == pml4 ? here : there;
      const CpuState end = run_at(base, 1 + rounds * in_a_round + 7);
      EXPECT_EQ(end.gpr[rcx], base + 7 + 0x123);
      EXPECT_EQ(end.gpr[rdx], base + 13 + 0x10);
      EXPECT_EQ(end.gpr[rax], 1U);
      EXPECT_EQ(end.gpr[rdi], rounds + 1);
      EXPECT_EQ(end.gpr[rsi], base + 25);
      EXPECT_EQ(end.rip, base + routine + 5);
      if (decoded == 0) {
        decoded = engine_.decoded_blocks();
        compiled = engine_.compiled_blocks();
      }
      EXPECT_EQ(engine_.decoded_blocks(), decoded);
      EXPECT_EQ(engine_.compiled_blocks(), compiled);
    }
  }
  EXPECT_EQ(compiled != 0, GetParam() != 0);
}

// A jump to the next page, or back from it, leads to what is mapped there: in one space `third`, in the other another
// one, or nothing.
TEST_P(SharedCode, HasOtherNeighboursElsewhere) {
  put(first, 0, X86("jmp .+0x1000"));
  put(third, 0, X86("add $1, %eax; jmp .-0x1003"));
  put(other_frame, 0, X86("add $16, %eax; jmp .-0x1003"));
  link(levels + table, there / page_size + 1, other_frame);
  for (unsigned n = 0; n < 4; ++n) {
    go_to_and_run(pml4, 1 + 3 * rounds, rounds);
    go_to_and_run(levels, 1 + 3 * rounds, 16 * rounds);
  }
  unlink(levels + table, there / page_size + 1);
  go_to(levels, TlbFlush::Of::address_space);
  state_.rip = there;
  engine_.resume(state_);
  EXPECT_EQ(engine_.run(2), Stop::fault);
  EXPECT_EQ(engine_.state().rip, there + page_size);
  go_to_and_run(pml4, 1 + 3 * rounds, rounds);
}

// `third` is beside `first` here, and far from it there, where another page is beside it.
TEST_P(SharedCode, IsNotWhereAnotherPageOfItsFileIs) {
  put(first, 0, X86("jmp .+0x1000"));
  put(third, 0, X86("add $1, %eax; jmp .-0x1003"));
  put(other_frame, 0, X86("add $16, %eax; jmp .-0x1003"));
  link(levels + table, there / page_size + 1, other_frame);
  link(levels + table, 9, third);
  link(levels + table, 8, common);
  for (unsigned n = 0; n < 3; ++n) {
    go_to_and_run(pml4, 1 + 3 * rounds, rounds);
    go_to_and_run(levels, 1 + 3 * rounds, 16 * rounds);
    EXPECT_EQ(run_at(9 * page_size, 3 * rounds).gpr[rax], rounds) << "back to `common`, which jumps to it again";
    go_to_and_run(levels, 1 + 3 * rounds, 16 * rounds);
  }
}

// Both places are in one space, and each jumps to the other.
TEST_P(SharedCode, IsAtTwoPlacesAtOnce) {
  link(table, there / page_size, first);
  go_to(pml4, TlbFlush::Of::everything);
  put(first, 0, X86("lea (%rip), %rax; add %rax, %rdi; xor $0x4000, %rbx; jmp *%rbx"));
  for (const std::uint64_t begin : {here, there}) {
    const CpuState end = run_at(begin, 1 + 2 * rounds * 4);
    EXPECT_EQ(end.gpr[rdi], rounds * (here + there + 14));
    EXPECT_EQ(end.rip, begin);
  }
}

// A page that goes to itself, mapped side by side: a jump to the next page stays in the same page of memory.
TEST_P(SharedCode, IsBesideItself) {
  for (unsigned page = 5; page < 9; ++page) link(table, page, first);
  go_to(pml4, TlbFlush::Of::everything);
  put(first, 0, X86("lea (%rip), %rax; add %rax, %rdi; jmp .+0xFF6"));
  for (unsigned n = 0; n < rounds; ++n) {
    const CpuState end = run_at(there, 1 + 3 * 3);
    EXPECT_EQ(end.gpr[rdi], 3 * (there + 7) + (1 + 2) * page_size);
    EXPECT_EQ(end.rip, there + 3 * page_size);
  }
}

// What changes after computed jumps have found it at both places. Another block of the page runs first, so that the
// page is fresh again when such a jump comes.
TEST_P(SharedCode, ChangesAtBothPlaces) {
  put(first, 0, X86("add $1, %eax; jmp *%rbx"));
  put(first, 0x40, X86("jmp *%rbx"));
  for (const unsigned value : {1U, 2U, 3U, 2U, 1U}) {
    put(first, 2, {value});
    engine_.written(GuestPhysical{at(first)});
    for (const Page root : {pml4, levels, levels, pml4}) {
      go_to(root);
      state_.rip = (root == pml4 ? here : there) + 0x40;
      state_.gpr = {};
      state_.gpr[rbx] = state_.rip - 0x40;
      engine_.resume(state_);
      EXPECT_EQ(engine_.run(1 + 2 * rounds), Stop::budget);
      EXPECT_EQ(engine_.state().gpr[rax], value * rounds);
    }
  }
}

// INVLPG and its like: an address in all spaces. A space that many pages were lost since is no longer known.
TEST_P(SharedCode, IsLostByAnAddressOfTheOtherSpace) {
  put(first, 0, X86("add $1, %eax; jmp *%rbx"));
  put(second, 0, X86("add $16, %eax; jmp *%rbx"));
  for (const unsigned others : {0U, 3U, 31U, 32U, 100U}) {
    link(levels + table, there / page_size, first);
    go_to(levels, TlbFlush::Of::address_space);
    go_to_and_run(levels, 1 + 2 * rounds, rounds);
    go_to_and_run(pml4, 1 + 2 * rounds, rounds);
    link(levels + table, there / page_size, second);
    const auto invalidate = [&](std::uint64_t linear) {
      engine_.resume(state_, TlbFlush{.of = TlbFlush::Of::page, .pcid = 1, .linear = linear});
    };
    invalidate(there + 0xFFF);
    for (unsigned n = 0; n < others; ++n) invalidate((0x20 + n) * page_size);
    go_to_and_run(levels, 1 + 2 * rounds, 16 * rounds);
  }
}

}  // namespace
}  // namespace vpmu::exec::test
