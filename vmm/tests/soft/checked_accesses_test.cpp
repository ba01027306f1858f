// Alignment checks, and limits and types of a program's segments. SDM 3A 5.3, 5.5; 6.15, interrupt 17.
#include "exec/tests/fixtures/assembled.hpp"
#include "soft/system_fixture.hpp"
#include "support/x86.hpp"
#include "vcpu/engine_state.hpp"

namespace vmm::test {
namespace {

constexpr std::uint64_t am = vpmu::bit(18), page = user_at + 0x400;

class CheckedAccesses : public SystemInstructions {
 protected:
  void in_program(const std::vector<std::uint8_t>& code) {
    auto ended = code;
    append(ended, X86("int $0x1F"));
    in_ring_3(ended);
  }
  void in_32_bit_program(const std::vector<std::uint8_t>& code) {
    in_program(code);
    auto& s = guest_.backend.special;
    s.cs.l = 0;
    s.cs.db = 1;
    s.ds = s.es = s.ss;
  }
  SoftBackend& finished() {
    SoftBackend& backend = begin();
    finish(backend);
    return backend;
  }
  void expect_raised(SoftBackend& backend, unsigned vector, std::uint64_t rip = user_at) {
    expect_stopped_in_handler(backend, vector);
    EXPECT_EQ(pushed(5), 0U);
    EXPECT_EQ(pushed(4), rip);
  }
  void check_alignment() {
    guest_.backend.special.cr0 |= am;
    guest_.backend.registers.rflags |= x86::rflags::AC::mask;
  }
  /// Whether the access at RBX + `offset` is #AC.
  bool is_ac(const std::vector<std::uint8_t>& code, std::uint64_t offset) {
    guest_.backend.registers.rbx = page + offset;
    in_program(code);
    SoftBackend& backend = finished();
    const bool raised = backend.regs()->rip == handler_of(x86::vector::AC) + 1;
    if (raised) expect_raised(backend, x86::vector::AC);
    if (!raised) expect_stopped_in_handler(backend, 0x1F);
    return raised;
  }
};
const std::vector<std::uint8_t> load_1 = X86("mov (%rbx), %al"), load_2 = X86("mov (%rbx), %ax"),
                                load_4 = X86("mov (%rbx), %eax"), load_8 = X86("mov (%rbx), %rax"),
                                store_4 = X86("mov %eax, (%rbx)");

TEST_F(CheckedAccesses, AProgramMayAskForAlignmentChecks) {
  check_alignment();
  guest_.backend.special.cr4 |= vpmu::bit(9);
  EXPECT_FALSE(is_ac(load_1, 1));
  EXPECT_TRUE(is_ac(load_2, 1));
  EXPECT_FALSE(is_ac(load_2, 2));
  EXPECT_TRUE(is_ac(load_4, 2));
  EXPECT_TRUE(is_ac(store_4, 3));
  EXPECT_FALSE(is_ac(store_4, 4));
  EXPECT_TRUE(is_ac(load_8, 4));
  EXPECT_FALSE(is_ac(load_8, 8));
  EXPECT_TRUE(is_ac(X86("fldt (%rbx)"), 4)) << "fldt: a double extended operand is aligned to 8 bytes";
  EXPECT_FALSE(is_ac(X86("movups (%rbx), %xmm0"), 1)) << "movups";
  EXPECT_TRUE(is_ac(X86("push (%rbx)"), 4)) << "push (%rbx)";
}
TEST_F(CheckedAccesses, AlignmentNeedsBothBitsAndAProgram) {
  guest_.backend.special.cr0 |= am;
  EXPECT_FALSE(is_ac(load_4, 1));
  check_alignment();
  guest_.backend.special.cr0 &= ~am;
  EXPECT_FALSE(is_ac(load_4, 1));
  check_alignment();
  guest_.enter_ring(0);
  guest_.backend.registers.rip = code_at;
  guest_.backend.registers.rsp = stack_top;
  guest_.backend.registers.rbx = data_at + 1;
  EXPECT_EQ(run(X86("mov (%rbx), %eax; hlt")).regs()->rip, code_at + 3);
}
// SDM 3A table 6-2.
TEST_F(CheckedAccesses, APageFaultComesBeforeAMisalignment) {
  check_alignment();
  guest_.backend.registers.rbx = user_at + vpmu::page_size - 2;
  in_program(load_4);
  SoftBackend& backend = finished();
  expect_stopped_in_handler(backend, x86::vector::PF);
  EXPECT_EQ(backend.sregs()->cr2, user_at + vpmu::page_size);
}
// POPF may set the flag; what follows is checked.
TEST_F(CheckedAccesses, PopfTurnsThemOn) {
  guest_.backend.special.cr0 |= am;
  guest_.backend.registers.rbx = page + 1;
  in_program(X86("mov (%rbx), %eax; pushf; orl $0x40000, (%rsp); popf; mov (%rbx), %eax"));
  expect_raised(finished(), x86::vector::AC, user_at + 11);
}

TEST_F(CheckedAccesses, ALimitEndsASegment) {
  const auto vector_of = [&](std::uint64_t offset, const std::vector<std::uint8_t>& code) -> unsigned {
    guest_.backend.registers.rbx = offset;
    in_32_bit_program(code);
    auto& ds = guest_.backend.special.ds;
    ds.base = page;
    ds.limit = 0xFF;
    return static_cast<unsigned>((finished().regs()->rip - 1 - handler_of(0)) / 16);
  };
  EXPECT_EQ(vector_of(0xFC, load_4), 0x1FU);
  EXPECT_EQ(vector_of(0xFD, load_4), x86::vector::GP);
  EXPECT_EQ(vector_of(0xFF, load_1), 0x1FU);
  EXPECT_EQ(vector_of(0x100, load_1), x86::vector::GP);
  EXPECT_EQ(vector_of(0x100, X86(".byte 0x26; mov (%rbx), %al")), x86::vector::PF)
      << "ES has none, and there is no page";
  EXPECT_EQ(pushed(4), user_at);
}
TEST_F(CheckedAccesses, TypesAndStacks) {
  guest_.backend.registers.rbx = page;
  in_32_bit_program(store_4);
  guest_.backend.special.ds.type = 1;
  expect_raised(finished(), x86::vector::GP);
  in_32_bit_program(load_4);
  guest_.backend.special.ds.type = 1;
  expect_stopped_in_handler(finished(), 0x1F);
  in_32_bit_program(X86("push %rax"));
  guest_.backend.special.ss.limit = 0x1000;
  expect_raised(finished(), x86::vector::SS);
  in_32_bit_program(load_4);
  guest_.backend.special.ds.type = 7;  // expand-down: above the limit
  guest_.backend.special.ds.limit = 0xFFF;
  expect_stopped_in_handler(finished(), 0x1F);
  guest_.backend.special.ds.limit = static_cast<std::uint32_t>(page);
  expect_raised(finished(), x86::vector::GP);
}
TEST_F(CheckedAccesses, ABranchBeyondTheLimitFaultsWhereItIs) {
  guest_.backend.registers.rbx = user_at + 0x900;
  in_32_bit_program(X86("jmp *%rbx"));
  guest_.backend.special.cs.limit = user_at + 0x8FF;
  expect_raised(finished(), x86::vector::GP);
}

// The engine of a counting source leaves such code to the back end.
TEST_F(CheckedAccesses, FlatSegmentsCostNothing) {
  in_32_bit_program(load_4);
  auto& s = guest_.backend.special;
  const auto checks = [&] { return engine_state(guest_.backend.registers, s, {}).checks_accesses; };
  EXPECT_FALSE(checks());
  s.fs = {};
  EXPECT_FALSE(checks()) << "null";
  s.gs = s.ds;
  s.gs.base = 0x1234;
  s.gs.selector = 0x3B;
  EXPECT_FALSE(checks()) << "a base alone";
  s.gs.limit = 0xFFFF;
  EXPECT_TRUE(checks());
  s.cs.l = 1;
  EXPECT_FALSE(checks());
}

}  // namespace
}  // namespace vmm::test
