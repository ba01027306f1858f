// Instructions that only 32-bit programs have, under a 64-bit kernel. SDM volume 2.
#include "exec/tests/fixtures/assembled.hpp"
#include "soft/system_fixture.hpp"
#include "support/x86.hpp"

namespace vmm::test::programs_32 {
namespace {

constexpr std::uint64_t user_cs32 = 0x48, stack = user_at + 0x800, words = user_at + 0x400;

class Programs32 : public SystemInstructions {
 protected:
  Programs32() {
    guest_.backend.special.gdt.limit = 0x4F;
    guest_.store_word(gdt_at + user_cs32, 0x00CF'FB00'0000'FFFF);
  }
  /// Runs a program to INT 1FH; where it was then is what `rip()` says.
  SoftBackend& run_program(std::vector<std::uint8_t> code) {
    append(code, X86_32("int $0x1F"));
    in_ring_3(code);
    auto& s = guest_.backend.special;
    s.cs.selector = user_cs32 | 3;
    s.cs.l = 0;
    s.cs.db = 1;
    s.ds = s.es = s.ss;
    SoftBackend& backend = begin();
    finish(backend);
    return backend;
  }
  kvm_regs& regs() { return guest_.backend.registers; }
  void expect_raised(SoftBackend& backend, unsigned vector, std::uint64_t rip) {
    expect_stopped_in_handler(backend, vector);
    EXPECT_EQ(pushed(4), rip);
  }
  void expect_ended(SoftBackend& backend) { expect_stopped_in_handler(backend, 0x1F); }
};

// SDM 2A INT n.
TEST_F(Programs32, IntoIsATrapIfThereIsAnOverflow) {
  expect_ended(run_program(X86_32("into")));
  regs().rflags |= x86::rflags::OF::mask;
  expect_raised(run_program(X86_32("into")), x86::vector::OF, user_at + 1);
  guest_.store_word(tables_at + 16ULL * x86::vector::OF,
                    guest_.load_word(tables_at + 16ULL * x86::vector::OF) & ~(3ULL << 45));
  SoftBackend& refused = run_program(X86_32("into"));
  expect_raised(refused, x86::vector::GP, user_at);
  EXPECT_EQ(pushed(5), x86::vector::OF * 8 + 2);
}
TEST_F(Programs32, Int1IsATrap) {
  SoftBackend& backend = run_program(X86_32(".byte 0xF1"));  // int1
  expect_raised(backend, 1, user_at + 1);
}
// SDM 2A BOUND.
TEST_F(Programs32, BoundChecksASignedIndex) {
  const std::vector<std::uint8_t> bound = X86_32("bound %eax, (%ebx)"), bound_16 = X86_32("bound %ax, (%ebx)");
  regs().rbx = words;
  const auto fails = [&](std::uint64_t bounds, std::uint64_t index, const std::vector<std::uint8_t>& code) {
    guest_.store_word(words, 0);
    guest_.store_word(words, bounds);
    regs().rax = index;
    SoftBackend& backend = run_program(code);
    return backend.regs()->rip == handler_of(x86::vector::BR) + 1;
  };
  constexpr std::uint64_t from_minus_2_to_5 = 5ULL << 32 | 0xFFFF'FFFE;
  EXPECT_FALSE(fails(from_minus_2_to_5, 5, bound));
  EXPECT_FALSE(fails(from_minus_2_to_5, 0xFFFF'FFFE, bound));
  EXPECT_TRUE(fails(from_minus_2_to_5, 6, bound));
  EXPECT_TRUE(fails(from_minus_2_to_5, 0xFFFF'FFFD, bound));
  EXPECT_EQ(pushed(4), user_at) << "a fault";
  EXPECT_FALSE(fails(5 << 16 | 0xFFFE, 0xABCD'FFFE, bound_16));
  EXPECT_TRUE(fails(5 << 16 | 0xFFFE, 0xABCD'0006, bound_16));
}
// SDM 2A ARPL.
TEST_F(Programs32, ArplRaisesTheRequestedLevel) {
  regs().rax = 0xABCD'0010;
  regs().rbx = 3;
  SoftBackend& raised = run_program(X86_32("arpl %bx, %ax"));
  expect_ended(raised);
  EXPECT_EQ(raised.regs()->rax, 0xABCD'0013U);
  EXPECT_NE(raised.regs()->rflags & x86::rflags::ZF::mask, 0U);
  regs().rbx = 0;
  SoftBackend& kept = run_program(X86_32("arpl %bx, %ax"));
  EXPECT_EQ(kept.regs()->rax, 0xABCD'0010U);
  EXPECT_EQ(kept.regs()->rflags & x86::rflags::ZF::mask, 0U);
}
// SDM 2A LDS.
TEST_F(Programs32, FarPointersAreLoaded) {
  regs().rbx = words;
  guest_.store_word(words, 0x002B'1234'5678);
  regs().rcx = 0xFFFF'FFFF;
  SoftBackend& backend = run_program(X86_32("les (%ebx), %ecx"));
  expect_ended(backend);
  EXPECT_EQ(backend.regs()->rcx, 0x1234'5678U);
  EXPECT_EQ(backend.sregs()->es.selector, 0x2BU);
  guest_.store_word(words, 0x0018'1234'5678);
  SoftBackend& refused = run_program(X86_32("lfs (%ebx), %ecx"));  // the kernel's
  expect_raised(refused, x86::vector::GP, user_at);
  EXPECT_EQ(refused.regs()->rcx, 0xFFFF'FFFFU);
}
// SDM 2A ENTER.
TEST_F(Programs32, EnterCopiesTheFramesOfItsCallers) {
  guest_.backend.registers.rbp = words + 16;
  guest_.store_word(words + 8, 0x2222'2222'1111'1111);
  SoftBackend& backend = run_program(X86_32("enter $16, $3"));
  expect_ended(backend);
  EXPECT_EQ(backend.regs()->rbp, stack - 4);
  EXPECT_EQ(pushed(1), stack - 4 - 3 * 4 - 16) << "ESP";
  EXPECT_EQ(guest_.load_word(stack - 8), (words + 16) << 32 | 0x2222'2222);
  EXPECT_EQ(guest_.load_word(stack - 16), 0x1111'1111ULL << 32 | (stack - 4));
}
// SDM 2A CALL: far, to the code of 64 bits and back.
TEST_F(Programs32, FarCallsGoTo64BitCodeAndBack) {
  guest_.store_code(user_at + 0x100, X86("inc %rdi; lretl"));
  regs().rdi = 0xFFFF'FFFF;
  SoftBackend& backend = run_program(X86_32("lcall $0x33, $0x800100"));
  expect_ended(backend);
  EXPECT_EQ(backend.regs()->rdi, 0x1'0000'0000U);
  EXPECT_EQ(pushed(3), user_cs32 | 3);
}

}  // namespace
}  // namespace vmm::test::programs_32
