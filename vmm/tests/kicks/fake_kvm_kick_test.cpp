#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

#include "fakes/fake_perf_host.hpp"
#include "pmu/profiled_guest.hpp"

// A kick ends a run in whatever state the guest has put its PMU. On a scripted KVM, so that every run is the same.

namespace vmm::test {
namespace {

using namespace vpmu::msr;

constexpr std::uint64_t minus(std::uint64_t n) { return (0 - n) & vpmu::low_bits(48); }

/// A guest in a loop, whose vCPU is kicked after a given number of instructions.
class KickedGuest {
 public:
  explicit KickedGuest(std::string_view source) : guest{{.source = source}} {
    guest.place_loop();
    guest.cpu.on_retired = [this](std::uint64_t) { pass(1); };
    guest.backend.passing = [this, before = guest.backend.passing](std::uint64_t instructions) {
      before(instructions);
      pass(instructions);
    };
  }

  /// Returns how many instructions the guest ran after the kick. Throws if the kick does not end the run.
  std::uint64_t kick_after(std::uint64_t instructions) {
    kick_at_ = passed_ + instructions;
    kicked_at_ = 0;
    while (kicked_at_ == 0 || guest.backend.kicked != 0) guest.run();
    return passed_ - kicked_at_;
  }

  ProfiledGuest guest;

 private:
  void pass(std::uint64_t instructions) {
    constexpr std::uint64_t far_too_long = 1'000'000;
    passed_ += instructions;
    if (kicked_at_ != 0 && passed_ - kicked_at_ > far_too_long && guest.backend.kicked != 0)
      throw std::runtime_error{"the guest runs on behind a kick"};
    if (kicked_at_ != 0 || passed_ < kick_at_) return;
    kicked_at_ = passed_;
    guest.cpu.kick();
  }
  std::uint64_t passed_{}, kick_at_{~0ULL}, kicked_at_{};
};

constexpr std::uint64_t instructions_with_interrupt = 0x53'00C0;

// LVTPC is masked after reset. The PMI waits for a guest that never unmasks it.
TEST(FakeKvmKicks, EndARunWhileAPmiWaitsForLvtpc) {
  for (const std::string_view source : {"exact", "step", "clock"}) {
    SCOPED_TRACE(source);
    KickedGuest kicked{source};
    ProfiledGuest& guest = kicked.guest;
    guest.backend.set_apic_word(ProfiledGuest::lvtpc, ProfiledGuest::lvtpc_mask);
    guest.will_write(IA32_A_PMC0, minus(100));
    guest.will_write(IA32_PERFEVTSEL0, instructions_with_interrupt);
    guest.will_write(IA32_PERF_GLOBAL_CTRL, 1);
    for (const std::uint64_t after : {1'000U, 70'000U, 200'000U}) {
      if (source != "exact" && after > 1'000) break;  // the FakeCpu is slow
      ASSERT_NO_THROW(EXPECT_LE(kicked.kick_after(after), 1U));
    }
    EXPECT_GE(guest.statistic("pmu.pmi.requested"), 1U);
    EXPECT_EQ(guest.statistic("pmu.pmi.fixed") + guest.statistic("pmu.pmi.nmi"), 0U);
  }
}

// While the PMI waits, the engine must keep the vCPU: if KVM and the engine exchanged it at each instruction, the guest
// would be as slow as under single-step.
TEST(FakeKvmKicks, APmiThatWaitsCostsNoEntry) {
  KickedGuest kicked{"exact"};
  ProfiledGuest& guest = kicked.guest;
  guest.backend.set_apic_word(ProfiledGuest::lvtpc, ProfiledGuest::lvtpc_mask);
  guest.will_write(IA32_A_PMC0, minus(100));
  guest.will_write(IA32_PERFEVTSEL0, instructions_with_interrupt);
  guest.will_write(IA32_PERF_GLOBAL_CTRL, 1);
  ASSERT_NO_THROW(kicked.kick_after(20'000));
  EXPECT_LE(guest.statistic("pmu.exact.entries"), 10U);
}

/// A random element of `all`.
template <class T, std::size_t N>
T one_of(std::mt19937_64& random, const std::array<T, N>& all) {
  return all[random() % N];
}

void set_up_at_random(ProfiledGuest& guest, std::mt19937_64& random) {
  constexpr std::array<std::uint32_t, 6> lvtpcs{0x1'0000, 0x400, 0x1'0400, 0xE0, 0x700, 0x200};
  guest.backend.set_apic_word(ProfiledGuest::lvtpc, one_of(random, lvtpcs));
  if (random() % 2 != 0) guest.backend.registers.rflags |= vpmu::bit(9);
  constexpr std::array<std::uint64_t, 4> areas{ProfiledGuest::ds_area, ProfiledGuest::ds_area + 0xFF0, 0x1000,
                                               0x8000'0000'0000'0000};
  guest.set_ds(1 + random() % 4, random() % 5, minus(1 + random() % 300));
  guest.will_write(IA32_DS_AREA, one_of(random, areas));
  guest.will_write(IA32_PEBS_ENABLE, random() % 16);
  guest.will_write(IA32_DEBUGCTL, random() & 0x1FC1);
  constexpr std::array<std::uint64_t, 4> events{0x00C0, 0x003C, 0x81D0, 0x00C4};
  for (unsigned n = 0; n < 4; ++n) {
    guest.will_write(vpmu::MsrIndex{IA32_A_PMC0.value() + n}, minus(1 + random() % 1000));
    guest.will_write(vpmu::MsrIndex{IA32_PERFEVTSEL0.value() + n},
                     one_of(random, events) | 0x43'0000 | (random() & 0x10'0000));
  }
  guest.will_write(IA32_FIXED_CTR_CTRL, random() & 0xBBB);
  guest.will_write(IA32_PERF_GLOBAL_CTRL, random() & 0x7'0000'000F);
}

TEST(FakeKvmKicks, EndARunWhateverThePmuIsSetTo) {
  std::uint64_t max = 0;
  for (const std::string_view source : {"exact", "step", "clock"}) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      SCOPED_TRACE(testing::Message{} << source << " seed " << seed);
      std::mt19937_64 random{seed};
      KickedGuest kicked{source};
      set_up_at_random(kicked.guest, random);
      for (int n = 0; n < 3; ++n) {
        std::uint64_t behind = ~0ULL;
        ASSERT_NO_THROW(behind = kicked.kick_after(1 + random() % (source == "exact" ? 20'000 : 500)));
        max = std::max(max, behind);
      }
    }
  }
  EXPECT_LE(max, 1U) << "instructions behind a kick";
  RecordProperty("most_instructions", static_cast<int>(max));
}

}  // namespace
}  // namespace vmm::test
