// Where loads find their data: SDM 3B 18.8.1.2, tables 18-24 and 18-33, 18.11.3; rules L1 to L8, S3. A pointer chase
// through an array goes to the level that the array fits in, so the events and the load latency records are known. Only
// sources that model the caches.
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/interrupts.hpp"
#include "gt/paging.hpp"
#include "gt/pebs.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
namespace pebs = gt::pebs;
using pebs::PebsRecord;
using pebs::Slot;

using gt::cpu::exists;
using gt::cpu::facts;

constexpr std::uint64_t line_bytes = 64;
/// Free RAM in large pages; the array begins here.
constexpr std::uint64_t array = 16ULL << 20;

struct Level {
  const char* name;
  std::uint64_t array_bytes;
  std::uint64_t code;  ///< SDM 3B table 18-24; 0: cpu::Facts::memory_source.
  std::uint64_t from_latency, to_latency;
  pmu::Event gt::cpu::Facts::* counted;
};
/// Sizes between those of the levels of all processors from Nehalem on: 32 KiB, 256 KiB to 1 MiB, 4 to 20 MiB.
constexpr Level in_l1{"L1", 16ULL << 10, 0x1, 4, 7, &gt::cpu::Facts::l1_hit};
constexpr Level in_l2{"L2", 128ULL << 10, 0x3, 8, 20, &gt::cpu::Facts::l2_hit};
constexpr Level in_l3{"L3", 2ULL << 20, 0x4, 21, 100, &gt::cpu::Facts::l3_hit};
constexpr Level in_memory{"memory", 32ULL << 20, 0, 101, 1000, &gt::cpu::Facts::l3_miss};
constexpr std::array places{&gt::cpu::Facts::l1_hit, &gt::cpu::Facts::fill_buffer_hit, &gt::cpu::Facts::l2_hit,
                            &gt::cpu::Facts::l3_hit, &gt::cpu::Facts::l3_miss};

/// Links all lines of the array in one ring, far from the order of addresses. The numbers of lines are powers of two: a
/// linear congruential generator with an odd increment and a multiplier of 4n + 1 meets each once.
void link_lines(std::uint64_t bytes) {
  const std::uint64_t lines = bytes / line_bytes;
  std::uint64_t line = 0;
  for (std::uint64_t i = 0; i < lines; ++i) {
    const std::uint64_t next = (line * 1'664'525 + 1'013'904'223) % lines;
    *reinterpret_cast<volatile std::uint64_t*>(array + line * line_bytes) = array + next * line_bytes;
    line = next;
  }
}

/// The addresses of the chase's load, and of the next instruction.
struct ChaseLoad {
  std::uint64_t at, next;

  [[nodiscard]] bool has(const PebsRecord& r) const {
    return r[Slot::rip] == next && (!gt::cpu::has_eventing_ip() || r[Slot::eventing_ip] == at);
  }
};

/// Follows `loads` links from `at` with GLOBAL_CTRL = `counters`. Returns the address that it reached.
std::uint64_t chase(std::uint64_t at, std::uint64_t loads, std::uint64_t counters, ChaseLoad& load) {
  pmu::start(counters);
  asm volatile(
      "lea 1f(%%rip), %[load_at]\n"
      "lea 2f(%%rip), %[load_next]\n"
      "1: mov (%[at]), %[at]\n"
      "2: dec %[loads]\n"
      "jnz 1b\n"
      : [at] "+r"(at), [loads] "+r"(loads), [load_at] "=&r"(load.at), [load_next] "=&r"(load.next)::"cc", "memory");
  pmu::stop();
  return at;
}
std::uint64_t chase(std::uint64_t at, std::uint64_t loads, std::uint64_t counters) {
  ChaseLoad ignored{};
  return chase(at, loads, counters, ignored);
}

/// Chases once through the array while an event of the caches counts: otherwise they are not modelled.
void warm_up(const Level& level) {
  link_lines(level.array_bytes);
  pmu::stop();
  pmu::program(0, pmu::select(facts().l2_hit, pmu::os), 0);
  pmu::program(1, pmu::select(facts().l3_hit, pmu::os), 0);
  pmu::program(2, pmu::select(facts().stlb_miss_loads, pmu::os), 0);
  chase(array, level.array_bytes / line_bytes, 7);
  GT_CHECK(pmu::counter(0) + pmu::counter(1) + pmu::counter(2) > 0);
}

// The level's own event counts at least nine of ten loads, and each load counts in exactly one place. If a processor
// has no event for a level, the other events do not count its loads. An L3 that adapts has kept the lines that came
// first, any other those that came last: these loads are of neither.
void check_counts(const Level& level) {
  const pmu::WithoutPrefetchers off;
  warm_up(level);
  const std::uint64_t lines = level.array_bytes / line_bytes;
  const std::uint64_t loads = lines < 20'000 ? lines : 20'000;
  std::uint64_t sum = 0, all_loads = 0;
  std::uint64_t at = chase(array, lines / 2, pmu::gp_bit(0));
  // What is at the edge between two levels may be beyond it in another round: these two are counted in one.
  constexpr unsigned in_one_round = 3;
  for (unsigned first = 0; first < places.size(); first += in_one_round) {
    std::uint64_t counters = pmu::gp_bit(in_one_round);
    pmu::program(in_one_round, pmu::select(facts().loads, pmu::os), 0);
    for (unsigned i = 0; i < in_one_round && first + i < places.size(); ++i) {
      if (!exists(facts().*places[first + i])) continue;
      pmu::program(i, pmu::select(facts().*places[first + i], pmu::os), 0);
      counters |= pmu::gp_bit(i);
    }
    at = chase(at, loads, counters);
    for (unsigned i = 0; i < in_one_round; ++i) {
      if ((counters & pmu::gp_bit(i)) == 0) continue;
      sum += pmu::counter(i);
      if (places[first + i] == level.counted) GT_CHECK(pmu::counter(i) * 10 >= loads * 9);
    }
    all_loads = pmu::counter(in_one_round);
  }
  GT_CHECK(all_loads >= loads && all_loads < loads + 10);
  // A few loads may hit another level in another round.
  if (exists(facts().*level.counted))
    GT_CHECK(sum * 100 >= all_loads * 99 && sum * 99 <= all_loads * 100);
  else
    GT_CHECK(sum * 10 <= all_loads);
}
GT_TEST(MemoryLevels_CountsOfTheL1, gt::need_hit_levels) { check_counts(in_l1); }
GT_TEST(MemoryLevels_CountsOfTheL2, gt::need_hit_levels) { check_counts(in_l2); }
GT_TEST(MemoryLevels_CountsOfTheL3, gt::need_hit_levels) { check_counts(in_l3); }
GT_TEST(MemoryLevels_CountsOfMemory, gt::need_hit_levels) { check_counts(in_memory); }

// In one round, with all events at once: misses of a level are the hits of the levels behind it.
GT_TEST(MemoryLevels_MissesAreTheHitsBehind, gt::need_hit_levels) {
  if (!exists(facts().l1_miss) || !exists(facts().l2_miss)) gt::skip("this processor has no events of misses");
  warm_up(in_l3);
  const std::array events{facts().l1_miss, facts().l2_hit, facts().l2_miss, facts().l3_hit};
  for (unsigned i = 0; i < events.size(); ++i) pmu::program(i, pmu::select(events[i], pmu::os), 0);
  chase(array, 10'000, 0xF);
  GT_CHECK(pmu::counter(0) >= 9'000);
  GT_EQUAL(pmu::counter(0), pmu::counter(1) + pmu::counter(2));
  GT_EQUAL(pmu::counter(2), pmu::counter(3));
}

/// Events of reads of data by the L2: all, those that hit it, those that missed it. SDM 3C tables 19-5 to 19-17.
std::array<pmu::Event, 3> l2_data_reads() {
  constexpr std::uint8_t requests = 0x24;
  if (facts().microarchitecture >= gt::cpu::Microarchitecture::haswell)
    return {{{requests, 0xE1}, {requests, 0xC1}, {requests, 0x21}}};
  return {{{requests, 0x03}, {requests, 0x01}, {requests, 0x02}}};
}

void check_l2_reads(const Level& level, bool hit) {
  const pmu::WithoutPrefetchers off;
  warm_up(level);
  const std::uint64_t loads = level.array_bytes / line_bytes / 2;
  const bool has_misses = facts().microarchitecture != gt::cpu::Microarchitecture::sandy_bridge &&
                          facts().microarchitecture != gt::cpu::Microarchitecture::ivy_bridge;
  const auto events = l2_data_reads();
  for (unsigned i = 0; i < events.size(); ++i) pmu::program(i, pmu::select(events[i], pmu::os), 0);
  chase(array, loads, 7);
  const std::uint64_t all = pmu::counter(0), hits = pmu::counter(1), misses = pmu::counter(2);
  GT_CHECK(all * 10 >= loads * 9 && all <= loads + 10);
  if (has_misses) GT_EQUAL(hits + misses, all);
  GT_CHECK(hit ? hits * 10 >= all * 9 : hits * 10 <= all);
}
GT_TEST(MemoryLevels_ReadsHitTheL2, gt::need_modelled_levels) { check_l2_reads(in_l2, true); }
GT_TEST(MemoryLevels_ReadsMissTheL2, gt::need_modelled_levels) { check_l2_reads(in_l3, false); }

// L1D_PEND_MISS and OFFCORE_REQUESTS_OUTSTANDING: of a chase through memory each line is under way for the time of
// memory, alone.
GT_TEST(MemoryLevels_LinesAreUnderWayForTheTimeOfMemory, gt::need_pipeline_time) {
  if (facts().microarchitecture < gt::cpu::Microarchitecture::sandy_bridge)
    gt::skip("this processor has no event of lines under way");
  const pmu::WithoutPrefetchers off;
  constexpr pmu::Event lines{0x48, 0x01}, reads{0x60, 0x01}, read_requests{0xB0, 0x01};
  constexpr std::uint64_t any = 1ULL << 24;  // CMASK
  constexpr std::uint64_t loads = 10'000;
  warm_up(in_memory);
  // As in check_counts().
  const std::uint64_t at = chase(array, in_memory.array_bytes / line_bytes / 2, pmu::gp_bit(0));
  pmu::program(0, pmu::select(lines, pmu::os), 0);
  pmu::program(1, pmu::select(lines, pmu::os) | any, 0);
  pmu::program(2, pmu::select(reads, pmu::os), 0);
  pmu::program(3, pmu::select(read_requests, pmu::os), 0);
  chase(at, loads, 0xF);
  GT_CHECK(pmu::counter(0) >= loads * in_memory.from_latency && pmu::counter(0) <= loads * in_memory.to_latency);
  GT_EQUAL(pmu::counter(0), pmu::counter(1));
  GT_CHECK(pmu::counter(2) <= pmu::counter(0) && pmu::counter(2) * 10 >= pmu::counter(0) * 8);
  GT_CHECK(pmu::counter(3) * 10 >= loads * 9 && pmu::counter(3) <= loads + 10);
}

// A source that runs instructions one by one, as for the branch stack, counts the same as by blocks.
GT_TEST(MemoryLevels_CountTheSameOneByOne, gt::need_modelled_levels) {
  warm_up(in_l2);
  const std::uint64_t loads = in_l2.array_bytes / line_bytes;
  std::array<std::uint64_t, 2> counted{};
  for (const unsigned lbr : {0U, 1U}) {
    gt::wrmsr(pmu::msr::IA32_DEBUGCTL, lbr);
    pmu::program(0, pmu::select(facts().l2_hit, pmu::os), 0);
    chase(array, loads, pmu::gp_bit(0));
    gt::wrmsr(pmu::msr::IA32_DEBUGCTL, 0);
    counted[lbr] = pmu::counter(0);
  }
  GT_CHECK(counted[0] * 10 >= loads * 9);
  GT_EQUAL(counted[0], counted[1]);
}

constexpr std::uint64_t faulting_pages = 64;

void map_what_faulted(gt::InterruptFrame&) {
  const std::uint64_t page = gt::read_cr2() & ~std::uint64_t{4095};
  gt::paging::map(page, array + page - gt::paging::window, gt::paging::writable | gt::paging::user);
}

// A load that is repeated after its fault counts like any other, in spite of RF in the frame (SDM 3B 17.3.1.1).
GT_TEST(MemoryLevels_LoadsDoneOverAfterAFaultAreSomewhere, gt::need_hit_levels) {
  const bool has_l1_miss = exists(facts().l1_miss);
  if (!has_l1_miss && !exists(facts().l3_miss)) gt::skip("this processor has no event of loads that missed");
  warm_up(in_l1);
  gt::on_vector(x86::vector::PF, map_what_faulted);
  for (std::uint64_t page = 0; page < faulting_pages; ++page) gt::paging::unmap(gt::paging::window + page * 4096);
  // These lines have not been accessed before: misses of the L1 come from memory.
  const std::array events{facts().loads, facts().l1_hit, has_l1_miss ? facts().fill_buffer_hit : facts().l2_hit,
                          has_l1_miss ? facts().l1_miss : facts().l3_miss};
  for (unsigned i = 0; i < events.size(); ++i) pmu::program(i, pmu::select(events[i], pmu::usr), 0);
  pmu::start(0xF);
  gt::run_at_cpl3(
      [](void*) {
        for (std::uint64_t page = 0; page < faulting_pages; ++page)
          (void)*reinterpret_cast<const volatile std::uint64_t*>(gt::paging::window + page * 4096);
      },
      nullptr);
  pmu::stop();
  GT_CHECK(pmu::counter(0) >= faulting_pages);
  GT_EQUAL(pmu::counter(0), pmu::counter(1) + pmu::counter(2) + pmu::counter(3));
}

// An overflow within blocks is not late: the PMI freezes the counter where it is (SDM 3B 17.4.7).
GT_TEST(MemoryLevels_OverflowIsExact, gt::need_modelled_levels) {
  warm_up(in_l2);
  pmu::catch_pmi_by_nmi();
  gt::wrmsr(pmu::msr::IA32_DEBUGCTL, pmu::reg::debugctl::FREEZE_PERFMON_ON_PMI::mask);
  pmu::program(0, pmu::select(facts().l2_hit, pmu::os | pmu::interrupt), pmu::minus(1000));
  chase(array, in_l2.array_bytes / line_bytes, pmu::gp_bit(0));
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_EQUAL(pmu::counter(0), 0U);
}

// Whether the model or the host knows the level: the counter overflows, and the PMI freezes it before its next overflow
// (SDM 3B 17.4.7). A host's overflow is late by its skid.
GT_TEST(MemoryLevels_OverflowComes, gt::need_hit_levels) {
  constexpr std::uint64_t events = 1000;
  warm_up(in_l2);
  pmu::catch_pmi_by_nmi();
  gt::wrmsr(pmu::msr::IA32_DEBUGCTL, pmu::reg::debugctl::FREEZE_PERFMON_ON_PMI::mask);
  pmu::program(0, pmu::select(facts().l2_hit, pmu::os | pmu::interrupt), pmu::minus(events));
  chase(array, 4 * events, pmu::gp_bit(0));
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_CHECK(pmu::counter(0) < events);
}

/// Programs load latency, without starting it.
void start_load_latency(std::uint64_t events_before_overflow) {
  const unsigned i = facts().load_latency_counter;
  pebs::set_reset(i, events_before_overflow);
  pmu::program(i, pmu::select(facts().load_latency, pmu::os), pmu::minus(events_before_overflow));
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, pmu::gp_bit(i) | pmu::gp_bit(32 + i));
}

constexpr unsigned records_wanted = 64;
constexpr std::uint64_t sampled_loads = 4'000, period = 40;

/// Samples the chase with load latency.
void sample(const Level& level, std::uint64_t threshold, ChaseLoad& load) {
  warm_up(level);
  pebs::set_up(2 * records_wanted, pebs::no_threshold);
  gt::wrmsr(pmu::msr::MSR_PEBS_LD_LAT_THRESHOLD, threshold);
  // Precise loads may be counted by a model whose caches are not those used so far: warm these up, too.
  start_load_latency(2 * level.array_bytes);
  // An L3 that adapts has kept what came first: the samples are of what came later.
  const std::uint64_t lines = level.array_bytes / line_bytes;
  const std::uint64_t at = chase(array, lines + lines / 2, pmu::gp_bit(facts().load_latency_counter), load);
  start_load_latency(period);
  chase(at, sampled_loads, pmu::gp_bit(facts().load_latency_counter), load);
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 0);
}

void check_records(const Level& level) {
  const pmu::WithoutPrefetchers off;
  const std::uint64_t code = level.code != 0 ? level.code : facts().memory_source;
  ChaseLoad load{};
  sample(level, 3, load);
  const std::uint64_t n = pebs::records_written();
  GT_REQUIRE(n >= records_wanted);
  unsigned in_chase = 0, in_level = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const PebsRecord r = pebs::record(i);
    if (!load.has(r)) continue;
    ++in_chase;
    GT_CHECK(r[Slot::data_address] >= array && r[Slot::data_address] < array + level.array_bytes);
    GT_EQUAL(r[Slot::data_address] % line_bytes, 0U);
    GT_CHECK(r[Slot::latency] > 3);
    const bool right = (r[Slot::data_source] & 0xF) == code;
    if (right) GT_CHECK(r[Slot::latency] >= level.from_latency && r[Slot::latency] <= level.to_latency);
    in_level += right ? 1 : 0;
  }
  GT_CHECK(in_chase >= records_wanted);
  GT_CHECK(in_level * 10 >= in_chase * 9);
}
GT_TEST(LoadLatency_RecordsOfTheL1, gt::need_hit_levels) { check_records(in_l1); }
GT_TEST(LoadLatency_RecordsOfTheL2, gt::need_hit_levels) { check_records(in_l2); }
GT_TEST(LoadLatency_RecordsOfTheL3, gt::need_hit_levels) { check_records(in_l3); }
GT_TEST(LoadLatency_RecordsOfMemory, gt::need_hit_levels) { check_records(in_memory); }

// Rule L2: only loads that take longer than the threshold qualify. The L1 takes 4 cycles.
GT_TEST(LoadLatency_ThresholdHoldsOffFasterLoads, gt::need_hit_levels) {
  constexpr std::uint64_t threshold = 20;
  ChaseLoad load{};
  for (const Level* const level : {&in_l1, &in_l2}) {
    sample(*level, threshold, load);
    GT_EQUAL_AT(level->name, pebs::records_written(), 0U);
    GT_CHECK(pmu::counter(facts().load_latency_counter) >= pmu::minus(period));
  }
  sample(in_l3, threshold, load);
  GT_CHECK(pebs::records_written() >= records_wanted);
  for (std::uint64_t i = 0; i < pebs::records_written(); ++i) GT_CHECK(pebs::record(i)[Slot::latency] > threshold);
}

// Rule L2: the manual's least threshold is 3. A smaller value reads back as written, and here the same loads qualify.
GT_TEST(LoadLatency_ThresholdsBelowTheLeastDoAsTheLeast, gt::need_hit_levels) {
  constexpr std::array levels{&in_l1, &in_l2, &in_l3, &in_memory};
  for (unsigned threshold = 0; threshold < levels.size(); ++threshold) {
    ChaseLoad load{};
    sample(*levels[threshold], threshold, load);
    GT_EQUAL(gt::rdmsr(pmu::msr::MSR_PEBS_LD_LAT_THRESHOLD), threshold);
    GT_CHECK(pebs::records_written() >= records_wanted);
    for (std::uint64_t i = 0; i < pebs::records_written(); ++i) GT_CHECK(pebs::record(i)[Slot::latency] > 3);
  }
}

// Logs every record for the host, which compares them with what its model said.
GT_TEST(LoadLatency_SaysWhatItRecorded, gt::need_hit_levels) {
  std::array<char, 96> buffer{};
  for (const Level* const level : {&in_l1, &in_l2, &in_l3, &in_memory}) {
    ChaseLoad load{};
    sample(*level, 3, load);
    GT_CHECK(pebs::records_written() >= records_wanted);
    for (std::uint64_t i = 0; i < pebs::records_written(); ++i) {
      const PebsRecord r = pebs::record(i);
      gt::Text line{buffer};
      line << "record " << r[Slot::data_address] << ' ' << r[Slot::latency] << ' ' << r[Slot::data_source];
      gt::log(buffer.data());
    }
  }
}

// SDM 3B table 18-33: the record of a load that missed both TLBs shows it, from Westmere on. The window's pages have 4
// KiB; MOV to CR3 flushes translations.
GT_TEST(LoadLatency_RecordsTellTlbMisses, gt::need_modelled_levels) {
  // Fewer pages than the first level holds: up to Westmere the event counts misses of the first level.
  constexpr std::uint64_t stlb_miss_bit = 1ULL << 4, pages = 60;
  for (std::uint64_t page = 0; page < pages; ++page)
    gt::paging::map(gt::paging::window + page * 4096, array + page * 4096, gt::paging::writable);
  const auto touch_all = [](bool flush) {
    if (flush) asm volatile("mov %%cr3, %%rax\n mov %%rax, %%cr3" ::: "rax", "memory");
    for (std::uint64_t page = 0; page < pages; ++page)
      (void)*reinterpret_cast<const volatile std::uint64_t*>(gt::paging::window + page * 4096 + page % 32 * line_bytes);
  };
  std::array<std::uint64_t, 3> walks{};
  for (unsigned round = 0; round < walks.size(); ++round) {
    pmu::program(0, pmu::select(facts().stlb_miss_loads, pmu::os), 0);
    pmu::start(pmu::gp_bit(0));
    touch_all(round != 1);
    pmu::stop();
    walks[round] = pmu::counter(0);
  }
  GT_CHECK(walks[0] >= pages && walks[0] < pages + 20);
  GT_CHECK(walks[1] < 20);
  GT_CHECK(walks[2] >= pages && walks[2] < pages + 20);

  pebs::set_up(2 * records_wanted, pebs::no_threshold);
  gt::wrmsr(pmu::msr::MSR_PEBS_LD_LAT_THRESHOLD, 3);
  for (const std::uint64_t expected : {stlb_miss_bit, std::uint64_t{0}}) {
    pebs::area().index = pebs::area().base;
    start_load_latency(2);
    pmu::start(pmu::gp_bit(facts().load_latency_counter));
    touch_all(expected != 0);
    pmu::stop();
    gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 0);
    unsigned in_window = 0, right = 0;
    for (std::uint64_t i = 0; i < pebs::records_written(); ++i) {
      const PebsRecord r = pebs::record(i);
      if (r[Slot::data_address] < gt::paging::window) continue;
      ++in_window;
      right += (r[Slot::data_source] & stlb_miss_bit) == (facts().data_source_tlb ? expected : 0) ? 1 : 0;
    }
    GT_CHECK(in_window >= 20);
    GT_EQUAL(right, in_window);
  }
}

}  // namespace
