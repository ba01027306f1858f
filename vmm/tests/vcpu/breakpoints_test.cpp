#include "vcpu/breakpoints.hpp"
#include "support/x86.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fakes/fake_backend.hpp"
#include "vpmu/bits.hpp"

namespace vmm::test {
namespace {

using Calls = std::vector<std::string>;
using vpmu::GuestLinear;

constexpr GuestLinear gate{0xFFFF'FFFF'8100'1000};
constexpr GuestLinear walk{0x40'1234};

/// DR7: local enable of breakpoint i, and its R/W and LEN fields. SDM 3B 17.2.4.
constexpr std::uint64_t enabled(unsigned i) { return 1ULL << (2 * i); }
constexpr std::uint64_t enabled_by_us(unsigned i) { return 2ULL << (2 * i); }
constexpr std::uint64_t four_byte_write(unsigned i) { return 0xDULL << (16 + 4 * i); }

/// DR7.GD, which makes each MOV DR exit to us. SDM 3B 17.2.4.
constexpr std::uint64_t general_detect = 1ULL << 13;

class BreakpointsOn : public testing::Test {
 protected:
  Calls apply() {
    backend_.calls.clear();
    EXPECT_TRUE(breakpoints_.apply());
    return backend_.calls;
  }
  [[nodiscard]] std::uint64_t slot(unsigned i) const { return backend_.guest_debug.arch.debugreg[i]; }
  [[nodiscard]] std::uint64_t dr7() const { return backend_.guest_debug.arch.debugreg[7] & ~general_detect; }
  [[nodiscard]] bool has(std::uint32_t control) const { return (backend_.guest_debug.control & control) == control; }

  FakeBackend backend_;
  Breakpoints breakpoints_{backend_};
};

TEST_F(BreakpointsOn, NothingWantedCostsNothing) { EXPECT_EQ(apply(), Calls{}); }

TEST_F(BreakpointsOn, GateIsHandedToKvmOnce) {
  breakpoints_.set_gate(gate);
  EXPECT_EQ(apply(), (Calls{"debugregs", "set_guest_debug"}));
  EXPECT_TRUE(has(KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP));
  EXPECT_EQ(slot(0), gate.value());
  EXPECT_EQ(dr7(), 0x400 | enabled_by_us(0));
  EXPECT_EQ(backend_.guest_debug.arch.debugreg[7] & general_detect, general_detect);
  EXPECT_EQ(apply(), Calls{"debugregs"}) << "only a look at the guest's own";
}

// While ours are set, KVM does not load what the guest writes to debug registers: we must, at the next entry.
TEST_F(BreakpointsOn, BreakpointThatTheGuestSetsLaterJoinsOurs) {
  breakpoints_.set_gate(gate);
  apply();
  backend_.debug_registers.db[1] = 0x1234'5000;
  backend_.debug_registers.dr7 = 0x400 | (1 << 2);
  EXPECT_EQ(apply(), (Calls{"debugregs", "set_guest_debug"}));
  EXPECT_EQ(slot(0), gate.value());
  EXPECT_EQ(slot(1), 0x1234'5000U);
  EXPECT_EQ(dr7(), 0x400 | enabled_by_us(0) | (1 << 2));
}

TEST_F(BreakpointsOn, TakingTheGateAwayGivesTheGuestItsRegistersBack) {
  breakpoints_.set_gate(gate);
  apply();
  breakpoints_.set_gate(std::nullopt);
  EXPECT_EQ(apply(), Calls{"set_guest_debug"});
  EXPECT_EQ(backend_.guest_debug.control, 0U);
  EXPECT_EQ(apply(), Calls{});
}

TEST_F(BreakpointsOn, GuestBreakpointsKeepTheirPlaces) {
  backend_.debug_registers.db[0] = 0x1000;
  backend_.debug_registers.db[2] = 0x3000;
  backend_.debug_registers.dr7 = 0x400 | enabled(0) | four_byte_write(0) | enabled(2);
  breakpoints_.set_gate(gate);
  breakpoints_.set_walk(walk);
  apply();
  EXPECT_EQ(slot(0), 0x1000U);
  EXPECT_EQ(slot(1), gate.value());
  EXPECT_EQ(slot(2), 0x3000U);
  EXPECT_EQ(slot(3), walk.value());
  EXPECT_EQ(dr7(), backend_.debug_registers.dr7 | enabled_by_us(1) | enabled_by_us(3));
  EXPECT_EQ(breakpoints_.displaced(), 0U);
}

TEST_F(BreakpointsOn, FreeRegisterLosesTheConditionThatTheGuestLeftInIt) {
  backend_.debug_registers.dr7 = 0x400 | four_byte_write(0) | four_byte_write(1);
  breakpoints_.set_gate(gate);
  apply();
  EXPECT_EQ(dr7(), 0x400 | four_byte_write(1) | enabled_by_us(0));
}

TEST_F(BreakpointsOn, GlobalEnableOfTheGuestAlsoKeepsARegister) {
  backend_.debug_registers.db[0] = 0x1000;
  backend_.debug_registers.dr7 = 0x400 | (2ULL << 0);
  breakpoints_.set_gate(gate);
  apply();
  EXPECT_EQ(slot(0), 0x1000U);
  EXPECT_EQ(slot(1), gate.value());
}

TEST_F(BreakpointsOn, GuestThatUsesAllFourLosesItsLastAndThatIsCounted) {
  for (unsigned i = 0; i < 4; ++i) backend_.debug_registers.db[i] = 0x1000 * (i + 1);
  backend_.debug_registers.dr7 = 0x400 | enabled(0) | enabled(1) | enabled(2) | enabled(3) | four_byte_write(3);
  breakpoints_.set_gate(gate);
  apply();
  EXPECT_EQ(slot(2), 0x3000U);
  EXPECT_EQ(slot(3), gate.value());
  EXPECT_EQ((vpmu::Bits<31, 28>::get(dr7())), 0U) << "an execution breakpoint of one byte";
  EXPECT_EQ(breakpoints_.displaced(), 1U);
}

// The gate must not lose its register: a #GP on RDPMC hurts a guest kernel more than a walk that cannot start hurts us.
TEST_F(BreakpointsOn, GateAndWalkFindTwoPlacesWhenTheGuestUsesAllFour) {
  backend_.debug_registers.dr7 = 0x400 | enabled(0) | enabled(1) | enabled(2) | enabled(3);
  breakpoints_.set_gate(gate);
  breakpoints_.set_walk(walk);
  apply();
  unsigned gates = 0;
  unsigned walks = 0;
  for (unsigned i = 0; i < 4; ++i) {
    gates += slot(i) == gate.value();
    walks += slot(i) == walk.value();
  }
  EXPECT_EQ(gates, 1U);
  EXPECT_EQ(walks, 1U);
  EXPECT_EQ(breakpoints_.displaced(), 2U);
}

TEST_F(BreakpointsOn, StepIsArmedAnewEachTime) {
  for (unsigned i = 0; i < 2; ++i) {
    breakpoints_.arm_step();
    EXPECT_EQ(apply(), Calls{"set_guest_debug"});
    EXPECT_EQ(apply(), Calls{}) << "a step that is over may stay on";
  }
  EXPECT_TRUE(has(KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP));
  EXPECT_FALSE(has(KVM_GUESTDBG_USE_HW_BP));
  breakpoints_.end_step();
  EXPECT_EQ(apply(), Calls{"set_guest_debug"});
  EXPECT_FALSE(has(KVM_GUESTDBG_ENABLE));
}

TEST_F(BreakpointsOn, AWalkEndsAStep) {
  breakpoints_.arm_step();
  apply();
  breakpoints_.set_walk(walk);
  apply();
  EXPECT_TRUE(has(KVM_GUESTDBG_USE_HW_BP));
  EXPECT_FALSE(has(KVM_GUESTDBG_SINGLESTEP));
  breakpoints_.set_walk({});
  apply();
  EXPECT_FALSE(has(KVM_GUESTDBG_ENABLE));
}

TEST_F(BreakpointsOn, OursComeBackWhenAnotherWasGiven) {
  breakpoints_.set_gate(gate);
  apply();
  EXPECT_EQ(apply(), Calls{"debugregs"});
  breakpoints_.given_others();
  EXPECT_EQ(apply(), (Calls{"debugregs", "set_guest_debug"}));
  EXPECT_EQ(apply(), Calls{"debugregs"});
}

TEST_F(BreakpointsOn, InterruptsAreHeldOffForWalksAndStepsOnly) {
  breakpoints_.set_gate(gate);
  apply();
  EXPECT_FALSE(has(KVM_GUESTDBG_BLOCKIRQ));
  breakpoints_.set_walk(walk);
  apply();
  EXPECT_TRUE(has(KVM_GUESTDBG_BLOCKIRQ));
  breakpoints_.set_walk({});
  breakpoints_.arm_step();
  apply();
  EXPECT_TRUE(has(KVM_GUESTDBG_BLOCKIRQ));
  breakpoints_.end_step();
  apply();
  EXPECT_FALSE(has(KVM_GUESTDBG_BLOCKIRQ));
  EXPECT_TRUE(has(KVM_GUESTDBG_USE_HW_BP)) << "the gate stays";
}

TEST_F(BreakpointsOn, RefusedChangeIsTriedAgain) {
  backend_.broken.insert("set_guest_debug");
  breakpoints_.set_gate(gate);
  EXPECT_FALSE(breakpoints_.apply());
  backend_.broken.clear();
  EXPECT_EQ(apply(), (Calls{"debugregs", "set_guest_debug"}));
}

/// A #DB at `pc`.
Debug debug_at(std::uint64_t pc, std::uint64_t dr6 = x86::dr6::fixed) {
  return {.exception = 1, .pc = pc, .dr6 = dr6, .dr7 = 0x400};
}

TEST_F(BreakpointsOn, ExitsAreToldApart) {
  using enum Breakpoints::Hit;
  breakpoints_.set_gate(gate);
  breakpoints_.set_walk(walk);
  apply();
  EXPECT_EQ(breakpoints_.classify(debug_at(gate.value(), x86::dr6::fixed | 1), 0, true), ours);
  EXPECT_EQ(breakpoints_.classify(debug_at(walk.value(), x86::dr6::fixed | 2), 0, true), ours);
  EXPECT_EQ(breakpoints_.classify(debug_at(0x5000, x86::dr6::fixed | 4), 0, true), guest);
  EXPECT_EQ(breakpoints_.classify(debug_at(0x5000, x86::dr6::fixed | x86::dr6::BS::mask), x86::rflags::TF::mask, true),
            guest)
      << "the guest steps itself";
  EXPECT_EQ(breakpoints_.classify(debug_at(0x5000, x86::dr6::fixed | x86::dr6::BS::mask), 0, true), kvm)
      << "KVM steps over what holds up an NMI";
  EXPECT_EQ(breakpoints_.classify({.exception = 3, .pc = gate.value(), .dr6 = 0, .dr7 = 0}, 0, true), guest)
      << "INT3 of the guest";
}

TEST_F(BreakpointsOn, StepIsOursOnlyWhileWeStep) {
  using enum Breakpoints::Hit;
  EXPECT_EQ(breakpoints_.classify(debug_at(0x5000, x86::dr6::fixed | x86::dr6::BS::mask), x86::rflags::TF::mask, true),
            guest);
  breakpoints_.arm_step();
  apply();
  EXPECT_EQ(breakpoints_.classify(debug_at(0x5000, x86::dr6::fixed | x86::dr6::BS::mask), 0, true), ours);
  EXPECT_EQ(breakpoints_.classify(debug_at(0x5000, x86::dr6::fixed | 1), 0, true), guest);
}

// An exit is classified by what KVM had armed, not by what is wanted next.
TEST_F(BreakpointsOn, ExitIsJudgedByWhatWasArmedWhenTheGuestRan) {
  breakpoints_.set_gate(gate);
  apply();
  breakpoints_.set_gate(std::nullopt);
  EXPECT_EQ(breakpoints_.classify(debug_at(gate.value(), x86::dr6::fixed | 1), 0, true), Breakpoints::Hit::ours);
}

// SDM 3B 17.2.3: a data breakpoint is reported after the instruction, together with the single-step; the guest gets
// only the breakpoints that it has enabled.
TEST_F(BreakpointsOn, StepsExitIsPartedBetweenUsAndTheGuest) {
  backend_.debug_registers.dr7 = 0x400 | enabled(0) | four_byte_write(0) | four_byte_write(1) | enabled(2);
  breakpoints_.arm_step();
  apply();
  backend_.calls.clear();
  const auto dr6_for_guest = [&](std::uint64_t dr6) -> std::uint64_t {
    const auto part = breakpoints_.guests_part(debug_at(0x5000, x86::dr6::fixed | x86::dr6::BS::mask | dr6));
    EXPECT_TRUE(part);
    return part && *part ? (*part)->dr6 : 0;
  };
  EXPECT_EQ(dr6_for_guest(0), 0U);
  EXPECT_TRUE(backend_.calls.empty()) << "a step without matches costs nothing";
  EXPECT_EQ(dr6_for_guest(1), x86::dr6::fixed | 1) << "enabled, data";
  EXPECT_EQ(dr6_for_guest(2), 0U) << "not enabled";
  EXPECT_EQ(dr6_for_guest(4), 0U) << "execution: not of this instruction";
  EXPECT_EQ(dr6_for_guest(0xF), x86::dr6::fixed | 1);
}

// With all four in use, ours takes the place of the last; a hit there is not of the guest's data.
TEST_F(BreakpointsOn, WhereOursIsNoBreakpointOfTheGuestHits) {
  constexpr std::uint64_t all_on_access = 0x400 | 0x55 | 0x3333'0000;
  backend_.debug_registers.dr7 = all_on_access;
  breakpoints_.set_walk(walk);
  apply();
  ASSERT_EQ(slot(3), walk.value());
  const auto none = breakpoints_.guests_part(debug_at(walk.value(), x86::dr6::fixed | 8));
  ASSERT_TRUE(none);
  EXPECT_FALSE(*none);
  const auto third = breakpoints_.guests_part(debug_at(walk.value(), x86::dr6::fixed | 8 | 4));
  ASSERT_TRUE(third && *third);
  EXPECT_EQ((*third)->dr6, x86::dr6::fixed | 4);
}

// If we do not single-step, a single-step trap is the guest's, even where a breakpoint of ours is at the next
// instruction: traps have priority. SDM 3A table 6-2.
TEST_F(BreakpointsOn, TrapOfAGuestThatStepsItselfIsItsOwn) {
  breakpoints_.set_walk(walk);
  apply();
  const Debug exit = debug_at(walk.value(), x86::dr6::fixed | x86::dr6::BS::mask | 1);
  EXPECT_EQ(breakpoints_.classify(exit, 0, true), Breakpoints::Hit::guest);
  const auto part = breakpoints_.guests_part(exit);
  ASSERT_TRUE(part && *part);
  EXPECT_EQ((*part)->dr6, x86::dr6::fixed | x86::dr6::BS::mask);
  EXPECT_EQ(breakpoints_.classify(**part, 0, true), Breakpoints::Hit::guest);
}

// Such a trap follows a POPF that clears TF. KVM itself single-steps only while an NMI waits.
TEST_F(BreakpointsOn, TrapWithoutTrapFlagIsTheGuestsWhereKvmDoesNotStep) {
  breakpoints_.set_gate(gate);
  apply();
  EXPECT_EQ(breakpoints_.classify(debug_at(0x5000, x86::dr6::fixed | x86::dr6::BS::mask), 0, false),
            Breakpoints::Hit::guest);
}

TEST_F(BreakpointsOn, StepMayEndAtHandlersToo) {
  breakpoints_.set_gate(gate);
  Stops handlers{GuestLinear{0x7000}};
  handlers.add(GuestLinear{0x8000});
  handlers.add(gate);
  handlers.add(GuestLinear{0x9000});
  EXPECT_EQ(handlers.size, Stops::max);
  backend_.debug_registers.dr7 = 0x400 | enabled(0) | enabled(1);
  breakpoints_.arm_step(handlers);
  apply();
  EXPECT_TRUE(has(KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP | KVM_GUESTDBG_USE_HW_BP));
  EXPECT_EQ(slot(2), gate.value()) << "once, though it is wanted twice";
  EXPECT_EQ(slot(3), 0x7000U);
  EXPECT_EQ(breakpoints_.displaced(), 0U) << "the guest's stay where registers are scarce";
  EXPECT_TRUE(breakpoints_.stops_at(GuestLinear{0x7000}));
  breakpoints_.end_step();
  apply();
  EXPECT_FALSE(breakpoints_.stops_at(GuestLinear{0x7000}));
}

// SDM 3B 17.2.3: DR6 tells which breakpoint it was; reserved bits read 1, and software's bits stay except for 3:0.
TEST_F(BreakpointsOn, GuestGetsItsDebugExceptionWithDr6) {
  backend_.pending.exception.has_error_code = 1;
  backend_.debug_registers.dr6 = x86::dr6::fixed | x86::dr6::BS::mask | 1;
  ASSERT_TRUE(breakpoints_.inject(debug_at(0x5000, 4)));
  EXPECT_EQ(backend_.debug_registers.dr6, x86::dr6::fixed | x86::dr6::BS::mask | 4);
  EXPECT_EQ(backend_.pending.exception.injected, 1);
  EXPECT_EQ(backend_.pending.exception.nr, 1);
  EXPECT_EQ(backend_.pending.exception.has_error_code, 0);
  EXPECT_EQ(backend_.calls, (Calls{"debugregs", "set_debugregs", "set_events"}));
}

}  // namespace
}  // namespace vmm::test
