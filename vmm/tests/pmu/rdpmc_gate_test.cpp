#include "pmu/rdpmc_gate.hpp"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <ostream>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_guest.hpp"
#include "support/x86.hpp"

namespace vmm::test {
namespace {

using vpmu::GuestLinear;

constexpr std::uint64_t idt = 0xFFFF'FE00'0000'0000;
constexpr std::uint64_t gdt = 0xFFFF'FE00'0000'1000;
constexpr std::uint64_t handler = 0xFFFF'FFFF'81A0'0B60;
constexpr std::uint64_t kernel_code = 0xFFFF'FFFF'8100'0000;
constexpr std::uint64_t user_code = 0x40'1000;
constexpr std::uint64_t stack = 0xFFFF'C900'0000'4000;

constexpr std::uint16_t kernel_cs = 0x10, kernel_ss = 0x18, user_ss = 0x2B, user_cs = 0x33;

/// The stack frame of a fault. SDM 3A figure 6-8.
struct FaultFrame {
  std::uint64_t error_code{}, rip{kernel_code}, cs{kernel_cs}, rflags{0x246}, rsp{stack + 0x80}, ss{kernel_ss};
};

/// A guest with an IDT, a GDT and a stack, stopped at the first instruction of its #GP handler.
class RdpmcGateIn : public testing::Test {
 protected:
  RdpmcGateIn() {
    guest_.map(idt, vpmu::page_size, {.is_writable = false});
    guest_.map(gdt, vpmu::page_size);
    guest_.map(kernel_code, vpmu::page_size);
    guest_.map(user_code, vpmu::page_size, {.is_user = true});
    guest_.map(stack - vpmu::page_size, 2 * vpmu::page_size);
    backend_.special.idt = {.base = idt, .limit = 0xFFF};
    backend_.special.gdt = {.base = gdt, .limit = 0x7F};
    set_handler(handler);
    guest_.store_word(gdt + 0x28, 0x00CF'F300'0000'FFFF);  // user data
    guest_.store_word(gdt + 0x30, 0x00AF'FB00'0000'FFFF);  // 64-bit user code
    for (const std::uint64_t code : {kernel_code, user_code}) guest_.store_code(code, X86("rdpmc; nop"));
  }

  /// A 64-bit interrupt gate for #GP. SDM 3A figure 6-7.
  void set_handler(std::uint64_t at, bool is_present = true) {
    guest_.store_word(idt + 13 * 16, (at & 0xFFFF) | (std::uint64_t{kernel_cs} << 16) | (0xEULL << 40) |
                                         (std::uint64_t{is_present} << 47) | ((at & 0xFFFF'0000) << 32));
    guest_.store_word(idt + 13 * 16 + 8, at >> 32);
  }

  /// Arms the gate; returns its address.
  std::optional<GuestLinear> armed_at() {
    EXPECT_TRUE(gate_.update(true));
    return guest_.breakpoints.gate();
  }

  void stop_at_handler(const FaultFrame& frame, std::uint32_t ecx = 0) {
    const std::array<std::uint64_t, 6> words{frame.error_code, frame.rip, frame.cs, frame.rflags, frame.rsp, frame.ss};
    guest_.store(stack, std::as_bytes(std::span{words}));
    backend_.registers = {.rax = 0x1111, .rcx = ecx, .rdx = 0x2222, .rsp = stack, .rip = handler, .rflags = 2};
  }
  static FaultFrame from_ring_3() { return {.rip = user_code, .cs = user_cs, .rsp = 0x7FFE'0000, .ss = user_ss}; }

  /// Handles the fault; the PMU answers RDPMC with `value`, or refuses it.
  void handle(std::optional<std::uint64_t> value = 0xAABB'CCDD'EEFF) {
    ASSERT_TRUE(gate_.on_fault_handler([&](std::uint32_t ecx, unsigned cpl, bool pce) {
      asked_ = Asked{ecx, cpl, pce};
      return value;
    }));
  }
  void expect_served(std::uint64_t rip) {
    EXPECT_EQ(backend_.registers.rax, 0xCCDD'EEFFU);
    EXPECT_EQ(backend_.registers.rdx, 0xAABBU);
    EXPECT_EQ(backend_.registers.rip, rip);
    EXPECT_EQ(gate_.statistics().served, 1U);
  }
  /// The guest's handler runs as if we had not intercepted it.
  void expect_let_through() {
    EXPECT_EQ(backend_.registers.rip, handler);
    EXPECT_EQ(backend_.registers.rsp, stack);
    EXPECT_EQ(backend_.registers.rflags, 2 | x86::rflags::RF::mask) << "RF keeps the breakpoint from firing again";
    EXPECT_EQ(backend_.registers.rax, 0x1111U);
    EXPECT_EQ(backend_.count("set_sregs"), 0U);
    EXPECT_EQ(gate_.statistics().served, 0U);
  }

  struct Asked {
    std::uint32_t ecx;
    unsigned cpl;
    bool pce;
  };
  FakeGuest guest_;
  FakeBackend& backend_{guest_.backend};
  RdpmcGate gate_{guest_.backend, guest_.breakpoints, guest_.view};
  std::optional<Asked> asked_;
};

TEST_F(RdpmcGateIn, ArmsAtTheGuestsFaultHandler) { EXPECT_EQ(armed_at(), GuestLinear{handler}); }

// SDM 3B 17.3.1.4: a guest that single-steps itself gets its trap after RDPMC.
TEST_F(RdpmcGateIn, SteppedRdpmcIsFollowedByItsTrap) {
  stop_at_handler({.rflags = 0x346});
  handle();
  expect_served(kernel_code + 2);
  EXPECT_EQ(backend_.registers.rflags, 0x346U);
  EXPECT_EQ(backend_.pending.exception.injected, 1);
  EXPECT_EQ(backend_.pending.exception.nr, 1);
  EXPECT_EQ(backend_.debug_registers.dr6 & 0x4000U, 0x4000U);
}

TEST_F(RdpmcGateIn, DisarmsWhenThePmuIsNotInUse) {
  armed_at();
  ASSERT_TRUE(gate_.update(false));
  EXPECT_EQ(guest_.breakpoints.gate(), std::nullopt);
}

// The IDT moves during boot.
TEST_F(RdpmcGateIn, LooksForTheHandlerEachTimeItArms) {
  armed_at();
  ASSERT_TRUE(gate_.update(false));
  set_handler(0xFFFF'FFFF'8190'1000);
  EXPECT_EQ(armed_at(), GuestLinear{0xFFFF'FFFF'8190'1000});
}

TEST_F(RdpmcGateIn, StaysOffWhereThereIsNoHandler) {
  set_handler(handler, false);
  EXPECT_EQ(armed_at(), std::nullopt) << "gate not present";
  set_handler(handler);
  backend_.special.idt.limit = 13 * 16 + 14;
  EXPECT_EQ(armed_at(), std::nullopt) << "IDT one byte too short";
  backend_.special.idt.limit = 13 * 16 + 15;
  EXPECT_EQ(armed_at(), GuestLinear{handler}) << "IDT just long enough";
}

TEST_F(RdpmcGateIn, StaysOffWhereTheTableCannotBeRead) {
  guest_.unmap(idt);
  EXPECT_EQ(armed_at(), std::nullopt);
  backend_.special.idt.base = 0x0008'0000'0000'0000;  // not canonical
  EXPECT_EQ(armed_at(), std::nullopt);
  backend_.special.idt.base = ~0ULL - 0xD0;  // the descriptor wraps around the end of the address space
  EXPECT_EQ(armed_at(), std::nullopt);
}

TEST_F(RdpmcGateIn, StaysOffOutsideLongMode) {
  backend_.special.efer &= ~vpmu::bit(10);
  EXPECT_EQ(armed_at(), std::nullopt);
}

TEST_F(RdpmcGateIn, FindsTheHandlerLaterWhenItWasMissingAtFirst) {
  set_handler(handler, false);
  armed_at();
  set_handler(handler);
  EXPECT_EQ(armed_at(), GuestLinear{handler});
}

// SDM 2B RDPMC: ECX selects, EDX:EAX takes the value; upper halves of RAX and RDX are cleared.
TEST_F(RdpmcGateIn, KernelRdpmcGetsItsValueAndGoesOnBehindIt) {
  stop_at_handler({}, 0x4000'0001);
  backend_.special.cr4 |= x86::cr4::PCE::mask;
  handle();
  expect_served(kernel_code + 2);
  EXPECT_EQ(backend_.registers.rsp, stack + 0x80);
  EXPECT_EQ(backend_.registers.rflags, 0x246U);
  EXPECT_EQ(backend_.count("set_sregs"), 0U) << "same segments";
  ASSERT_TRUE(asked_);
  EXPECT_EQ(asked_->ecx, 0x4000'0001U);
  EXPECT_EQ(asked_->cpl, 0U);
  EXPECT_TRUE(asked_->pce);
}

TEST_F(RdpmcGateIn, UserRdpmcReturnsToRing3WithTheSegmentsOfTheGdt) {
  stop_at_handler(from_ring_3(), 2);
  backend_.special.cr4 |= x86::cr4::PCE::mask;
  handle();
  expect_served(user_code + 2);
  EXPECT_EQ(asked_->cpl, 3U);
  EXPECT_EQ(backend_.registers.rsp, 0x7FFE'0000U);
  EXPECT_EQ(cpl_of(backend_.special), 3U);
  const kvm_segment& cs = backend_.special.cs;
  EXPECT_EQ(cs.selector, user_cs);
  EXPECT_EQ(cs.l, 1);
  EXPECT_EQ(cs.db, 0);
  EXPECT_EQ(cs.dpl, 3);
  EXPECT_EQ(cs.type, 0xB);
  EXPECT_EQ(cs.limit, 0xFFFF'FFFFU);
  const kvm_segment& ss = backend_.special.ss;
  EXPECT_EQ(ss.selector, user_ss);
  EXPECT_EQ(ss.type, 0x3);
  EXPECT_EQ(ss.db, 1);
  EXPECT_EQ(ss.s, 1);
  EXPECT_EQ(ss.present, 1);
}

// If the host ignores RF, the breakpoint fires on the same instruction for ever.
TEST_F(RdpmcGateIn, GivesUpOnAHostThatIgnoresTheResumeFlag) {
  armed_at();
  stop_at_handler({.error_code = 0x18});
  handle();
  EXPECT_EQ(guest_.breakpoints.gate(), GuestLinear{handler});
  handle();
  EXPECT_EQ(guest_.breakpoints.gate(), std::nullopt);
  EXPECT_EQ(armed_at(), std::nullopt) << "and is not armed again";
  EXPECT_EQ(gate_.statistics().given_up, 1U);
}

TEST_F(RdpmcGateIn, PceOfTheGuestIsPassedOn) {
  stop_at_handler(from_ring_3());
  handle(std::nullopt);
  ASSERT_TRUE(asked_);
  EXPECT_FALSE(asked_->pce);
}

TEST_F(RdpmcGateIn, RefusedRdpmcFaultsAsOnHardware) {
  stop_at_handler({}, 99);
  handle(std::nullopt);
  expect_let_through();
  EXPECT_EQ(gate_.statistics().refused, 1U);
  EXPECT_EQ(gate_.statistics().other_faults, 0U);
}

// SDM 3B 17.3.1.1: the guest's own breakpoint on its handler fires too, before the handler's first instruction.
TEST_F(RdpmcGateIn, BreakpointOfTheGuestOnItsHandlerIsDeliveredBeforeAFaultGoesOn) {
  backend_.debug_registers.db[2] = handler;
  backend_.debug_registers.dr7 = 0x400 | (1 << 4);
  armed_at();
  ASSERT_TRUE(guest_.breakpoints.apply());
  stop_at_handler({.rip = kernel_code + 0x10});
  handle();
  EXPECT_EQ(backend_.pending.exception.nr, 1);
  EXPECT_EQ(backend_.pending.exception.injected, 1);
  EXPECT_EQ(backend_.debug_registers.dr6 & 0xF, 4U);
  EXPECT_EQ(backend_.registers.rflags & x86::rflags::RF::mask, 0U) << "the guest's handler of #DB sets it";
}

/// A fault that has nothing to do with RDPMC, or whose instruction cannot be read.
struct OtherFault {
  const char* name;
  FaultFrame frame;
  friend void PrintTo(const OtherFault& f, std::ostream* out) { *out << f.name; }
};
class RdpmcGateLetsThrough : public RdpmcGateIn, public testing::WithParamInterface<OtherFault> {};
TEST_P(RdpmcGateLetsThrough, WithoutAsking) {
  guest_.store_code(kernel_code + 0x10, X86("wrmsr"));
  guest_.store_code(kernel_code + vpmu::page_size - 1, {0x0F});
  stop_at_handler(GetParam().frame);
  handle();
  expect_let_through();
  EXPECT_FALSE(asked_);
  EXPECT_EQ(gate_.statistics().other_faults, 1U);
}
INSTANTIATE_TEST_SUITE_P(Fault, RdpmcGateLetsThrough,
                         testing::Values(OtherFault{"OfAnotherInstruction", {.rip = kernel_code + 0x10}},
                                         OtherFault{"WithAnErrorCode", {.error_code = 0x18}},
                                         OtherFault{"AtUnmappedCode", {.rip = 0xFFFF'FFFF'9000'0000}},
                                         OtherFault{"AtACodePageEnd", {.rip = kernel_code + vpmu::page_size - 1}},
                                         OtherFault{"AtANonCanonicalAddress", {.rip = 0x8000'0000'0000}},
                                         OtherFault{"AtTheEndOfTheAddressSpace", {.rip = ~0ULL}},
                                         OtherFault{"OfUserCodeInAKernelPage",
                                                    {.rip = kernel_code, .cs = user_cs, .ss = user_ss}}),
                         [](const auto& fault) { return fault.param.name; });

TEST_F(RdpmcGateIn, UnreadableStackIsLeftToTheGuest) {
  stop_at_handler({});
  guest_.unmap(stack);
  handle();
  expect_let_through();
  EXPECT_EQ(gate_.statistics().other_faults, 1U);
}

// The gate must not load segments that IRET would refuse: KVM could not enter the vCPU any more.
struct BadSegments {
  const char* name;
  std::uint64_t cs{user_cs}, ss{user_ss};
  std::uint64_t code{0x00AF'FB00'0000'FFFF}, data{0x00CF'F300'0000'FFFF};
  friend void PrintTo(const BadSegments& f, std::ostream* out) { *out << f.name; }
};
class RdpmcGateRefusesToReturn : public RdpmcGateIn, public testing::WithParamInterface<BadSegments> {};
TEST_P(RdpmcGateRefusesToReturn, ThroughBadSegments) {
  guest_.store_word(gdt + 0x28, GetParam().data);
  guest_.store_word(gdt + 0x30, GetParam().code);
  FaultFrame frame = from_ring_3();
  frame.cs = GetParam().cs;
  frame.ss = GetParam().ss;
  stop_at_handler(frame);
  handle();
  expect_let_through();
}
INSTANTIATE_TEST_SUITE_P(Frame, RdpmcGateRefusesToReturn,
                         testing::Values(BadSegments{.name = "CodeInTheLdt", .cs = user_cs | 4},
                                         BadSegments{.name = "NullStack", .ss = 3},
                                         BadSegments{.name = "CodeBeyondTheGdt", .cs = 0x83},
                                         BadSegments{.name = "StackOfTheKernel", .data = 0x00CF'9300'0000'FFFF},
                                         BadSegments{.name = "CodeOfTheKernel", .code = 0x00AF'9B00'0000'FFFF},
                                         BadSegments{.name = "CodeNotPresent", .code = 0x00AF'7B00'0000'FFFF},
                                         BadSegments{.name = "CodeIsData", .code = 0x00CF'F300'0000'FFFF},
                                         BadSegments{.name = "CodeIsATaskState", .code = 0x0000'E900'0000'0067},
                                         BadSegments{.name = "StackIsCode", .data = 0x00AF'FB00'0000'FFFF},
                                         BadSegments{.name = "StackIsReadOnly", .data = 0x00CF'F100'0000'FFFF},
                                         BadSegments{.name = "CodeIsBoth64And32Bit", .code = 0x00EF'FB00'0000'FFFF}),
                         [](const auto& fault) { return fault.param.name; });

// SDM 2A IRET: IRETQ does not change VM, and the emulated RDPMC clears RF as it completes.
TEST_F(RdpmcGateIn, FlagsThatCannotReturnToUserCodeAreDropped) {
  FaultFrame frame = from_ring_3();
  frame.rflags = 0x246 | x86::rflags::RF::mask | vpmu::bit(17);
  stop_at_handler(frame);
  handle();
  EXPECT_EQ(backend_.registers.rflags, 0x246U);
}

TEST_F(RdpmcGateIn, ChangesNothingInTheGuestsCode) {
  stop_at_handler({});
  handle();
  EXPECT_EQ(guest_.load(kernel_code, 2), (std::vector<std::uint8_t>{X86("rdpmc")}));
}

}  // namespace
}  // namespace vmm::test
