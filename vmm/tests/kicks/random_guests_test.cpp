#include <iostream>

#include "kicks/kicker.hpp"
#include "kicks/random_soft_guest.hpp"

// A kick ends a run whatever the guest does: random guests, kicked at random times.

namespace vmm::test {
namespace {

using std::chrono::nanoseconds;

struct Kicks {
  unsigned in_runs{}, guests{};
  nanoseconds max{};
};

/// False for an exit after which the guest cannot run on.
bool goes_on(const Result<Exit>& exit) {
  return exit && !std::holds_alternative<Shutdown>(*exit) && !std::holds_alternative<InternalError>(*exit) &&
         !std::holds_alternative<Hlt>(*exit);
}

class RandomGuests : public testing::TestWithParam<std::tuple<std::string_view, bool>> {
 protected:
  void make_guest() {
    const auto [source, compiles] = GetParam();
    target_.reset();
    guest_ = std::make_unique<RandomSoftGuest>(kicks_.guests++, source,
                                               compiles ? vpmu::exec::Compiling{} : vpmu::exec::never_compiling);
    target_.emplace(guest_->backend().kick_target());
  }
  /// False if the guest had ended, so that the kick interrupted no run.
  bool wait_for_kick() {
    for (;;) {
      const nanoseconds begin = kicker_.now();
      const auto exit = guest_->run();
      if (goes_on(exit)) {
        if (!std::holds_alternative<Interrupted>(*exit) || !kicker_.has_kicked()) continue;
        kicks_.max = std::max(kicks_.max, kicker_.took(begin));
        ++kicks_.in_runs;
        return true;
      }
      make_guest();
      if (!kicker_.has_kicked()) continue;
      kicker_.seen();
      return false;
    }
  }
  /// After a kick the pending exit may be completed, but no more instructions may run.
  void expect_that_nothing_runs() {
    *guest_->backend().kick_target() = kick_mark;
    const std::uint64_t before = *guest_->backend().tsc();
    const auto exit = guest_->run();
    ASSERT_TRUE(exit && std::holds_alternative<Interrupted>(*exit));
    EXPECT_LE(*guest_->backend().tsc() - before, 2U);
    EXPECT_EQ(*guest_->backend().kick_target(), 0) << "it has been taken";
  }

  Kicks kicks_;
  Kicker kicker_;
  std::unique_ptr<RandomSoftGuest> guest_;
  std::optional<KickTarget> target_;
};

TEST_P(RandomGuests, AKickEndsEachRun) {
  constexpr unsigned rounds = 150, each = 3;
  std::mt19937_64 random{1};
  for (unsigned round = 0; round < rounds; ++round) {
    make_guest();
    for (unsigned n = 0; n < each; ++n) {
      kicker_.kick_after(std::chrono::microseconds{random() % 1500});
      if (!wait_for_kick()) continue;
      ASSERT_NO_FATAL_FAILURE(expect_that_nothing_runs()) << "guest " << kicks_.guests - 1;
      ASSERT_LT(kicks_.max, Kicker::max) << "guest " << kicks_.guests - 1;
    }
  }
  EXPECT_GT(kicks_.in_runs, rounds * each / 4) << "or nothing has been tried";
  std::cout << kicks_.in_runs << " kicks of " << kicks_.guests << " guests, longest "
            << std::chrono::duration<double, std::micro>(kicks_.max).count() << " us of the vCPU's time\n";
}

INSTANTIATE_TEST_SUITE_P(Sources, RandomGuests,
                         testing::Combine(testing::Values("exact", "step", "clock"), testing::Bool()),
                         [](const auto& test) {
                           return std::string{std::get<0>(test.param)} +
                                  (std::get<1>(test.param) ? "_compiles" : "_interprets");
                         });

}  // namespace
}  // namespace vmm::test
