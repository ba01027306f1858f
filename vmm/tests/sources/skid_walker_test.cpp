#include "sources/skid_walker.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_cpu.hpp"

namespace vmm::test::of_skid_walker {
namespace {

using vpmu::BranchKind;
using vpmu::GuestLinear;
using vpmu::Slot;

constexpr std::uint64_t code = 0xFFFF'FFFF'8100'0000;
constexpr std::uint64_t data = 0xFFFF'8880'0000'1000;
constexpr std::uint64_t stack = 0xFFFF'C900'0000'0800;
constexpr WalkLevels any_level{.usr = true, .os = true};

class SkidWalkerIn : public testing::Test {
 protected:
  SkidWalkerIn() {
    guest_.map(code, 2 * vpmu::page_size);
    guest_.map(data, vpmu::page_size);
    guest_.map(stack, vpmu::page_size);
    backend_.registers.rip = code;
    backend_.registers.rbx = data;
    backend_.registers.rsp = stack;
  }

  RunEnd walk(WalkLevels levels = any_level) {
    auto end = walker_.walk(backend_, levels);
    EXPECT_TRUE(end);
    return end.value_or(RunEnd{});
  }
  void expect_nothing(const RunEnd& end) {
    EXPECT_FALSE(end.retired);
    EXPECT_FALSE(end.exit);
  }
  /// No breakpoint or single-step of ours is armed in KVM or wanted any more.
  void expect_clean() {
    EXPECT_EQ(backend_.guest_debug.control, 0U);
    backend_.calls.clear();
    ASSERT_TRUE(guest_.breakpoints.apply());
    EXPECT_TRUE(backend_.calls.empty());
  }
  /// SYSCALL, which is never stepped: what is before it is the only choice.
  void end_block_at(std::uint64_t at) { guest_.store_code(at, X86("syscall")); }
  /// `n` NOPs, then a jump back to the first.
  void place_loop(unsigned n) {
    for (unsigned i = 0; i < n; ++i) cpu_.add(code + i, X86("nop"));
    cpu_.add_jump(code + n, code);
  }

  FakeGuest guest_;
  FakeBackend& backend_{guest_.backend};
  ScriptedTime time_;
  FakeTimer timer_{time_};
  FakeCpu cpu_{guest_, time_};
  SkidWalker walker_{guest_.breakpoints, guest_.view, timer_, 20160901};
};

// A host that translates blocks stops at their first instructions; samples must not accumulate there.
TEST_F(SkidWalkerIn, DrawsEvenlyFromTheBlockAhead) {
  place_loop(7);  // eight instructions with the jump
  constexpr unsigned walks = 8000;
  std::map<std::uint64_t, unsigned> hits;
  for (unsigned n = 0; n < walks; ++n) {
    backend_.registers.rip = code;
    const RunEnd end = walk();
    ASSERT_TRUE(end.retired);
    ++hits[end.retired->what.ip.value()];
  }
  ASSERT_EQ(hits.size(), 8U);
  double chi_square = 0;
  for (const auto& [at, n] : hits) {
    const double off = static_cast<double>(n) - walks / 8.0;
    chi_square += off * off / (walks / 8.0);
  }
  EXPECT_LT(chi_square, 24.3) << "7 degrees of freedom, 0.1 %";
  expect_clean();
}

TEST_F(SkidWalkerIn, CostsOneBreakpointAndOneStep) {
  place_loop(100);
  while (walker_.statistics().runs == 0) {
    backend_.registers.rip = code;
    backend_.calls.clear();
    walk();
  }
  EXPECT_EQ(backend_.count("run"), 2U);
  const WalkStatistics& s = walker_.statistics();
  EXPECT_EQ(s.walks, s.steps);
  EXPECT_EQ(s.nothing_found + s.wrong_level + s.abandoned, 0U);
}

TEST_F(SkidWalkerIn, StepsTheFirstInstructionWithoutABreakpoint) {
  cpu_.add_jump(code, code + 0x40);
  EXPECT_TRUE(walk().retired);
  EXPECT_EQ(backend_.count("run"), 1U);
  EXPECT_EQ(backend_.count("debugregs"), 0U);
}

// Rules P3, P4: a record has the registers after its instruction, but addresses computed from those before it.
TEST_F(SkidWalkerIn, RetirementShowsRegistersBehindAndAddressesBefore) {
  cpu_.add(code, X86("mov 8(%rbx), %rbx"), [](FakeBackend& p) {
    p.registers.rbx = 0x1122'3344'5566'7788;
    p.registers.rflags = 0x246;
    return std::nullopt;
  });
  end_block_at(code + 4);
  backend_.registers.r15 = 0xF;
  const RunEnd end = walk();
  ASSERT_TRUE(end.retired);
  const auto& [what, registers] = *end.retired;
  EXPECT_EQ(what.ip, GuestLinear{code});
  EXPECT_EQ(what.next_ip, GuestLinear{code + 4});
  EXPECT_EQ(what.cpl, 0);
  EXPECT_TRUE(what.long_mode);
  EXPECT_TRUE(what.has_load);
  EXPECT_FALSE(what.has_store);
  EXPECT_EQ(what.load.address, GuestLinear{data + 8});
  EXPECT_FALSE(what.load.split);
  EXPECT_EQ(what.branch.kind, BranchKind::none);
  EXPECT_FALSE(what.branch.taken);
  EXPECT_EQ(registers[Slot::rip], code + 4);
  EXPECT_EQ(registers[Slot::rbx], 0x1122'3344'5566'7788U);
  EXPECT_EQ(registers[Slot::rflags], 0x246U);
  EXPECT_EQ(registers[Slot::rsp], stack);
  EXPECT_EQ(registers[Slot::r15], 0xFU);
}

TEST_F(SkidWalkerIn, AccessAcrossACacheLineIsSplit) {
  cpu_.add(code, X86("mov %rax, 0x3C(%rbx)"));
  end_block_at(code + 4);
  const RunEnd end = walk();
  ASSERT_TRUE(end.retired);
  EXPECT_TRUE(end.retired->what.has_store);
  EXPECT_EQ(end.retired->what.store.address, GuestLinear{data + 0x3C});
  EXPECT_TRUE(end.retired->what.store.split);
}

TEST_F(SkidWalkerIn, TakenBranchShowsItsTarget) {
  cpu_.add_jump(code, code + 0x40);
  const RunEnd end = walk();
  ASSERT_TRUE(end.retired);
  EXPECT_EQ(end.retired->what.next_ip, GuestLinear{code + 0x40});
  EXPECT_EQ(end.retired->what.branch.kind, BranchKind::near_rel_jmp);
  EXPECT_TRUE(end.retired->what.branch.taken);
}

TEST_F(SkidWalkerIn, ConditionalBranchThatFallsThroughIsNotTaken) {
  cpu_.add(code, X86("je .+18"));
  const RunEnd end = walk();
  ASSERT_TRUE(end.retired);
  EXPECT_EQ(end.retired->what.branch.kind, BranchKind::conditional);
  EXPECT_FALSE(end.retired->what.branch.taken);
}

// Position-independent code finds its address by a call to the next instruction, which is a taken branch.
TEST_F(SkidWalkerIn, CallToTheNextInstructionIsTaken) {
  cpu_.add(code, X86("call 1f; 1:"));
  const RunEnd end = walk();
  ASSERT_TRUE(end.retired);
  EXPECT_EQ(end.retired->what.branch.kind, BranchKind::near_rel_call);
  EXPECT_TRUE(end.retired->what.branch.taken);
}

// SDM 3B 18.2.1.2: a repeated string instruction retires once, at its end; a single-step would stop within it.
TEST_F(SkidWalkerIn, RepeatedStringInstructionIsNeverChosen) {
  cpu_.add(code, X86("nop"));
  cpu_.add(code + 1, X86("rep movsb"));
  cpu_.add(code + 3, X86("nop"));
  cpu_.add_jump(code + 4, code);
  for (int n = 0; n < 200; ++n) {
    backend_.registers.rip = code;
    const RunEnd end = walk();
    ASSERT_TRUE(end.retired);
    EXPECT_NE(end.retired->what.ip, GuestLinear{code + 1});
  }
}

TEST_F(SkidWalkerIn, BlockWithNothingSteppableIsGivenUpWithoutRunning) {
  guest_.store_code(code, X86("rdpmc; syscall"));
  expect_nothing(walk());
  EXPECT_EQ(walker_.statistics().nothing_found, 1U);
  EXPECT_EQ(backend_.count("run"), 0U);
}

TEST_F(SkidWalkerIn, UnreadableOrInvalidCodeIsGivenUp) {
  backend_.registers.rip = 0xFFFF'FFFF'9000'0000;
  expect_nothing(walk());
  guest_.store_code(code, {0x06});
  backend_.registers.rip = code;
  expect_nothing(walk());
  EXPECT_EQ(walker_.statistics().nothing_found, 2U);
  EXPECT_EQ(backend_.count("run"), 0U);
}

// Rule C1.
TEST_F(SkidWalkerIn, DoesNotStartAtALevelThatDoesNotCount) {
  place_loop(3);
  expect_nothing(walk({.usr = true}));
  guest_.enter_ring(3);
  expect_nothing(walk({.os = true}));
  EXPECT_EQ(walker_.statistics().wrong_level, 2U);
  EXPECT_EQ(backend_.count("run"), 0U);
}

// Rule C7: nothing retires in HLT.
TEST_F(SkidWalkerIn, DoesNotWakeAHaltedCpu) {
  place_loop(3);
  backend_.is_halted = true;
  expect_nothing(walk());
  EXPECT_EQ(walker_.statistics().wrong_level, 1U);
  EXPECT_EQ(backend_.count("run"), 0U);
}

// The delivery of a pending event would push our TF with the guest's flags.
TEST_F(SkidWalkerIn, DoesNotStartWhileAnEventIsBeingDelivered) {
  place_loop(3);
  const auto expect_pending = [&](auto change) {
    kvm_vcpu_events events{};
    change(events);
    backend_.pending = events;
    expect_nothing(walk());
  };
  expect_pending([](kvm_vcpu_events& e) { e.exception.injected = 1; });
  expect_pending([](kvm_vcpu_events& e) { e.exception.pending = 1; });
  expect_pending([](kvm_vcpu_events& e) { e.interrupt.injected = 1; });
  expect_pending([](kvm_vcpu_events& e) { e.interrupt.shadow = 1; });
  expect_pending([](kvm_vcpu_events& e) { e.nmi.injected = 1; });
  expect_pending([](kvm_vcpu_events& e) { e.nmi.pending = 1; });
  expect_pending([](kvm_vcpu_events& e) { e.nmi.masked = 1; });
  EXPECT_EQ(walker_.statistics().event_pending, 7U);
  EXPECT_EQ(backend_.count("run"), 0U);
  backend_.pending = {};
  EXPECT_TRUE(walk().retired) << "nothing is pending any more";
}

TEST_F(SkidWalkerIn, AKickOnTheWayAbandonsTheWalkAndIsHandedOn) {
  place_loop(100);
  time_.pass(std::chrono::seconds{1});
  cpu_.per_instruction = std::chrono::milliseconds{1};
  while (walker_.statistics().abandoned == 0) {
    backend_.registers.rip = code;
    const RunEnd end = walk();
    EXPECT_EQ(end.exit && std::holds_alternative<Interrupted>(*end.exit), walker_.statistics().abandoned != 0);
    EXPECT_EQ(end.retired.has_value(), walker_.statistics().abandoned == 0);
  }
  expect_clean();
}

TEST_F(SkidWalkerIn, AnotherExitOnTheWayIsHandedOn) {
  cpu_.add(code, X86("in $0x40, %al"), [](FakeBackend&) { return Exit{Shutdown{}}; });
  cpu_.add(code + 2, X86("mov (%rbx), %eax"));
  cpu_.add_jump(code + 4, code);
  const RunEnd end = walk();
  EXPECT_FALSE(end.retired);
  ASSERT_TRUE(end.exit);
  EXPECT_TRUE(std::holds_alternative<Shutdown>(*end.exit));
  EXPECT_EQ(walker_.statistics().abandoned, 1U);
  expect_clean();
}

TEST_F(SkidWalkerIn, AnotherExitInsteadOfTheStepIsHandedOn) {
  cpu_.add(code, X86("mov (%rbx), %eax"), [](FakeBackend&) { return Exit{Shutdown{}}; });
  end_block_at(code + 2);
  const RunEnd end = walk();
  EXPECT_FALSE(end.retired);
  EXPECT_TRUE(end.exit);
  EXPECT_EQ(walker_.statistics().abandoned, 1U);
  expect_clean();
}

// If the walk meets a breakpoint of the guest, the guest gets it and the walk ends.
TEST_F(SkidWalkerIn, BreakpointOfTheGuestOnTheWayIsHandedOn) {
  cpu_.add(code, X86("rdpmc"));  // which is never stepped
  cpu_.add(code + 2, X86("rdpmc"));
  cpu_.add(code + 4, X86("mov (%rbx), %eax"));
  end_block_at(code + 6);
  backend_.debug_registers.db[1] = code + 2;
  backend_.debug_registers.dr7 = 0x400 | (1ULL << 2);
  const RunEnd end = walk();
  ASSERT_TRUE(end.exit);
  const auto& debug = std::get<Debug>(*end.exit);
  EXPECT_EQ(debug.pc, code + 2);
  EXPECT_EQ(guest_.breakpoints.classify(debug, backend_.registers.rflags, true), Breakpoints::Hit::guest);
}

// If the stepped instruction hits a watchpoint of the guest, the guest must get it, and the instruction has retired all
// the same.
TEST_F(SkidWalkerIn, WatchpointOfTheGuestOnTheSteppedInstructionIsHandedOn) {
  cpu_.add_jump(code, code + 0x40);
  backend_.debug_registers.dr7 = 0x400 | 1 | (0xDULL << 16);  // DR0: four bytes written
  backend_.script.emplace_back([](FakeBackend& p) {
    p.registers.rip = code + 0x40;
    return Debug{1, code + 0x40, 0xFFFF'0FF0 | (1 << 14) | 1, 0x400};
  });
  const RunEnd end = walk();
  EXPECT_TRUE(end.retired);
  ASSERT_TRUE(end.exit);
  const auto& debug = std::get<Debug>(*end.exit);
  EXPECT_EQ(debug.dr6, 0xFFFF'0FF0U | 1) << "the step itself is ours";
  EXPECT_EQ(guest_.breakpoints.classify(debug, backend_.registers.rflags, true), Breakpoints::Hit::guest);
}

// A fault under single-step would leave TF in the flags that the guest's handler saves.
TEST_F(SkidWalkerIn, InstructionThatWouldFaultIsNotStepped) {
  cpu_.add(code, X86("mov (%rbx), %eax"));
  end_block_at(code + 2);
  backend_.registers.rbx = 0xDEAD'0000;
  expect_nothing(walk());
  EXPECT_EQ(walker_.statistics().nothing_found, 1U);
  EXPECT_EQ(walker_.statistics().steps, 0U);
  EXPECT_EQ(backend_.count("run"), 0U);
}

TEST_F(SkidWalkerIn, OperandThatCrossesIntoAnUnmappedPageIsNotStepped) {
  cpu_.add(code, X86("mov (%rbx), %eax"));
  end_block_at(code + 2);
  backend_.registers.rbx = data + vpmu::page_size - 2;
  expect_nothing(walk());
  EXPECT_EQ(walker_.statistics().steps, 0U);
}

TEST_F(SkidWalkerIn, StoreToAReadOnlyPageIsNotStepped) {
  guest_.map(data, vpmu::page_size, {.is_writable = false});
  cpu_.add(code, X86("mov %eax, (%rbx)"));
  end_block_at(code + 2);
  expect_nothing(walk());
  EXPECT_EQ(walker_.statistics().steps, 0U);
}

TEST_F(SkidWalkerIn, AccessOutsideRamIsNotStepped) {
  guest_.map_to(data, 0xFEE0'0000);
  cpu_.add(code, X86("mov (%rbx), %eax"));
  end_block_at(code + 2);
  expect_nothing(walk());
  EXPECT_EQ(walker_.statistics().steps, 0U);
}

TEST_F(SkidWalkerIn, FailureOfTheHostIsReportedAndLeavesNothingArmed) {
  place_loop(3);
  backend_.broken.insert("run");
  EXPECT_FALSE(walker_.walk(backend_, any_level));
  ASSERT_TRUE(guest_.breakpoints.apply());
  expect_clean();
}

}  // namespace
}  // namespace vmm::test::of_skid_walker
