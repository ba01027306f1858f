// An exception while another event is being delivered. SDM 3A table 6-5.
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
  /// What the handler finds of an exception with an error code.
  void expect_delivered(SoftPort& port, unsigned vector, std::uint64_t error_code, std::uint64_t rip) {
    expect_stopped_in_handler(port, vector);
    EXPECT_EQ(pushed(5), error_code);
    EXPECT_EQ(pushed(4), rip);
  }
};

// A program must not bring its kernel down by an INT that it may not use.
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
// A page fault behind one that contributes is delivered as such.
TEST_F(Exceptions, BehindAGeneralProtectionAPageFaultIsDelivered) {
  constexpr std::uint64_t far = 0x70'0000;
  // The handler's stack is nowhere; that of page faults is.
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

}  // namespace
}  // namespace vmm::test
