#include "sources/skid_walker.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "fakes/fake_cpu.hpp"

namespace vmm::test {
namespace {

using vpmu::BranchKind;
using vpmu::GuestLinear;
using vpmu::Slot;

constexpr std::uint64_t code = 0xFFFF'FFFF'8100'0000;
constexpr std::uint64_t data = 0xFFFF'8880'0000'1000;
constexpr std::uint64_t stack = 0xFFFF'C900'0000'0800;
constexpr WalkGoal anything{.usr = true, .os = true, .any = true};
constexpr WalkGoal any_load{.usr = true, .os = true, .load = true};
constexpr WalkGoal any_store{.usr = true, .os = true, .store = true};
constexpr WalkGoal any_branch{
    .usr = true,
    .os = true,
    .branches = vpmu::BranchKinds::of(BranchKind::conditional, BranchKind::near_rel_jmp, BranchKind::near_rel_call)};

class SkidWalkerIn : public testing::Test {
 protected:
  SkidWalkerIn() {
    guest_.map(code, 2 * vpmu::page_size);
    guest_.map(data, vpmu::page_size);
    guest_.map(stack, vpmu::page_size);
    port_.registers.rip = code;
    port_.registers.rbx = data;
    port_.registers.rsp = stack;
  }

  RunEnd walk(const WalkGoal& goal) {
    auto end = walker_.walk(port_, goal);
    EXPECT_TRUE(end);
    return end.value_or(RunEnd{});
  }
  void expect_nothing(const RunEnd& end) {
    EXPECT_FALSE(end.retired);
    EXPECT_FALSE(end.exit);
  }
  /// No breakpoint or single-step of ours is armed in KVM or wanted any more.
  void expect_clean() {
    EXPECT_EQ(port_.guest_debug.control, 0U);
    port_.calls.clear();
    ASSERT_TRUE(guest_.breakpoints.apply());
    EXPECT_TRUE(port_.calls.empty());
  }
  /// `n` NOPs, then a jump back to the first.
  void place_loop(unsigned n) {
    for (unsigned i = 0; i < n; ++i) cpu_.add(code + i, {0x90});
    cpu_.add_jump(code + n, code);
  }

  FakeGuest guest_;
  FakePort& port_{guest_.port};
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
    port_.registers.rip = code;
    const RunEnd end = walk(anything);
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
    port_.registers.rip = code;
    port_.calls.clear();
    walk(anything);
  }
  EXPECT_EQ(port_.count("run"), 2U);
  const WalkStatistics& s = walker_.statistics();
  EXPECT_EQ(s.walks, s.steps);
  EXPECT_EQ(s.nothing_found + s.wrong_level + s.abandoned, 0U);
}

TEST_F(SkidWalkerIn, StepsTheFirstInstructionWithoutABreakpoint) {
  cpu_.add_jump(code, code + 0x40);
  EXPECT_TRUE(walk(anything).retired);
  EXPECT_EQ(port_.count("run"), 1U);
  EXPECT_EQ(port_.count("debugregs"), 0U);
}

// Rules P3, P4: a record has the registers after its instruction, but addresses computed from those before it.
TEST_F(SkidWalkerIn, RetirementShowsRegistersBehindAndAddressesBefore) {
  cpu_.add(code, {0x48, 0x8B, 0x5B, 0x08}, [](FakePort& p) {  // mov rbx, [rbx + 8]
    p.registers.rbx = 0x1122'3344'5566'7788;
    p.registers.rflags = 0x246;
    return std::nullopt;
  });
  cpu_.add_jump(code + 4, code);
  port_.registers.r15 = 0xF;
  const RunEnd end = walk(any_load);
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
  cpu_.add(code, {0x48, 0x89, 0x43, 0x3C});  // mov [rbx + 0x3C], rax
  cpu_.add_jump(code + 4, code);
  const RunEnd end = walk(any_store);
  ASSERT_TRUE(end.retired);
  EXPECT_TRUE(end.retired->what.has_store);
  EXPECT_EQ(end.retired->what.store.address, GuestLinear{data + 0x3C});
  EXPECT_TRUE(end.retired->what.store.split);
}

TEST_F(SkidWalkerIn, TakenBranchShowsItsTarget) {
  cpu_.add_jump(code, code + 0x40);
  const RunEnd end = walk(any_branch);
  ASSERT_TRUE(end.retired);
  EXPECT_EQ(end.retired->what.next_ip, GuestLinear{code + 0x40});
  EXPECT_EQ(end.retired->what.branch.kind, BranchKind::near_rel_jmp);
  EXPECT_TRUE(end.retired->what.branch.taken);
}

TEST_F(SkidWalkerIn, ConditionalBranchThatFallsThroughIsNotTaken) {
  cpu_.add(code, {0x74, 0x10});
  const RunEnd end = walk(any_branch);
  ASSERT_TRUE(end.retired);
  EXPECT_EQ(end.retired->what.branch.kind, BranchKind::conditional);
  EXPECT_FALSE(end.retired->what.branch.taken);
}

// Position-independent code finds its address by a call to the next instruction, which is a taken branch.
TEST_F(SkidWalkerIn, CallToTheNextInstructionIsTaken) {
  cpu_.add(code, {0xE8, 0x00, 0x00, 0x00, 0x00});
  const RunEnd end = walk(any_branch);
  ASSERT_TRUE(end.retired);
  EXPECT_EQ(end.retired->what.branch.kind, BranchKind::near_rel_call);
  EXPECT_TRUE(end.retired->what.branch.taken);
}

TEST_F(SkidWalkerIn, ChoosesOnlyInstructionsOfTheKind) {
  cpu_.add(code, {0x90});
  cpu_.add(code + 1, {0x8B, 0x03});              // load
  cpu_.add(code + 3, {0x48, 0x8D, 0x04, 0x0B});  // lea
  cpu_.add(code + 7, {0x48, 0x89, 0x03});        // store
  cpu_.add_jump(code + 10, code);
  for (int n = 0; n < 100; ++n) {
    port_.registers.rip = code;
    EXPECT_EQ(walk(any_load).retired->what.ip, GuestLinear{code + 1});
    port_.registers.rip = code;
    EXPECT_EQ(walk(any_store).retired->what.ip, GuestLinear{code + 7});
    port_.registers.rip = code;
    EXPECT_EQ(walk(any_branch).retired->what.ip, GuestLinear{code + 10});
  }
}

// SDM 3B 18.2.1.2: a repeated string instruction retires once, at its end; a single-step would stop within it.
TEST_F(SkidWalkerIn, RepeatedStringInstructionIsNeverChosen) {
  cpu_.add(code, {0x90});
  cpu_.add(code + 1, {0xF3, 0xA4});
  cpu_.add(code + 3, {0x90});
  cpu_.add_jump(code + 4, code);
  for (int n = 0; n < 200; ++n) {
    port_.registers.rip = code;
    const RunEnd end = walk(anything);
    ASSERT_TRUE(end.retired);
    EXPECT_NE(end.retired->what.ip, GuestLinear{code + 1});
  }
}

TEST_F(SkidWalkerIn, GoesOnToTheNextBlockWhenThisOneHasNone) {
  cpu_.add(code, {0x90});
  cpu_.add_jump(code + 1, code + 0x40);
  cpu_.add(code + 0x40, {0x8B, 0x03});
  cpu_.add_jump(code + 0x42, code);
  const RunEnd end = walk(any_load);
  ASSERT_TRUE(end.retired);
  EXPECT_EQ(end.retired->what.ip, GuestLinear{code + 0x40});
  EXPECT_EQ(walker_.statistics().walks, 1U) << "the jump on the way is no record";
  EXPECT_EQ(walker_.statistics().steps, 2U);
}

TEST_F(SkidWalkerIn, GivesUpAfterAFewBlocksWithoutTheKind) {
  place_loop(3);
  expect_nothing(walk(any_load));
  EXPECT_EQ(walker_.statistics().nothing_found, 1U);
  EXPECT_EQ(walker_.statistics().walks, 0U);
  EXPECT_LE(port_.count("run"), 8U);
  expect_clean();
}

TEST_F(SkidWalkerIn, BlockWithNothingSteppableIsGivenUpWithoutRunning) {
  guest_.store_code(code, {0x0F, 0x33, 0x0F, 0x05});  // rdpmc; syscall
  expect_nothing(walk(anything));
  EXPECT_EQ(walker_.statistics().nothing_found, 1U);
  EXPECT_EQ(port_.count("run"), 0U);
}

TEST_F(SkidWalkerIn, UnreadableOrInvalidCodeIsGivenUp) {
  port_.registers.rip = 0xFFFF'FFFF'9000'0000;
  expect_nothing(walk(anything));
  guest_.store_code(code, {0x06});
  port_.registers.rip = code;
  expect_nothing(walk(anything));
  EXPECT_EQ(walker_.statistics().nothing_found, 2U);
  EXPECT_EQ(port_.count("run"), 0U);
}

// Rule C1.
TEST_F(SkidWalkerIn, DoesNotStartAtALevelThatDoesNotCount) {
  place_loop(3);
  expect_nothing(walk({.usr = true, .any = true}));
  guest_.enter_ring(3);
  expect_nothing(walk({.os = true, .any = true}));
  EXPECT_EQ(walker_.statistics().wrong_level, 2U);
  EXPECT_EQ(port_.count("run"), 0U);
}

// Rule C7: nothing retires in HLT.
TEST_F(SkidWalkerIn, DoesNotWakeAHaltedCpu) {
  place_loop(3);
  port_.is_halted = true;
  expect_nothing(walk(anything));
  EXPECT_EQ(walker_.statistics().wrong_level, 1U);
  EXPECT_EQ(port_.count("run"), 0U);
}

// The delivery of a pending event would push our TF with the guest's flags.
TEST_F(SkidWalkerIn, DoesNotStartWhileAnEventIsBeingDelivered) {
  place_loop(3);
  const auto expect_pending = [&](auto change) {
    kvm_vcpu_events events{};
    change(events);
    port_.pending = events;
    expect_nothing(walk(anything));
  };
  expect_pending([](kvm_vcpu_events& e) { e.exception.injected = 1; });
  expect_pending([](kvm_vcpu_events& e) { e.exception.pending = 1; });
  expect_pending([](kvm_vcpu_events& e) { e.interrupt.injected = 1; });
  expect_pending([](kvm_vcpu_events& e) { e.interrupt.shadow = 1; });
  expect_pending([](kvm_vcpu_events& e) { e.nmi.injected = 1; });
  expect_pending([](kvm_vcpu_events& e) { e.nmi.pending = 1; });
  expect_pending([](kvm_vcpu_events& e) { e.nmi.masked = 1; });
  EXPECT_EQ(walker_.statistics().event_pending, 7U);
  EXPECT_EQ(port_.count("run"), 0U);
  port_.pending = {};
  EXPECT_TRUE(walk(anything).retired) << "nothing is pending any more";
}

TEST_F(SkidWalkerIn, AKickOnTheWayAbandonsTheWalkAndIsHandedOn) {
  place_loop(100);
  time_.pass(std::chrono::seconds{1});
  cpu_.per_instruction = std::chrono::milliseconds{1};
  while (walker_.statistics().abandoned == 0) {
    port_.registers.rip = code;
    const RunEnd end = walk(anything);
    EXPECT_EQ(end.exit && std::holds_alternative<Interrupted>(*end.exit), walker_.statistics().abandoned != 0);
    EXPECT_EQ(end.retired.has_value(), walker_.statistics().abandoned == 0);
  }
  expect_clean();
}

TEST_F(SkidWalkerIn, AnotherExitOnTheWayIsHandedOn) {
  cpu_.add(code, {0xE4, 0x40}, [](FakePort&) { return Exit{Shutdown{}}; });  // in al, 0x40
  cpu_.add(code + 2, {0x8B, 0x03});
  cpu_.add_jump(code + 4, code);
  const RunEnd end = walk(any_load);
  EXPECT_FALSE(end.retired);
  ASSERT_TRUE(end.exit);
  EXPECT_TRUE(std::holds_alternative<Shutdown>(*end.exit));
  EXPECT_EQ(walker_.statistics().abandoned, 1U);
  expect_clean();
}

TEST_F(SkidWalkerIn, AnotherExitInsteadOfTheStepIsHandedOn) {
  cpu_.add(code, {0x8B, 0x03}, [](FakePort&) { return Exit{Shutdown{}}; });
  cpu_.add_jump(code + 2, code);
  const RunEnd end = walk(any_load);
  EXPECT_FALSE(end.retired);
  EXPECT_TRUE(end.exit);
  EXPECT_EQ(walker_.statistics().abandoned, 1U);
  expect_clean();
}

// If the walk meets a breakpoint of the guest, the guest gets it and the walk ends.
TEST_F(SkidWalkerIn, BreakpointOfTheGuestOnTheWayIsHandedOn) {
  cpu_.add(code, {0x90});
  cpu_.add(code + 1, {0x90});
  cpu_.add(code + 2, {0x8B, 0x03});
  cpu_.add_jump(code + 4, code);
  port_.debug_registers.db[1] = code + 1;
  port_.debug_registers.dr7 = 0x400 | (1ULL << 2);
  const RunEnd end = walk(any_load);
  ASSERT_TRUE(end.exit);
  const auto& debug = std::get<Debug>(*end.exit);
  EXPECT_EQ(debug.pc, code + 1);
  EXPECT_EQ(guest_.breakpoints.classify(debug, port_.registers.rflags, true), Breakpoints::Hit::guest);
}

// If the stepped instruction hits a watchpoint of the guest, the guest must get it, and the instruction has retired all
// the same.
TEST_F(SkidWalkerIn, WatchpointOfTheGuestOnTheSteppedInstructionIsHandedOn) {
  cpu_.add_jump(code, code + 0x40);
  port_.debug_registers.dr7 = 0x400 | 1 | (0xDULL << 16);  // DR0: four bytes written
  port_.script.emplace_back([](FakePort& p) {
    p.registers.rip = code + 0x40;
    return Debug{1, code + 0x40, 0xFFFF'0FF0 | (1 << 14) | 1, 0x400};
  });
  const RunEnd end = walk(anything);
  EXPECT_TRUE(end.retired);
  ASSERT_TRUE(end.exit);
  const auto& debug = std::get<Debug>(*end.exit);
  EXPECT_EQ(debug.dr6, 0xFFFF'0FF0U | 1) << "the step itself is ours";
  EXPECT_EQ(guest_.breakpoints.classify(debug, port_.registers.rflags, true), Breakpoints::Hit::guest);
}

// A fault under single-step would leave TF in the flags that the guest's handler saves.
TEST_F(SkidWalkerIn, InstructionThatWouldFaultIsNotStepped) {
  cpu_.add(code, {0x8B, 0x03});
  cpu_.add_jump(code + 2, code);
  port_.registers.rbx = 0xDEAD'0000;
  expect_nothing(walk(any_load));
  EXPECT_EQ(walker_.statistics().nothing_found, 1U);
  EXPECT_EQ(walker_.statistics().steps, 0U);
  EXPECT_EQ(port_.count("run"), 0U);
}

TEST_F(SkidWalkerIn, OperandThatCrossesIntoAnUnmappedPageIsNotStepped) {
  cpu_.add(code, {0x8B, 0x03});
  cpu_.add_jump(code + 2, code);
  port_.registers.rbx = data + vpmu::page_size - 2;
  expect_nothing(walk(any_load));
  EXPECT_EQ(walker_.statistics().steps, 0U);
}

TEST_F(SkidWalkerIn, StoreToAReadOnlyPageIsNotStepped) {
  guest_.map(data, vpmu::page_size, {.is_writable = false});
  cpu_.add(code, {0x89, 0x03});
  cpu_.add_jump(code + 2, code);
  expect_nothing(walk(any_store));
  EXPECT_EQ(walker_.statistics().steps, 0U);
}

TEST_F(SkidWalkerIn, AccessOutsideRamIsNotStepped) {
  guest_.map_to(data, 0xFEE0'0000);
  cpu_.add(code, {0x8B, 0x03});
  cpu_.add_jump(code + 2, code);
  expect_nothing(walk(any_load));
  EXPECT_EQ(walker_.statistics().steps, 0U);
}

TEST_F(SkidWalkerIn, FailureOfTheHostIsReportedAndLeavesNothingArmed) {
  place_loop(3);
  port_.broken.insert("run");
  EXPECT_FALSE(walker_.walk(port_, anything));
  ASSERT_TRUE(guest_.breakpoints.apply());
  expect_clean();
}

}  // namespace
}  // namespace vmm::test
