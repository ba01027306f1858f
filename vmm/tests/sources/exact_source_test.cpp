// Source exact on a port that gives KVM a turn now and then: what it leaves to KVM, and what it keeps.
#include <gtest/gtest.h>

#include "contract/source_rigs.hpp"

namespace vmm::test {
namespace {

/// Counts loads of a guest until KVM has had its turn so often that it has met each instruction of the loop. A turn is
/// one instruction, 50,000 after the last.
class TurnsOfKvm : public ExactSourceRig, public testing::Test {
 protected:
  static constexpr unsigned turns = 10;

  void count_loads(bool armed) {
    vpmu::CountPlan plan;
    plan.size = 1;
    plan.entries[0] = {.counter = vpmu::CounterId::gp(0),
                       .counts = vpmu::Counts::l1_hit,
                       .usr = true,
                       .os = true,
                       .distance = 1ULL << 48,
                       .precise = armed,
                       .armed = armed};
    ASSERT_TRUE(source().program(plan));
    for (unsigned limit = 10'000'000; cpu.retired < turns && limit != 0; --limit)
      ASSERT_TRUE(source().run(guest.port, std::nullopt));
    ASSERT_EQ(cpu.retired, turns);
  }
};

TEST_F(TurnsOfKvm, AreAnyInstructionsWhilePebsIsNotArmed) {
  ASSERT_NO_FATAL_FAILURE(count_loads(false));
  EXPECT_GT(cpu.retired_at[load_at], 0U);
}

// Only the model knows the level of a load, and it does not see KVM's instructions: a record would be without.
TEST_F(TurnsOfKvm, AreNoLoadsWhilePebsIsArmed) {
  ASSERT_NO_FATAL_FAILURE(count_loads(true));
  EXPECT_EQ(cpu.retired_at[load_at], 0U);
}

// Interrupts come in with KVM's turn.
TEST_F(TurnsOfKvm, ComeInCodeThatOnlyAccessesMemory) {
  std::uint64_t at = code;
  for (unsigned n = 0; n < 50; ++n) at = cpu.add(at, {0x8B, 0x03});  // mov eax, [rbx]
  cpu.add(at, {0xFF, 0x21}, [](FakePort& port) {                     // jmp [rcx]
    port.registers.rip = code;
    return std::nullopt;
  });
  guest.port.registers.rcx = data + 8;
  guest.store_word(data + 8, code);
  ASSERT_NO_FATAL_FAILURE(count_loads(true));
}

}  // namespace
}  // namespace vmm::test
