#include "sources/step_source.hpp"

#include <gtest/gtest.h>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_cpu.hpp"
#include "support/x86.hpp"

namespace vmm::test::of_step_source {
namespace {

constexpr std::uint64_t code = 0x40'0000;

// SDM 2A 2.2.1: 40H to 4FH are INC and DEC in 32-bit code; only in 64-bit code are they prefixes.
TEST(StepSource, AnIncrementOf32BitCodeIsNoPrefixOfWhatFollows) {
  FakeGuest guest;
  ScriptedTime time;
  FakeCpu cpu{guest, time};
  StepSource source{std::make_unique<FakeTimer>(time), guest.breakpoints, guest.view,
                    vpmu::describe(vpmu::Generation::haswell)};
  guest.map(code, vpmu::page_size, {.is_user = true});
  guest.backend.registers.rip = code;
  guest.backend.special.cs.l = 0;
  guest.backend.special.cs.db = 1;
  std::uint64_t at = code;
  for (unsigned n = 0; n < 3; ++n) at = cpu.add(at, {0x40});  // inc %eax
  cpu.add(at, X86("int $0x80"));
  const vpmu::CountPlan everything{.size = 1};
  ASSERT_TRUE(source.program(everything));
  for (unsigned n = 0; n < 3; ++n) {
    ASSERT_TRUE(guest.breakpoints.apply());
    const auto end = source.run(guest.backend, std::nullopt);
    ASSERT_TRUE(end) << end.error().what;
    ASSERT_TRUE(end->retired) << n;
    EXPECT_EQ(end->retired->what.ip.value(), code + n);
    EXPECT_EQ(end->retired->what.next_ip.value(), code + n + 1);
    EXPECT_EQ(end->retired->what.branch.kind, vpmu::BranchKind::none);
  }
  EXPECT_EQ(cpu.retired, 3U);
}

// SDM 3A 6.8.3: a breakpoint on the instruction behind MOV SS does not hit. The vCPU, which has interrupts held off
// meanwhile, comes back nevertheless.
TEST(StepSource, ComesBackWhereTheStopBehindMovSsDoesNotHit) {
  FakeGuest guest;
  ScriptedTime time;
  FakeCpu cpu{guest, time};
  StepSource source{std::make_unique<FakeTimer>(time), guest.breakpoints, guest.view,
                    vpmu::describe(vpmu::Generation::skylake)};
  guest.map(code, vpmu::page_size);
  guest.backend.registers.rip = code;
  const std::uint64_t behind = cpu.add(code, X86("mov %eax, %ss"));
  const std::uint64_t loop = cpu.add(behind, X86("nop"));
  cpu.add_jump(cpu.add(loop, X86("nop")), loop);
  cpu.on_retired = [&](std::uint64_t at) { guest.backend.registers.rflags |= at == code ? x86::rflags::RF::mask : 0; };
  ASSERT_TRUE(source.program({.size = 1}));
  const auto end = source.run(guest.backend, std::nullopt);
  ASSERT_TRUE(end) << end.error().what;
  ASSERT_TRUE(end->exit);
  EXPECT_TRUE(std::holds_alternative<Interrupted>(*end->exit));
  EXPECT_GT(cpu.retired_at[loop], 1U) << "the stop was suppressed";
  EXPECT_EQ(guest.backend.guest_debug.control & KVM_GUESTDBG_BLOCKIRQ, std::uint32_t{KVM_GUESTDBG_BLOCKIRQ});
  ASSERT_TRUE(guest.breakpoints.apply());
  EXPECT_EQ(guest.backend.guest_debug.control, 0U) << "interrupts come in again";
}

}  // namespace
}  // namespace vmm::test::of_step_source
