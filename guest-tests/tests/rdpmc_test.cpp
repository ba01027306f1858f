// RDPMC: SDM 2B RDPMC, 3B 18.2.2. The counters are in use but stopped, so that their values are known.
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/interrupts.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
constexpr std::uint32_t fixed_index = 0x4000'0000;
/// A value with a nonzero upper half that this processor's counters accept.
std::uint64_t high_value() { return gt::cpu::has_full_width_writes() ? 0xA000'0000'0000 : 0xFFFF'A000'0000; }

/// Selects an event on every counter, GLOBAL_CTRL = 0, and sets each counter to a different value.
void hold_known_values() {
  pmu::stop();
  for (unsigned i = 0; i < pmu::gp_counters(); ++i)
    pmu::program(i, pmu::select(pmu::instructions, pmu::os), high_value() + i);
  for (unsigned n = 0; n < pmu::fixed_counters(); ++n) gt::wrmsr(pmu::msr::IA32_FIXED_CTR0 + n, 0x0000'F00D'0000 + n);
}

GT_TEST(Rdpmc_ReadsEveryCounterAtCpl0) {
  hold_known_values();
  GT_REQUIRE(pmu::gp_counters() >= 4 && pmu::fixed_counters() == 3);
  for (unsigned i = 0; i < pmu::gp_counters(); ++i) {
    const gt::Outcome read = gt::try_rdpmc(i);
    GT_CHECK(read.ok());
    GT_EQUAL(read.value, high_value() + i);
  }
  for (unsigned n = 0; n < pmu::fixed_counters(); ++n) {
    const gt::Outcome read = gt::try_rdpmc(fixed_index + n);
    GT_CHECK(read.ok());
    GT_EQUAL(read.value, 0x0000'F00D'0000U + n);
  }
}

// CR4.PCE matters only above CPL 0.
GT_TEST(Rdpmc_NeedsNoPceAtCpl0) {
  hold_known_values();
  gt::write_cr4(gt::read_cr4() & ~x86::cr4::PCE::mask);
  GT_CHECK(gt::try_rdpmc(1).ok());
  gt::write_cr4(gt::read_cr4() | x86::cr4::PCE::mask);
  GT_CHECK(gt::try_rdpmc(1).ok());
}

// All of RAX and RDX is written; only ECX selects.
GT_TEST(Rdpmc_UsesEcxAndClearsUpperHalves) {
  hold_known_values();
  std::uint64_t rax = ~0ULL, rdx = ~0ULL;
  asm volatile("rdpmc" : "+a"(rax), "+d"(rdx) : "c"(0xFFFF'FFFF'0000'0002ULL));
  GT_EQUAL(rax, (high_value() + 2) & 0xFFFF'FFFF);
  GT_EQUAL(rdx, high_value() >> 32);
}

GT_TEST(Rdpmc_FaultsOnMissingCounters) {
  hold_known_values();
  for (const std::uint32_t bad :
       {pmu::gp_counters(), 0x10U, fixed_index + 3, 0x2000'0000U, 0x8000'0000U, 0xFFFF'FFFFU}) {
    const gt::Outcome read = gt::try_rdpmc(bad);
    GT_EQUAL(read.vector, x86::vector::GP);
    GT_EQUAL(read.error_code, 0U);
  }
  GT_CHECK(gt::try_rdpmc(0).ok());  // and valid ones still work
}

struct UserRead {
  std::uint32_t index;
  gt::Outcome outcome;
};
gt::Outcome rdpmc_at_cpl3(std::uint32_t index) {
  UserRead read{.index = index, .outcome = {}};
  gt::run_at_cpl3(
      [](void* p) {
        auto& r = *static_cast<UserRead*>(p);
        r.outcome = gt::try_rdpmc(r.index);
      },
      &read);
  return read.outcome;
}

GT_TEST(Rdpmc_FaultsAtCpl3WithoutPce) {
  hold_known_values();
  gt::write_cr4(gt::read_cr4() & ~x86::cr4::PCE::mask);
  for (const std::uint32_t index : {0U, 3U, fixed_index}) {
    const gt::Outcome read = rdpmc_at_cpl3(index);
    GT_EQUAL(read.vector, x86::vector::GP);
    GT_EQUAL(read.error_code, 0U);
  }
}

GT_TEST(Rdpmc_WorksAtCpl3WithPce) {
  hold_known_values();
  gt::write_cr4(gt::read_cr4() | x86::cr4::PCE::mask);
  for (unsigned i = 0; i < pmu::gp_counters(); ++i) {
    const gt::Outcome read = rdpmc_at_cpl3(i);
    GT_CHECK(read.ok());
    GT_EQUAL(read.value, high_value() + i);
  }
  GT_EQUAL(rdpmc_at_cpl3(fixed_index + 1).value, 0x0000'F00D'0001U);
  GT_EQUAL(rdpmc_at_cpl3(fixed_index + 3).vector, x86::vector::GP);
}

// Interrupt handlers may read counters of sessions that have just been stopped.
GT_TEST(Rdpmc_StillReadsAfterTheSelectsAreCleared) {
  hold_known_values();
  GT_EQUAL(gt::try_rdpmc(0).value, high_value());
  for (unsigned i = 0; i < pmu::gp_counters(); ++i) gt::wrmsr(pmu::msr::IA32_PERFEVTSEL0 + i, 0);
  const gt::Outcome read = gt::try_rdpmc(2);
  GT_CHECK(read.ok());
  GT_EQUAL(read.value, high_value() + 2);
}

GT_TEST(Rdpmc_FollowsARunningCounter, gt::need_counts) {
  pmu::stop();
  pmu::program(0, pmu::select(pmu::cycles, pmu::os), 0);
  pmu::start(pmu::gp_bit(0));
  const std::uint64_t first = gt::rdpmc(0);
  GT_CHECK(pmu::wait_until([first] { return gt::rdpmc(0) > first; }));
  std::uint64_t last = 0;
  for (unsigned i = 0; i < 16; ++i) {
    const std::uint64_t now = gt::rdpmc(0);
    GT_CHECK(now >= last);
    last = now;
  }
  pmu::stop();
  const std::uint64_t stopped = gt::rdpmc(0);
  GT_CHECK(stopped >= last);
  GT_EQUAL(gt::rdpmc(0), stopped);
  GT_EQUAL(pmu::counter(0), stopped);
}

}  // namespace
