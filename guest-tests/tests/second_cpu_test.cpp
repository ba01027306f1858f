// A second CPU interrupts the first one while the first is sampled. SDM 3A 10.6; rules V2, Q11.
#include "gt/second_cpu.hpp"

#include <array>

#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/interrupts.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
namespace apic = gt::apic;

constexpr std::uint8_t pmi_vector = 0xA0, first_ipi_vector = 0x50;
/// How many interrupts may be in flight, each with a vector of its own: two of one vector would join in IRR.
constexpr unsigned vectors = 64;

constinit std::array<volatile std::uint64_t, vectors> sent{}, received{};
constinit volatile std::uint64_t nmis_sent = 0, nmis_received = 0;
constinit volatile bool stopped = false, lost = false;
constinit volatile std::uint64_t turns = 0;  ///< Iterations of the first CPU's loop.

std::uint64_t all_received() {
  std::uint64_t sum = nmis_received;
  for (const auto& one : received) sum += one;
  return sum;
}

bool have_come() {
  for (unsigned i = 0; i < vectors; ++i)
    if (sent[i] != received[i]) return false;
  return nmis_sent == nmis_received;
}

/// Waits until everything sent has arrived; false if that takes longer than the patience.
bool wait_for_all() {
  if (!pmu::wait_until([] { return have_come() || stopped; })) lost = true;
  return !lost;
}

/// How many are really in flight: a slow first CPU would need longer than the patience for many.
unsigned under_way() { return gt::exact_counts() ? 8 : vectors; }

/// Runs on the second CPU: sends each vector again when it has arrived and the first CPU's loop has run on since. So
/// interrupts are in flight at all times, but neither that loop nor a low vector starves.
void send_for_ever() {
  std::array<std::uint64_t, vectors> sent_at{}, sent_in{};
  for (unsigned i = 0; !stopped && !lost; i = (i + 1) % under_way()) {
    if (sent[i] != received[i] && gt::rdtsc() - sent_at[i] > pmu::patience) lost = true;
    if (sent[i] != received[i] || sent_in[i] == turns) continue;
    sent[i] = sent[i] + 1;
    sent_at[i] = gt::rdtsc();
    sent_in[i] = turns;
    apic::send(gt::first_cpu_id, apic::command::fixed | (first_ipi_vector + i));
  }
}

/// Waits until the first CPU has switched to x2APIC mode, and follows.
void send_for_ever_by_x2apic() {
  while (!apic::is_x2apic) gt::pause();
  apic::use_x2apic();
  send_for_ever();
}

/// Sends NMIs one at a time, as a second would join the first, and each only after the first CPU has left its handler.
void send_nmis_for_ever() {
  while (!stopped && wait_for_all()) {
    const std::uint64_t then = turns;
    if (!pmu::wait_until([then] { return turns > then + 1 || stopped; })) lost = true;
    nmis_sent = nmis_sent + 1;
    apic::send(gt::first_cpu_id, apic::command::nmi);
  }
}

void take_ipi(gt::InterruptFrame& frame) {
  auto& one = received[(frame.vector - first_ipi_vector) % vectors];
  one = one + 1;
  apic::end_of_interrupt();
}

void take_nmi(gt::InterruptFrame&) { nmis_received = nmis_received + 1; }

/// Numbers of interrupts and PMIs: to reach, or (at_least) the minimum when the time is over.
struct Goal {
  std::uint64_t interrupts;
  std::uint32_t pmis;
};
Goal goal_of_ipis() { return gt::is_long() ? Goal{1'000'000, 10'000} : Goal{10'000, 2'000}; }
Goal goal_of_nmis() { return gt::is_long() ? Goal{20'000, 10'000} : Goal{200, 200}; }
constexpr Goal at_least{20, 5};
/// In TSC ticks: some five seconds, unless the run is long.
std::uint64_t time_to_spend() { return gt::is_long() ? ~0ULL : 3ULL << 32; }

bool is_reached(Goal goal) { return all_received() >= goal.interrupts && pmu::pmi_count() >= goal.pmis; }

/// Samples this CPU until the goal is reached. PMC0 counts cycles; the handler stops it and unmasks LVTPC.
void be_sampled_and_interrupted(Goal goal) {
  const std::uint64_t begin = gt::rdtsc();
  const auto may_go_on = [begin] { return !lost && gt::rdtsc() - begin < time_to_spend(); };
  gt::enable_interrupts();
  while (!is_reached(goal) && may_go_on()) {
    turns = turns + 1;
    const std::uint32_t before = pmu::pmi_count();
    pmu::program(0, pmu::select(pmu::cycles, pmu::os | pmu::interrupt), pmu::minus(pmu::short_period()));
    pmu::start(pmu::gp_bit(0));
    // So many interrupts between two PMIs that both reach the goal together.
    const auto enough = [before, goal] {
      turns = turns + 1;
      return pmu::pmi_count() != before && all_received() >= pmu::pmi_count() * (goal.interrupts / goal.pmis);
    };
    while (!enough() && may_go_on()) {
    }
  }
  pmu::stop();
  stopped = true;
  GT_CHECK(pmu::wait_until([] { return have_come(); }));
  GT_CHECK(!lost);
  GT_CHECK(all_received() >= (gt::is_long() ? goal : at_least).interrupts);
  GT_CHECK(pmu::pmi_count() >= (gt::is_long() ? goal : at_least).pmis);
}

void catch_ipis() {
  for (unsigned i = 0; i < vectors; ++i) gt::on_vector(first_ipi_vector + i, take_ipi);
}

// SDM 3A 10.8.4: an interrupt that the APIC has accepted stays in IRR until the processor takes it, whatever becomes of
// LVTPC meanwhile.
GT_TEST(SecondCpu_LosesNoIpiBesidePmis, gt::need_counts | gt::need_second_cpu) {
  catch_ipis();
  pmu::catch_pmi_by_vector(pmi_vector, {.unmask = 1});
  gt::start_second_cpu(send_for_ever);
  be_sampled_and_interrupted(goal_of_ipis());
}

GT_TEST(SecondCpu_LosesNoIpiBesideNmiPmis, gt::need_counts | gt::need_second_cpu) {
  catch_ipis();
  pmu::catch_pmi_by_nmi({.unmask = 1});
  gt::start_second_cpu(send_for_ever);
  be_sampled_and_interrupted(goal_of_ipis());
}

GT_TEST(SecondCpu_LosesNoIpiInX2apicMode, gt::need_counts | gt::need_second_cpu) {
  catch_ipis();
  gt::start_second_cpu(send_for_ever_by_x2apic);
  apic::use_x2apic();
  pmu::catch_pmi_by_vector(pmi_vector, {.unmask = 1});
  be_sampled_and_interrupted(goal_of_ipis());
}

// SDM 3A 6.7.1: an NMI that arrives while another is served is held pending, and is not lost.
GT_TEST(SecondCpu_LosesNoNmiBesidePmis, gt::need_counts | gt::need_second_cpu) {
  gt::on_vector(x86::vector::NMI, take_nmi);
  pmu::catch_pmi_by_vector(pmi_vector, {.unmask = 1});
  gt::start_second_cpu(send_nmis_for_ever);
  be_sampled_and_interrupted(goal_of_nmis());
}

/// What the CPUs exchange: the TSC that was read last, and whose turn it is. `backward` counts errors.
constinit volatile std::uint64_t stamp = 0, turn = 0, backward = 0;

/// SDM 3B 17.15: RDTSC does not wait for loads before it.
std::uint64_t tsc_after_loads() {
  asm volatile("lfence" ::: "memory");
  return gt::rdtsc();
}

/// Replaces the stamp by this CPU's TSC, which must not be earlier.
void take_turn() {
  const std::uint64_t before = stamp;
  const std::uint64_t now = tsc_after_loads();
  if (now < before) backward = backward + 1;
  stamp = now;
  turn = turn + 1;
}

void take_every_second_turn() {
  while (!stopped) {
    if (turn % 2 == 1) take_turn();
  }
}

std::uint64_t hand_overs() { return gt::is_long() ? 1'000'000 : 20'000; }
constexpr std::uint64_t min_hand_overs = 20;
constexpr std::uint32_t samples_meanwhile = 5;
/// The fewest hand-overs between two samples.
constexpr std::uint64_t hand_overs_a_sample = 4;

// SDM 3B 17.15.1: the TSCs of a machine's processors count synchronously. A clock read by one thread after another
// thread has read it never goes back.
GT_TEST(SecondCpu_SeesNoClockGoBack, gt::need_counts | gt::need_second_cpu) {
  pmu::catch_pmi_by_nmi({.unmask = 1});
  gt::start_second_cpu(take_every_second_turn);
  const std::uint64_t begin = gt::rdtsc();
  std::uint32_t seen = ~0U;
  std::uint64_t next_sample = 0;
  const auto is_over = [&] {
    if (const std::uint32_t taken = pmu::pmi_count(); taken != seen && turn >= next_sample) {
      seen = taken;
      next_sample = turn + hand_overs_a_sample;
      pmu::program(0, pmu::select(pmu::cycles, pmu::os | pmu::interrupt), pmu::minus(pmu::short_period()));
      pmu::start(pmu::gp_bit(0));
    }
    if (turn % 2 == 0) take_turn();
    return backward != 0 || turn >= hand_overs() || gt::rdtsc() - begin > time_to_spend();
  };
  while (!is_over()) {
  }
  stopped = true;
  GT_EQUAL(backward, 0U);
  GT_CHECK(turn >= (gt::is_long() ? hand_overs() : min_hand_overs));
  GT_CHECK(pmu::pmi_count() >= samples_meanwhile);
}

}  // namespace
