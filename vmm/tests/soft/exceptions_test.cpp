// An exception while another event is being delivered. SDM 3A table 6-5.
#include <ostream>

#include "exec/tests/fixtures/assembled.hpp"
#include "soft/system_fixture.hpp"
#include "support/x86.hpp"

namespace vmm::test {
namespace {

class Exceptions : public SystemInstructions {
 protected:
  void lose_gate(unsigned vector) {
    const std::uint64_t at = tables_at + 16ULL * vector;
    guest_.store_word(at, guest_.load_word(at) & ~vpmu::bit(47));
  }
  static std::uint64_t error(unsigned vector, bool external) { return vector * 8ULL + 2 + (external ? 1 : 0); }
  /// The vCPU must be in the vector's handler, with this error code and RIP on the stack.
  void expect_delivered(SoftBackend& backend, unsigned vector, std::uint64_t error_code, std::uint64_t rip) {
    expect_stopped_in_handler(backend, vector);
    EXPECT_EQ(pushed(5), error_code);
    EXPECT_EQ(pushed(4), rip);
  }
};

// A program must not crash its kernel by an INT for which it lacks the privilege.
TEST_F(Exceptions, AnIntThatAProgramMayNotUseIsAGeneralProtection) {
  guest_.store_word(tables_at + 16ULL * x86::vector::PF,
                    guest_.load_word(tables_at + 16ULL * x86::vector::PF) & ~(3ULL << 45));
  in_ring_3({0x90, 0xCD, x86::vector::PF});
  SoftBackend& backend = begin();
  finish(backend);
  expect_delivered(backend, x86::vector::GP, error(x86::vector::PF, false), user_at + 1);
}
TEST_F(Exceptions, AnIntWithoutAGateIsNotPresent) {
  lose_gate(0x1F);
  SoftBackend& backend = run(X86("int $0x1F"));
  expect_delivered(backend, x86::vector::NP, error(0x1F, false), code_at);
}
TEST_F(Exceptions, BehindABenignOneTheSecondIsDelivered) {
  lose_gate(x86::vector::UD);
  SoftBackend& backend = run(X86("ud2"));
  expect_delivered(backend, x86::vector::NP, error(x86::vector::UD, true), code_at);
}
TEST_F(Exceptions, TwoThatContributeAreADoubleFault) {
  lose_gate(x86::vector::GP);
  guest_.backend.registers.rax = ~0ULL;
  SoftBackend& backend = run(X86("mov %rax, %cr4"));  // #GP
  expect_delivered(backend, x86::vector::DF, 0, code_at);
}
TEST_F(Exceptions, APageFaultAndOneThatContributesAreADoubleFault) {
  lose_gate(x86::vector::PF);
  SoftBackend& backend = run(X86("movabs 0x700000, %rax"));
  expect_delivered(backend, x86::vector::DF, 0, code_at);
}
TEST_F(Exceptions, AThirdShutsDown) {
  lose_gate(x86::vector::PF);
  lose_gate(x86::vector::DF);
  guest_.store_code(code_at, X86("movabs 0x700000, %rax"));
  for (const std::uint64_t single_step : {std::uint64_t{0}, vpmu::bit(8)}) {
    guest_.backend.registers.rflags = 2 | single_step;
    SoftBackend& backend = begin();
    backend.stop_after(1000);
    const auto exit = backend.run();
    ASSERT_TRUE(exit);
    EXPECT_TRUE(std::holds_alternative<Shutdown>(*exit)) << single_step;
  }
}
// A page fault after a contributory exception is delivered as a page fault.
TEST_F(Exceptions, BehindAGeneralProtectionAPageFaultIsDelivered) {
  constexpr std::uint64_t far = 0x70'0000;
  // The #GP handler's stack is not mapped; that of page faults is.
  guest_.store_word(tss_at + 36, far);
  guest_.store_word(tss_at + 44, stack_top);
  const auto use_stack = [&](unsigned vector, std::uint64_t number) {
    const std::uint64_t at = tables_at + 16ULL * vector;
    guest_.store_word(at, guest_.load_word(at) | number << 32);
  };
  use_stack(x86::vector::GP, 1);
  use_stack(x86::vector::PF, 2);
  guest_.backend.registers.rax = ~0ULL;
  SoftBackend& backend = run(X86("mov %rax, %cr4"));  // #GP
  expect_delivered(backend, x86::vector::PF, 2, code_at);
  EXPECT_EQ(backend.sregs()->cr2, far - 48);
}

// SDM 3B 17.2.3, 17.2.4.
TEST_F(Exceptions, GeneralDetectIsADebugExceptionInWhoseHandlerItIsOff) {
  constexpr std::uint64_t detect = vpmu::bit(13);
  SoftBackend& backend = run(X86("mov $0x2400, %eax; mov %rax, %dr7; mov %dr6, %rcx"));
  expect_stopped_in_handler(backend, x86::vector::DB);
  EXPECT_EQ(pushed(4), code_at + 8) << "it is a fault";
  EXPECT_EQ(backend.debugregs()->dr6 & detect, detect);
  EXPECT_EQ(backend.debugregs()->dr7 & detect, 0U);
}
TEST_F(Exceptions, InterruptOneIsNoDebugException) {
  SoftBackend& backend = run(X86("mov $0x2400, %eax; mov %rax, %dr7; int $1"));
  expect_stopped_in_handler(backend, x86::vector::DB);
  EXPECT_EQ(backend.debugregs()->dr7 & vpmu::bit(13), vpmu::bit(13));
}

// SDM 3A 6.8.3: a data breakpoint that MOV SS hits is reported after the next instruction. If that is INT1, both make
// one #DB; if it is INT 1, there are two.
TEST_F(Exceptions, ABreakpointOfMovSsIsReportedWithTheDebugExceptionBehindIt) {
  guest_.store_code(handler_of(x86::vector::DB), X86("inc %ecx; iretq"));
  const std::vector<std::uint8_t> int1 = X86("mov (%rbx), %ss; .byte 0xF1; hlt"),
                                  int_1 = X86("mov (%rbx), %ss; int $1; hlt");
  for (const std::uint64_t selector : {0x18U, 0U})
    for (const auto& code : {int1, int_1}) {
      guest_.store_word(data_at, selector);
      guest_.store_code(code_at, code);
      guest_.backend.registers.rbx = data_at;
      guest_.backend.registers.rcx = 0;
      SoftBackend& backend = begin();
      kvm_debugregs debug{};
      debug.db[0] = data_at;
      debug.dr7 = 0x400 | 1 | 0x3U << 16 | 0x1U << 18;  // L0, reads and writes, two bytes
      ASSERT_TRUE(backend.set_debugregs(debug));
      finish(backend);
      EXPECT_EQ(backend.regs()->rip, code_at + code.size());
      EXPECT_EQ(backend.regs()->rcx, code == int1 ? 1U : 2U) << selector;
      EXPECT_EQ(backend.debugregs()->dr6 & 0xF, 1U);
    }
}

// SDM 3B 17.2.2.
TEST_F(Exceptions, Dr4And5AreOthersUnlessDebugExtensionsAreOn) {
  const std::vector<std::uint8_t> code = X86("mov $0xF, %eax; mov %rax, %dr4; mov %dr6, %rcx; hlt");
  EXPECT_EQ(run(code).regs()->rcx, 0xFFFF'0FFFU);
  guest_.backend.special.cr4 |= vpmu::bit(3);
  expect_stopped_in_handler(run(code), x86::vector::UD);
}

/// A repeated string instruction, and the count left when the guest's own single-step traps after one iteration.
struct RepeatedString {
  const char* name;
  std::vector<std::uint8_t> code;
  std::uint64_t count, left;
  std::uint8_t byte;  ///< In AL and at RSI; at RDI is 7.
  bool ends;
  friend void PrintTo(const RepeatedString& row, std::ostream* out) { *out << row.name; }
};
class StepsThroughAString : public SystemInstructions, public testing::WithParamInterface<RepeatedString> {};

// SDM 3B 17.3.1.4: a trap after each iteration. SDM 2B REP: REPE ends if ZF is 0, REPNE if it is 1; the address size
// determines the width of the count.
TEST_P(StepsThroughAString, ATrapFollowsEachIteration) {
  const RepeatedString& row = GetParam();
  auto& regs = guest_.backend.registers;
  guest_.store_code(data_at, {row.byte});
  guest_.store_code(data_at + 16, {7});
  regs.rsi = data_at;
  regs.rdi = data_at + 16;
  regs.rax = row.byte;
  regs.rcx = row.count;
  regs.rflags = 2 | vpmu::bit(8);
  SoftBackend& backend = run(row.code);
  expect_stopped_in_handler(backend, 1);
  EXPECT_EQ(backend.regs()->rcx, row.left);
  EXPECT_EQ(pushed(4), code_at + (row.ends ? row.code.size() : 0));
}

INSTANTIATE_TEST_SUITE_P(Guest, StepsThroughAString,
                         testing::Values(RepeatedString{"Move", X86("rep movsb"), 3, 2, 9, false},
                                         RepeatedString{"CompareEqual", X86("repe cmpsb"), 3, 2, 7, false},
                                         RepeatedString{"CompareDifferent", X86("repe cmpsb"), 3, 2, 9, true},
                                         RepeatedString{"ScanEqual", X86("repne scasb"), 3, 2, 7, true},
                                         RepeatedString{"ScanDifferent", X86("repne scasb"), 3, 2, 9, false},
                                         RepeatedString{"Last", X86("rep movsb"), 1, 0, 9, true},
                                         RepeatedString{"By32Bits", X86(".byte 0x67; rep movsb"), 0x1'0000'0003, 2, 9,
                                                        false}),
                         [](const auto& row) { return std::string{row.param.name}; });

}  // namespace
}  // namespace vmm::test
