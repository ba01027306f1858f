// An exception while another event is being delivered. SDM 3A table 6-5.
#include <ostream>

#include "soft/system_fixture.hpp"

namespace vmm::test {
namespace {

constexpr unsigned ud = 6, df = 8, np = 11, gp = 13, pf = 14;

class Exceptions : public SystemInstructions {
 protected:
  void lose_gate(unsigned vector) {
    const std::uint64_t at = tables_at + 16ULL * vector;
    guest_.store_word(at, guest_.load_word(at) & ~vpmu::bit(47));
  }
  static std::uint64_t error(unsigned vector, bool external) { return vector * 8ULL + 2 + (external ? 1 : 0); }
  /// The vCPU must be in the vector's handler, with this error code and RIP on the stack.
  void expect_delivered(SoftPort& port, unsigned vector, std::uint64_t error_code, std::uint64_t rip) {
    expect_stopped_in_handler(port, vector);
    EXPECT_EQ(pushed(5), error_code);
    EXPECT_EQ(pushed(4), rip);
  }
};

// A program must not crash its kernel by an INT for which it lacks the privilege.
TEST_F(Exceptions, AnIntThatAProgramMayNotUseIsAGeneralProtection) {
  guest_.store_word(tables_at + 16ULL * pf, guest_.load_word(tables_at + 16ULL * pf) & ~(3ULL << 45));
  in_ring_3({0x90, 0xCD, pf});
  SoftPort& port = begin();
  finish(port);
  expect_delivered(port, gp, error(pf, false), user_at + 1);
}
TEST_F(Exceptions, AnIntWithoutAGateIsNotPresent) {
  lose_gate(0x1F);
  SoftPort& port = run({0xCD, 0x1F});
  expect_delivered(port, np, error(0x1F, false), code_at);
}
TEST_F(Exceptions, BehindABenignOneTheSecondIsDelivered) {
  lose_gate(ud);
  SoftPort& port = run({0x0F, 0x0B});
  expect_delivered(port, np, error(ud, true), code_at);
}
TEST_F(Exceptions, TwoThatContributeAreADoubleFault) {
  lose_gate(gp);
  guest_.port.registers.rax = ~0ULL;
  SoftPort& port = run({0x0F, 0x22, 0xE0});  // mov %rax, %cr4: #GP
  expect_delivered(port, df, 0, code_at);
}
TEST_F(Exceptions, APageFaultAndOneThatContributesAreADoubleFault) {
  lose_gate(pf);
  SoftPort& port = run({0x48, 0xA1, 0, 0, 0x70, 0, 0, 0, 0, 0});  // mov (unmapped), %rax
  expect_delivered(port, df, 0, code_at);
}
TEST_F(Exceptions, AThirdShutsDown) {
  lose_gate(pf);
  lose_gate(df);
  guest_.store_code(code_at, {0x48, 0xA1, 0, 0, 0x70, 0, 0, 0, 0, 0});
  const auto exit = begin().run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Shutdown>(*exit));
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
  use_stack(gp, 1);
  use_stack(pf, 2);
  guest_.port.registers.rax = ~0ULL;
  SoftPort& port = run({0x0F, 0x22, 0xE0});  // mov %rax, %cr4: #GP
  expect_delivered(port, pf, 2, code_at);
  EXPECT_EQ(port.sregs()->cr2, far - 48);
}

// SDM 3B 17.2.3, 17.2.4.
TEST_F(Exceptions, GeneralDetectIsADebugExceptionInWhoseHandlerItIsOff) {
  constexpr std::uint64_t detect = vpmu::bit(13);
  SoftPort& port =
      run({0xB8, 0, 0x24, 0, 0, 0x0F, 0x23, 0xF8, 0x0F, 0x21, 0xF1});  // mov $0x2400, %eax; to DR7; from DR6
  expect_stopped_in_handler(port, vector_db);
  EXPECT_EQ(pushed(4), code_at + 8) << "it is a fault";
  EXPECT_EQ(port.debugregs()->dr6 & detect, detect);
  EXPECT_EQ(port.debugregs()->dr7 & detect, 0U);
}
TEST_F(Exceptions, InterruptOneIsNoDebugException) {
  SoftPort& port = run({0xB8, 0, 0x24, 0, 0, 0x0F, 0x23, 0xF8, 0xCD, 0x01});
  expect_stopped_in_handler(port, vector_db);
  EXPECT_EQ(port.debugregs()->dr7 & vpmu::bit(13), vpmu::bit(13));
}

// SDM 3A 6.8.3: a data breakpoint that MOV SS hits is reported after the next instruction. If that is INT1, both make
// one #DB; if it is INT 1, there are two.
TEST_F(Exceptions, ABreakpointOfMovSsIsReportedWithTheDebugExceptionBehindIt) {
  guest_.store_code(handler_of(vector_db), {0xFF, 0xC1, 0x48, 0xCF});                                 // inc %ecx; iretq
  const std::vector<std::uint8_t> int1{0x8E, 0x13, 0xF1, 0xF4}, int_1{0x8E, 0x13, 0xCD, 0x01, 0xF4};  // mov (%rbx), %ss
  for (const std::uint64_t selector : {0x18U, 0U})
    for (const auto& code : {int1, int_1}) {
      guest_.store_word(data_at, selector);
      guest_.store_code(code_at, code);
      guest_.port.registers.rbx = data_at;
      guest_.port.registers.rcx = 0;
      SoftPort& port = begin();
      kvm_debugregs debug{};
      debug.db[0] = data_at;
      debug.dr7 = 0x400 | 1 | 0x3U << 16 | 0x1U << 18;  // L0, reads and writes, two bytes
      ASSERT_TRUE(port.set_debugregs(debug));
      finish(port);
      EXPECT_EQ(port.regs()->rip, code_at + code.size());
      EXPECT_EQ(port.regs()->rcx, code == int1 ? 1U : 2U) << selector;
      EXPECT_EQ(port.debugregs()->dr6 & 0xF, 1U);
    }
}

// SDM 3B 17.2.2.
TEST_F(Exceptions, Dr4And5AreOthersUnlessDebugExtensionsAreOn) {
  const std::vector<std::uint8_t> code{0xB8, 0x0F, 0,    0,    0,    0x0F,
                                       0x23, 0xE0, 0x0F, 0x21, 0xF1, 0xF4};  // to DR4, from DR6
  EXPECT_EQ(run(code).regs()->rcx, 0xFFFF'0FFFU);
  guest_.port.special.cr4 |= vpmu::bit(3);
  expect_stopped_in_handler(run(code), vector_ud);
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
  auto& regs = guest_.port.registers;
  guest_.store_code(data_at, {row.byte});
  guest_.store_code(data_at + 16, {7});
  regs.rsi = data_at;
  regs.rdi = data_at + 16;
  regs.rax = row.byte;
  regs.rcx = row.count;
  regs.rflags = 2 | vpmu::bit(8);
  SoftPort& port = run(row.code);
  expect_stopped_in_handler(port, 1);
  EXPECT_EQ(port.regs()->rcx, row.left);
  EXPECT_EQ(pushed(4), code_at + (row.ends ? row.code.size() : 0));
}

INSTANTIATE_TEST_SUITE_P(Guest, StepsThroughAString,
                         testing::Values(RepeatedString{"Move", {0xF3, 0xA4}, 3, 2, 9, false},
                                         RepeatedString{"CompareEqual", {0xF3, 0xA6}, 3, 2, 7, false},
                                         RepeatedString{"CompareDifferent", {0xF3, 0xA6}, 3, 2, 9, true},
                                         RepeatedString{"ScanEqual", {0xF2, 0xAE}, 3, 2, 7, true},
                                         RepeatedString{"ScanDifferent", {0xF2, 0xAE}, 3, 2, 9, false},
                                         RepeatedString{"Last", {0xF3, 0xA4}, 1, 0, 9, true},
                                         RepeatedString{"By32Bits", {0x67, 0xF3, 0xA4}, 0x1'0000'0003, 2, 9, false}),
                         [](const auto& row) { return std::string{row.param.name}; });

}  // namespace
}  // namespace vmm::test
