// Source exact on a back end that gives KVM a turn now and then: what it leaves to KVM, and what it keeps.
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
      ASSERT_TRUE(source().run(guest.backend, std::nullopt));
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
  cpu.add(at, {0xFF, 0x21}, [](FakeBackend& backend) {               // jmp [rcx]
    backend.registers.rip = code;
    return std::nullopt;
  });
  guest.backend.registers.rcx = data + 8;
  guest.store_word(data + 8, code);
  ASSERT_NO_FATAL_FAILURE(count_loads(true));
}

/// The guest stops its counters for a while, as a PMI's handler does.
class PausesOfTheCount : public ExactSourceRig, public testing::Test {
 protected:
  void count(bool on) {
    vpmu::CountPlan plan;
    plan.size = on ? 1 : 0;
    plan.entries[0] = {.counter = vpmu::CounterId::gp(0),
                       .counts = vpmu::Counts::instructions,
                       .usr = true,
                       .os = true,
                       .distance = 1ULL << 48};
    ASSERT_TRUE(source().program(plan));
  }
  /// Counts a little; then the engine holds the vCPU, and nothing is counted.
  void pause() {
    count(true);
    for (std::uint64_t before = guest.backend.passed; guest.backend.passed == before;) run(1);
    count(false);
    entered_ = guest.backend.count("run");
    passed_ = guest.backend.passed;
  }
  void run(unsigned turns) {
    cpu.on_entered = [this] { cpu.kick(); };
    for (unsigned n = 0; n < turns; ++n) ASSERT_TRUE(source().run(guest.backend, std::nullopt));
  }
  [[nodiscard]] std::size_t entered() const { return guest.backend.count("run") - entered_; }
  [[nodiscard]] std::uint64_t passed() const { return guest.backend.passed - passed_; }

 private:
  std::size_t entered_{};
  std::uint64_t passed_{};
};

// In KVM such a handler would take the host's time, of which the guest's timer would expire.
TEST_F(PausesOfTheCount, TakeTheGuestATickForEachInstruction) {
  guest.backend.can.hides_time = true;
  exact().stay_in_pauses();
  pause();
  run(1);
  EXPECT_EQ(entered(), 0U);
  const std::uint64_t max = passed();
  EXPECT_GE(max, 10'000U);
  run(1);
  EXPECT_EQ(entered(), 1U) << "a long pause is no handler's";
  EXPECT_EQ(passed(), max);
  pause();
  run(1);
  EXPECT_EQ(entered(), 0U) << "the next pause";
  EXPECT_EQ(passed(), max);
}
TEST_F(PausesOfTheCount, EndForAnEventOfTheVcpu) {
  guest.backend.can.hides_time = true;
  exact().stay_in_pauses();
  pause();
  source().raised();
  run(1);
  EXPECT_EQ(entered(), 1U);
  EXPECT_EQ(passed(), 0U);
}
TEST_F(PausesOfTheCount, AreKvmsWhereTheClockIsTheHosts) {
  exact().stay_in_pauses();
  pause();
  run(1);
  EXPECT_EQ(entered(), 1U);
  EXPECT_EQ(passed(), 0U);
}
TEST_F(PausesOfTheCount, AreKvmsWhileSomebodyElseCounts) {
  guest.backend.can.hides_time = true;
  pause();
  run(1);
  EXPECT_EQ(entered(), 1U);
  EXPECT_EQ(passed(), 0U);
}

}  // namespace
}  // namespace vmm::test
