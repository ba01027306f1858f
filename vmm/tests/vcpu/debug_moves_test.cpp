#include "vcpu/debug_moves.hpp"
#include "support/x86.hpp"

#include <gtest/gtest.h>

#include <array>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_guest.hpp"

namespace vmm::test::of_debug_moves {
namespace {

constexpr std::uint64_t code = 0xFFFF'FFFF'8100'0000, stack = 0xFFFF'C900'0000'4000, handler = code + 0x800;
constexpr std::uint64_t gd = 1ULL << 13, bd = 1ULL << 13;

/// A kernel whose next instruction is a MOV DR.
class DebugMovesOf : public testing::Test {
 protected:
  DebugMovesOf() {
    guest_.map(code, vpmu::page_size);
    guest_.map(stack - vpmu::page_size, 2 * vpmu::page_size);
    backend_.registers = {.rax = 0x1111, .rsp = stack, .r9 = 0x9999, .rip = code, .rflags = 2 | x86::rflags::RF::mask};
    backend_.debug_registers = {.db = {0xA0, 0xA1, 0xA2, 0xA3}, .dr6 = x86::dr6::fixed | 1, .dr7 = 0x400};
  }
  void at(const std::vector<std::uint8_t>& bytes) { guest_.store_code(code, bytes); }
  bool run() {
    const auto done = moves_.run();
    EXPECT_TRUE(done);
    return done.value_or(false);
  }
  /// The vector of the exception that waits to be injected; -1: none.
  [[nodiscard]] int raised() const {
    return backend_.pending.exception.injected != 0 ? backend_.pending.exception.nr : -1;
  }

  FakeGuest guest_;
  FakeBackend& backend_{guest_.backend};
  DebugMoves moves_{guest_.backend, guest_.breakpoints, guest_.view};
};

// SDM 2B MOV to/from debug registers.
TEST_F(DebugMovesOf, EachRegisterIsWrittenAndRead) {
  at(X86("mov %r9, %dr2"));
  backend_.pending.interrupt.shadow = 1;
  EXPECT_TRUE(run());
  EXPECT_EQ(backend_.debug_registers.db[2], 0x9999U);
  EXPECT_EQ(backend_.registers.rip, code + 4);
  EXPECT_EQ(backend_.registers.rflags, 2U) << "RF is of one instruction";
  EXPECT_EQ(backend_.pending.interrupt.shadow, 0U);
  backend_.registers.rip = code;
  at(X86("mov %dr6, %rax"));
  EXPECT_TRUE(run());
  EXPECT_EQ(backend_.registers.rax, x86::dr6::fixed | 1);
  backend_.registers = {.rax = 0x55, .rip = code, .rflags = 2};
  at(X86("mov %rax, %dr7"));
  EXPECT_TRUE(run());
  EXPECT_EQ(backend_.debug_registers.dr7, 0x455U);
  EXPECT_EQ(moves_.statistics().done, 3U);
  EXPECT_EQ(raised(), -1);
}

TEST_F(DebugMovesOf, PrefixesAreIgnored) {
  at({0x2E, 0x66, 0xF3, 0x65, 0x41, 0x0F, 0x23, 0xD1});  // mov %r9, %dr2
  EXPECT_TRUE(run());
  EXPECT_EQ(backend_.debug_registers.db[2], 0x9999U);
  EXPECT_EQ(backend_.registers.rip, code + 8);
}

TEST_F(DebugMovesOf, WhatFaultsChangesNothing) {
  backend_.registers.rax = 1ULL << 32;
  at(X86("mov %rax, %dr7"));  // an upper half for DR7
  EXPECT_FALSE(run());
  EXPECT_EQ(raised(), 13);
  EXPECT_EQ(backend_.pending.exception.has_error_code, 1);
  backend_.special.cr4 |= 8;  // CR4.DE
  at(X86("mov %rax, %dr5"));
  EXPECT_FALSE(run());
  EXPECT_EQ(raised(), 6);
  at(X86("mov %rax, %dr8"));
  EXPECT_FALSE(run());
  EXPECT_EQ(raised(), 6);
  EXPECT_EQ(backend_.registers.rip, code);
  EXPECT_EQ(backend_.debug_registers.dr7, 0x400U);
}

// SDM 3B 17.2.4: the exception for the guest's own DR7.GD clears GD and sets DR6.BD.
TEST_F(DebugMovesOf, GeneralDetectOfTheGuestRaisesItsException) {
  at(X86("mov %dr6, %rax"));
  backend_.debug_registers.dr7 = 0x400 | gd;
  EXPECT_FALSE(run());
  EXPECT_EQ(raised(), 1);
  EXPECT_EQ(backend_.debug_registers.dr6, x86::dr6::fixed | bd);
  EXPECT_EQ(backend_.debug_registers.dr7, 0x400U);
  EXPECT_EQ(backend_.registers.rip, code);
}

// SDM 3B 17.3.1.4.
TEST_F(DebugMovesOf, ASteppedMoveIsFollowedByItsTrap) {
  at(X86("mov %dr6, %rax"));
  backend_.registers.rflags = 0x102;
  EXPECT_TRUE(run());
  EXPECT_EQ(raised(), 1);
  EXPECT_EQ(backend_.registers.rip, code + 3);
}

// Some KVMs check the guest's own DR7.GD. There we set it, and undo the exception when it reaches the guest's handler.
TEST(DebugMovesAtTheHandler, TakeTheirExceptionBack) {
  FakeGuest guest;
  FakeBackend backend;
  backend.can.exits_on_general_detect = false;
  Breakpoints breakpoints{backend};
  GuestView view{backend, guest.memory};
  DebugMoves moves{backend, breakpoints, view};
  guest.map(code, vpmu::page_size);
  guest.map(stack - vpmu::page_size, 2 * vpmu::page_size);
  backend.special = guest.backend.special;
  backend.debug_registers = {.db = {}, .dr6 = x86::dr6::fixed | 2, .dr7 = 0x400};
  breakpoints.set_gate(vpmu::GuestLinear{code + 0x400});
  breakpoints.set_debug_gate(vpmu::GuestLinear{handler});
  ASSERT_TRUE(breakpoints.apply());
  EXPECT_TRUE(breakpoints.detects());
  EXPECT_EQ(backend.debug_registers.dr7, 0x400 | gd);
  EXPECT_EQ(backend.guest_debug.arch.debugreg[1], handler);

  guest.store_code(code, X86("mov %rax, %dr0"));
  const std::array<std::uint64_t, 5> frame{code, 0x10, 0x10246, stack + 0x80, 0x18};
  guest.store(stack, std::as_bytes(std::span{frame}));
  backend.registers = {.rax = 0x1234, .rsp = stack, .rip = handler, .rflags = 2};
  backend.debug_registers.dr6 = x86::dr6::fixed | bd;
  backend.debug_registers.dr7 = 0x400;  // as the delivery of #DB does: GD is clear
  ASSERT_TRUE(moves.on_debug_handler());
  EXPECT_EQ(backend.registers.rip, code + 3);
  EXPECT_EQ(backend.registers.rsp, stack + 0x80);
  EXPECT_EQ(backend.registers.rflags, 0x246U);
  EXPECT_EQ(backend.debug_registers.db[0], 0x1234U);
  EXPECT_EQ(backend.debug_registers.dr6, x86::dr6::fixed | 2) << "as the guest left it";
  EXPECT_EQ(moves.statistics().done, 1U);

  // The handler gets any other #DB.
  backend.registers = {.rsp = stack, .rip = handler, .rflags = 2};
  backend.debug_registers.dr6 = x86::dr6::fixed | 1;
  ASSERT_TRUE(moves.on_debug_handler());
  EXPECT_EQ(backend.registers.rip, handler);
  EXPECT_EQ(backend.registers.rflags, 2 | x86::rflags::RF::mask);
  EXPECT_EQ(moves.statistics().let_through, 1U);

  // A VMM that reads the registers does not see our GD; the next entry sets it again.
  ASSERT_TRUE(breakpoints.put_away());
  EXPECT_EQ(backend.debug_registers.dr7 & gd, 0U);
  ASSERT_TRUE(breakpoints.apply());
  EXPECT_EQ(backend.debug_registers.dr7 & gd, gd);
  // If a kick comes while the exception of a MOV DR waits, the exception is dropped, and the instruction runs again.
  ASSERT_TRUE(breakpoints.set_guests_registers({.db = {}, .dr6 = x86::dr6::fixed | 1, .dr7 = 0x400}));
  backend.debug_registers.dr6 = x86::dr6::fixed | bd;
  backend.pending.exception.injected = 1;
  backend.pending.exception.nr = 1;
  ASSERT_TRUE(breakpoints.put_away());
  EXPECT_EQ(backend.pending.exception.injected, 0);
  EXPECT_EQ(backend.debug_registers.dr6, x86::dr6::fixed | 1);
  // An exception of the guest's own stays.
  ASSERT_TRUE(breakpoints.apply());
  ASSERT_TRUE(breakpoints.inject({.exception = 1, .pc = code, .dr6 = 4, .dr7 = 0}));
  ASSERT_TRUE(breakpoints.put_away());
  EXPECT_EQ(backend.pending.exception.injected, 1);
  EXPECT_EQ(backend.debug_registers.dr6 & 0xF, 4U);
  ASSERT_TRUE(breakpoints.apply());

  // If no register is free to stop at the handler, GD stays clear: the guest would get an exception that is not its
  // own.
  backend.debug_registers.dr7 = 0x455;
  ASSERT_TRUE(breakpoints.apply());
  EXPECT_EQ(backend.debug_registers.dr7, 0x455U);
  EXPECT_FALSE(breakpoints.detects());
}

}  // namespace
}  // namespace vmm::test::of_debug_moves
