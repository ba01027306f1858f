// The uncore: SDM 3B 18.8.2 (Nehalem, Westmere), 18.9.6 (clients from Sandy Bridge on), 3C tables 35-14, 35-15, 35-20,
// 35-38.
#include <array>

#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
using vpmu::bit;
using vpmu::MsrIndex;

/// The counter of uncore clocks, and the registers that control it.
struct Clock {
  MsrIndex counter, control, global_ctrl, global_status;
  unsigned width;
  std::uint64_t enable, interrupt, global_enable, freeze, core_0, core_1, overflowed;
};
constexpr Clock nehalem{.counter = MsrIndex{0x394},
                        .control = MsrIndex{0x395},
                        .global_ctrl = MsrIndex{0x391},
                        .global_status = MsrIndex{0x392},
                        .width = 48,
                        .enable = 1,
                        .interrupt = 4,
                        .global_enable = bit(32),
                        .freeze = bit(63),
                        .core_0 = bit(48),
                        .core_1 = bit(49),
                        .overflowed = bit(32)};
constexpr Clock sandy_bridge{.counter = MsrIndex{0x395},
                             .control = MsrIndex{0x394},
                             .global_ctrl = MsrIndex{0x391},
                             .global_status = MsrIndex{0x392},
                             .width = 48,
                             .enable = bit(22),
                             .interrupt = bit(20),
                             .global_enable = bit(29),
                             .freeze = bit(31),
                             .core_0 = 1,
                             .core_1 = 2,
                             .overflowed = 1};
constexpr Clock skylake = [] {
  Clock c = sandy_bridge;
  c.global_ctrl = MsrIndex{0xE01};
  c.global_status = MsrIndex{0xE02};
  c.width = 44;
  return c;
}();

/// Servers, whose uncores consist of boxes; it is not known how these interrupt a core.
constexpr Clock nehalem_ex{.counter = MsrIndex{0x394},
                           .control = MsrIndex{0x395},
                           .global_ctrl = MsrIndex{0xC80},
                           .global_status = MsrIndex{0xC81},
                           .width = 48,
                           .enable = 1,
                           .interrupt = 0,
                           .global_enable = bit(31),
                           .freeze = 0,
                           .core_0 = 0,
                           .core_1 = 0,
                           .overflowed = 0};
constexpr Clock sandy_bridge_ep{.counter = MsrIndex{0xC09},
                                .control = MsrIndex{0xC08},
                                .global_ctrl = MsrIndex{0xC00},
                                .global_status = MsrIndex{0xC00},
                                .width = 48,
                                .enable = bit(22),
                                .interrupt = 0,
                                .global_enable = 0,
                                .freeze = 0,
                                .core_0 = 0,
                                .core_1 = 0,
                                .overflowed = 0};
constexpr Clock haswell_ep = [] {
  Clock c = sandy_bridge_ep;
  c.counter = MsrIndex{0x704};
  c.control = MsrIndex{0x703};
  c.global_ctrl = c.global_status = MsrIndex{0x700};
  return c;
}();

const Clock& any_clock() {
  switch (gt::cpu::model()) {
    case 0x1A:
    case 0x1E:
    case 0x1F:
    case 0x25:
    case 0x2C: return nehalem;
    case 0x2A:
    case 0x3A:
    case 0x3C:
    case 0x45:
    case 0x46:
    case 0x3D:
    case 0x47: return sandy_bridge;
    case 0x4E:
    case 0x5E:
    case 0x8E:
    case 0x9E: return skylake;
    case 0x2E:
    case 0x2F: return nehalem_ex;
    case 0x2D:
    case 0x3E: return sandy_bridge_ep;
    case 0x3F:
    case 0x4F:
    case 0x55:
    case 0x56: return haswell_ep;
    default: gt::abort_test(__FILE_NAME__, __LINE__, "the tests do not know this uncore");
  }
}

/// The clock, if it can interrupt; otherwise the test is skipped.
const Clock& clock() {
  const Clock& c = any_clock();
  if (c.interrupt == 0) gt::skip("this uncore interrupts nobody");
  return c;
}

void start(const Clock& c, std::uint64_t before_overflow, std::uint64_t control, std::uint64_t global) {
  gt::wrmsr(c.global_ctrl, 0);
  gt::wrmsr(c.counter, (~before_overflow + 1) & vpmu::low_bits(c.width));
  gt::wrmsr(c.control, control | c.enable);
  gt::wrmsr(c.global_ctrl, global | c.global_enable);
}

/// Clocks to an overflow that comes soon, but not before the counter has been started.
constexpr std::uint64_t soon = 10'000'000;
constexpr std::uint64_t enable_uncore_pmi = pmu::reg::debugctl::ENABLE_UNCORE_PMI::mask,
                        uncore_bit = pmu::status::OVF_UNCORE::mask;

bool overflowed(const Clock& c) {
  return pmu::wait_until([&] { return (gt::rdmsr(c.global_status) & c.overflowed) != 0; });
}

// The clock runs whatever the core does, at most at the rate of the TSC and at least at half of it.
GT_TEST(Uncore_ClockCounts, gt::need_uncore) {
  const Clock& c = any_clock();
  const std::uint64_t before = gt::rdtsc();
  start(c, 0, 0, 0);
  const std::uint64_t begun = gt::rdtsc();
  GT_REQUIRE(pmu::wait_until([&] { return gt::rdtsc() - begun > soon; }));
  const std::uint64_t ended = gt::rdtsc();
  const std::uint64_t clocks = gt::rdmsr(c.counter);
  const std::uint64_t after = gt::rdtsc();
  GT_CHECK(clocks >= (ended - begun) / 2);
  GT_CHECK(clocks <= after - before);
  gt::wrmsr(c.control, 0);
  const std::uint64_t stopped = gt::rdmsr(c.counter);
  GT_REQUIRE(pmu::wait_until([&] { return gt::rdtsc() - after > soon; }));
  GT_EQUAL(gt::rdmsr(c.counter), stopped);
}

// Rule Q7.
GT_TEST(Uncore_OverflowInterruptsTheCoreThatAsksForIt, gt::need_uncore) {
  const Clock& c = clock();
  pmu::catch_pmi_by_nmi();
  gt::wrmsr(pmu::msr::IA32_DEBUGCTL, enable_uncore_pmi);
  start(c, soon, c.interrupt, c.core_0);
  GT_REQUIRE(pmu::wait_for_pmis(1));
  GT_EQUAL(pmu::pmi(0).status, uncore_bit);
  GT_CHECK((gt::rdmsr(c.global_status) & c.overflowed) != 0);
  GT_CHECK(gt::rdmsr(c.counter) < bit(c.width - 1));
  GT_EQUAL(pmu::global_status(), 0U);  // the handler has cleared it through GLOBAL_OVF_CTRL
}

// SDM 3B 18.8.2.1: without DEBUGCTL[13] the core takes no interrupt, but its status shows the overflow.
GT_TEST(Uncore_OverflowIsOnlyShownWithoutDebugctl, gt::need_uncore) {
  const Clock& c = clock();
  pmu::catch_pmi_by_nmi();
  start(c, soon, c.interrupt, c.core_0);
  GT_REQUIRE(overflowed(c));
  GT_REQUIRE(pmu::wait_until([] { return pmu::global_status() == uncore_bit; }));
  GT_EQUAL(pmu::pmi_count(), 0U);
}

GT_TEST(Uncore_OverflowLeavesOtherCoresAlone, gt::need_uncore) {
  const Clock& c = clock();
  pmu::catch_pmi_by_nmi();
  gt::wrmsr(pmu::msr::IA32_DEBUGCTL, enable_uncore_pmi);
  start(c, soon, c.interrupt, c.core_1);
  GT_REQUIRE(overflowed(c));
  start(c, soon, 0, c.core_0);  // without an interrupt this time
  GT_REQUIRE(pmu::wait_until([&] { return gt::rdmsr(c.counter) < bit(c.width - 1); }));
  GT_EQUAL(pmu::pmi_count(), 0U);
  GT_EQUAL(pmu::global_status(), 0U);
}

GT_TEST(Uncore_StopsWithItsInterruptWhereItFreezes, gt::need_uncore) {
  const Clock& c = clock();
  pmu::catch_pmi_by_nmi();
  gt::wrmsr(pmu::msr::IA32_DEBUGCTL, enable_uncore_pmi);
  start(c, soon, c.interrupt, c.core_0 | c.freeze);
  GT_REQUIRE(pmu::wait_for_pmis(1));
  GT_EQUAL(gt::rdmsr(c.global_ctrl), c.core_0 | c.freeze);
  GT_EQUAL(gt::rdmsr(c.counter), 0U);
}

// The two PMUs stop independently: a core whose counters are stopped takes the uncore's interrupt.
GT_TEST(Uncore_OverflowNeedsNoCounterOfTheCore, gt::need_uncore) {
  const Clock& c = clock();
  pmu::stop();
  pmu::catch_pmi_by_vector(0x45);
  gt::wrmsr(pmu::msr::IA32_DEBUGCTL, enable_uncore_pmi);
  start(c, soon, c.interrupt, c.core_0);
  gt::halt_with_interrupts();  // nothing else would end this
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_EQUAL(pmu::pmi(0).status, uncore_bit);
}

/// How an address behaves on a generation.
enum class Answer : std::uint8_t { faults, is_kept, is_read_only, reads_zero };
struct Expectation {
  std::uint32_t address;
  Answer answer;
  std::uint64_t value{};  ///< A value that may be written.
};

void check(const Expectation& e) {
  const MsrIndex index{e.address};
  const bool readable = e.answer != Answer::faults;
  const bool writable = e.answer == Answer::is_kept || e.answer == Answer::reads_zero;
  GT_EQUAL(gt::try_rdmsr(index).vector, readable ? gt::Outcome::none : x86::vector::GP);
  GT_EQUAL(gt::try_wrmsr(index, e.value).vector, writable ? gt::Outcome::none : x86::vector::GP);
  if (writable) GT_EQUAL(gt::rdmsr(index), e.answer == Answer::is_kept ? e.value : 0);
}

// 391H and 392H belong to the uncore up to Broadwell, to the core (STATUS_SET, INUSE) on Skylake; earlier servers lack
// them. 394H, 395H: counter and control, or control and counter.
GT_TEST(Uncore_AddressesAreTheGenerations, gt::need_uncore) {
  using enum Answer;
  constexpr std::array old_servers{Expectation{0x391, faults}, Expectation{0x392, faults}, Expectation{0x393, faults}};
  switch (gt::cpu::model()) {
    case 0x1A:
    case 0x1E:
    case 0x1F:
    case 0x25:
    case 0x2C:
      for (const Expectation& e :
           {Expectation{0x391, is_kept, 0x800F'0000'0000'00FF}, Expectation{0x392, is_read_only},
            Expectation{0x393, reads_zero, 0xA000'0001'0000'00FF}, Expectation{0x394, is_kept, 0xFFFF'FFFF'FFFF},
            Expectation{0x395, is_kept, 5}, Expectation{0x396, is_kept, 0xE000'FFFF'FFFF'FFF8},
            Expectation{0x3B7, is_kept, 0xFFFF'FFFF'FFFF}, Expectation{0x3C7, is_kept, 0xFFD4'FFFF},
            Expectation{0x3B8, faults}, Expectation{0x700, faults}})
        check(e);
      break;
    case 0x2E:
    case 0x2F:
      for (const Expectation& e : old_servers) check(e);
      for (const std::uint32_t address : {0x394U, 0x395U, 0xC00U, 0xC11U, 0xCFFU, 0xDFFU, 0xE5FU})
        check({address, is_kept, 0xFFFF'0000'0001});
      break;
    case 0x2D:
    case 0x3E:
      for (const Expectation& e : old_servers) check(e);
      for (const std::uint32_t address : {0xC00U, 0xC08U, 0xC17U, 0xC39U, 0xDFFU}) check({address, is_kept, 0x10103});
      break;
    case 0x3F:
    case 0x4F:
    case 0x56:
      for (const Expectation& e : old_servers) check(e);
      for (const std::uint32_t address : {0x700U, 0x747U, 0xE01U, 0xEFFU}) check({address, is_kept, 0x10103});
      break;
    case 0x2A:
    case 0x3A:
    case 0x3C:
    case 0x45:
    case 0x46:
    case 0x3D:
    case 0x47:
      for (const Expectation& e :
           {Expectation{0x391, is_kept, 0xC000'001F}, Expectation{0x392, is_kept, 0xB}, Expectation{0x393, faults},
            Expectation{0x394, is_kept, 0x50'0000}, Expectation{0x395, is_kept, 0xFFFF'FFFF'FFFF},
            Expectation{0x396, is_read_only}, Expectation{0x3B1, is_kept, 0xFFF'FFFF'FFFF},
            Expectation{0x3B3, is_kept, 0x1FD4'FFFF}, Expectation{0x701, is_kept, 0x1FD4'FFFF},
            Expectation{0x737, is_kept, 0xFFF'FFFF'FFFF}, Expectation{0xE01, faults}})
        check(e);
      break;
    case 0x4E:
    case 0x5E:
    case 0x8E:
    case 0x9E:
      for (const Expectation& e : {Expectation{0x391, reads_zero, 1}, Expectation{0x392, is_read_only},
                                   Expectation{0xE01, is_kept, 0xC000'001F}, Expectation{0xE02, is_kept, 0xB},
                                   Expectation{0x394, is_kept, 0x50'0000}, Expectation{0x395, is_kept, 0xFFF'FFFF'FFFF},
                                   Expectation{0x747, is_kept, 0xFFF'FFFF'FFFF}})
        check(e);
      GT_EQUAL(pmu::global_status(), 1U);  // the write to 391H went to the core
      break;
    case 0x55:
      check({0x391, reads_zero, 1});
      check({0x300, is_read_only});
      for (const std::uint32_t address : {0x700U, 0xA40U, 0xE01U, 0xFBFU}) check({address, is_kept, 0x10103});
      break;
    default: {
      constexpr bool tests_know_this_uncore = false;
      GT_CHECK(tests_know_this_uncore);
    }
  }
}

// SDM 3B figures 18-25 to 18-29, 18-38, 18-39.
GT_TEST(Uncore_ReservedBitsFault, gt::need_uncore) {
  const Clock& c = clock();
  const bool is_nehalem = c.counter == nehalem.counter;
  const std::uint64_t global = is_nehalem ? 0x800F'0001'0000'00FF : 0xE000'001F, control = c.enable | c.interrupt;
  for (unsigned b = 0; b < 64; ++b) {
    GT_EQUAL(gt::try_wrmsr(c.global_ctrl, bit(b)).vector, (global & bit(b)) != 0 ? gt::Outcome::none : x86::vector::GP);
    GT_EQUAL(gt::try_wrmsr(c.control, bit(b)).vector, (control & bit(b)) != 0 ? gt::Outcome::none : x86::vector::GP);
    GT_EQUAL(gt::try_wrmsr(c.counter, bit(b)).vector, b < c.width ? gt::Outcome::none : x86::vector::GP);
  }
}

}  // namespace
