#include "sources/step_source.hpp"

#include <gtest/gtest.h>

#include "fakes/fake_cpu.hpp"

namespace vmm::test {
namespace {

constexpr std::uint64_t code = 0x40'0000;

// SDM 2A 2.2.1: 40H to 4FH are INC and DEC in 32-bit code; only in 64-bit code are they prefixes.
TEST(StepSource, AnIncrementOf32BitCodeIsNoPrefixOfWhatFollows) {
  FakeGuest guest;
  ScriptedTime time;
  FakeCpu cpu{guest, time};
  StepSource source{std::make_unique<FakeTimer>(time), guest.breakpoints, guest.view};
  guest.map(code, vpmu::page_size, {.is_user = true});
  guest.port.registers.rip = code;
  guest.port.special.cs.l = 0;
  guest.port.special.cs.db = 1;
  std::uint64_t at = code;
  for (unsigned n = 0; n < 3; ++n) at = cpu.add(at, {0x40});  // inc %eax
  cpu.add(at, {0xCD, 0x80});                                  // int $0x80
  const vpmu::CountPlan everything{.size = 1};
  ASSERT_TRUE(source.program(everything));
  for (unsigned n = 0; n < 3; ++n) {
    ASSERT_TRUE(guest.breakpoints.apply());
    const auto end = source.run(guest.port, std::nullopt);
    ASSERT_TRUE(end) << end.error().what;
    ASSERT_TRUE(end->retired) << n;
    EXPECT_EQ(end->retired->what.ip.value(), code + n);
    EXPECT_EQ(end->retired->what.next_ip.value(), code + n + 1);
    EXPECT_EQ(end->retired->what.branch.kind, vpmu::BranchKind::none);
  }
  EXPECT_EQ(cpu.retired, 3U);
}

}  // namespace
}  // namespace vmm::test
