// Where loads find their data: SDM 3B 18.8.1.2, tables 18-24 and 18-33, 18.11.3; rules L1 to L8, S3. A pointer chase through an array goes
// to the level that the array fits in, so the events and the load latency records are known. Only sources that model the caches.
#include "gt/asm.hpp"
#include "gt/interrupts.hpp"
#include "gt/paging.hpp"
#include "gt/pebs.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"

namespace {

namespace pmu = gt::pmu;
namespace pebs = gt::pebs;
using pebs::PebsRecord;
using pebs::Slot;

constexpr pmu::Event load_latency{0xCD, 0x01}, l1_hit{0xD1, 0x01}, l2_hit{0xD1, 0x02}, l3_hit{0xD1, 0x04}, l1_miss{0xD1, 0x08},
    l2_miss{0xD1, 0x10}, l3_miss{0xD1, 0x20}, fill_buffer_hit{0xD1, 0x40}, stlb_miss_loads{0xD0, 0x11};

constexpr std::uint64_t line_bytes = 64;
/// Free RAM in large pages; the array begins here.
constexpr std::uint64_t array = 16ULL << 20;

struct Level {
  const char* name;
  std::uint64_t array_bytes;
  std::uint64_t code;                  ///< SDM 3B table 18-24.
  std::uint64_t from_latency, to_latency;
  pmu::Event counted;
};
/// Sizes between those of the levels of all clients from Nehalem on: 32 KiB, 256 KiB, 8 MiB at most.
constexpr Level in_l1{"L1", 16ULL << 10, 0x1, 4, 7, l1_hit};
constexpr Level in_l2{"L2", 128ULL << 10, 0x3, 8, 20, l2_hit};
constexpr Level in_l3{"L3", 2ULL << 20, 0x4, 21, 100, l3_hit};
constexpr Level in_memory{"memory", 16ULL << 20, 0xA, 101, 1000, l3_miss};

/// Links all lines of the array in one ring, far from the order of addresses. The numbers of lines are powers of two: a linear
/// congruential generator with an odd increment and a multiplier of 4n + 1 meets each once.
void link_lines(std::uint64_t bytes) {
  const std::uint64_t lines = bytes / line_bytes;
  std::uint64_t line = 0;
  for (std::uint64_t i = 0; i < lines; ++i) {
    const std::uint64_t next = (line * 1'664'525 + 1'013'904'223) % lines;
    *reinterpret_cast<volatile std::uint64_t*>(array + line * line_bytes) = array + next * line_bytes;
    line = next;
  }
}

/// Follows `loads` links from `at`, counting with GLOBAL_CTRL = `counters`. Returns where it came to, and the load's address in `load_at`.
std::uint64_t chase(std::uint64_t at, std::uint64_t loads, std::uint64_t counters, std::uint64_t& load_at) {
  pmu::start(counters);
  asm volatile(
      "lea 1f(%%rip), %[load_at]\n"
      "1: mov (%[at]), %[at]\n"
      "dec %[loads]\n"
      "jnz 1b\n"
      : [at] "+r"(at), [loads] "+r"(loads), [load_at] "=&r"(load_at)::"cc", "memory");
  pmu::stop();
  return at;
}
std::uint64_t chase(std::uint64_t at, std::uint64_t loads, std::uint64_t counters) {
  std::uint64_t ignored = 0;
  return chase(at, loads, counters, ignored);
}

/// A round while something that needs the caches counts, as nobody models them otherwise.
void warm_up(const Level& level) {
  link_lines(level.array_bytes);
  pmu::stop();
  pmu::program(0, pmu::select(l1_miss, pmu::os), 0);
  chase(array, level.array_bytes / line_bytes, pmu::gp_bit(0));
  GT_CHECK(pmu::counter(0) > 0);
}

// Each level's own event takes nine of ten loads at least; and every load is in exactly one place.
void check_counts(const Level& level) {
  warm_up(level);
  const std::uint64_t lines = level.array_bytes / line_bytes;
  const std::uint64_t loads = lines < 20'000 ? lines : 20'000;
  constexpr std::array places{l1_hit, fill_buffer_hit, l2_hit, l3_hit, l3_miss};
  std::uint64_t sum = 0, all_loads = 0;
  std::uint64_t at = array;
  for (const pmu::Event& place : places) {
    pmu::program(0, pmu::select(place, pmu::os), 0);
    pmu::program(1, pmu::select(pmu::loads, pmu::os), 0);
    at = chase(at, loads, pmu::gp_bit(0) | pmu::gp_bit(1));
    sum += pmu::counter(0);
    all_loads = pmu::counter(1);
    if (place.umask == level.counted.umask) GT_CHECK(pmu::counter(0) * 10 >= loads * 9);
  }
  GT_CHECK(all_loads >= loads && all_loads < loads + 10);
  // From round to round a few loads may find themselves elsewhere.
  GT_CHECK(sum * 100 >= all_loads * 99 && sum * 99 <= all_loads * 100);
}
GT_TEST(MemoryLevels_CountsOfTheL1, gt::need_hit_levels) { check_counts(in_l1); }
GT_TEST(MemoryLevels_CountsOfTheL2, gt::need_hit_levels) { check_counts(in_l2); }
GT_TEST(MemoryLevels_CountsOfTheL3, gt::need_hit_levels) { check_counts(in_l3); }
GT_TEST(MemoryLevels_CountsOfMemory, gt::need_hit_levels) { check_counts(in_memory); }

// At the same time, in one round: what misses a level is what hits farther out.
GT_TEST(MemoryLevels_MissesAreTheHitsBehind, gt::need_hit_levels) {
  warm_up(in_l3);
  const std::array events{l1_miss, l2_hit, l2_miss, l3_hit};
  for (unsigned i = 0; i < events.size(); ++i) pmu::program(i, pmu::select(events[i], pmu::os), 0);
  chase(array, 10'000, 0xF);
  GT_CHECK(pmu::counter(0) >= 9'000);
  GT_EQUAL(pmu::counter(0), pmu::counter(1) + pmu::counter(2));
  GT_EQUAL(pmu::counter(2), pmu::counter(3));
}

// A source that takes every instruction by itself, as it must for the branch stack, comes to the same count as by blocks.
GT_TEST(MemoryLevels_CountTheSameOneByOne, gt::need_hit_levels) {
  warm_up(in_l2);
  const std::uint64_t loads = in_l2.array_bytes / line_bytes;
  std::array<std::uint64_t, 2> counted{};
  for (const unsigned lbr : {0U, 1U}) {
    gt::wrmsr(pmu::msr::IA32_DEBUGCTL, lbr);
    pmu::program(0, pmu::select(l1_miss, pmu::os), 0);
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

// A load that faulted and is done over is a load like others: the frame's RF (SDM 3B 17.3.1.1) changes nothing about it.
GT_TEST(MemoryLevels_LoadsDoneOverAfterAFaultAreSomewhere, gt::need_hit_levels) {
  constexpr std::uint64_t page_fault = 14;
  warm_up(in_l1);
  gt::on_vector(page_fault, map_what_faulted);
  for (std::uint64_t page = 0; page < faulting_pages; ++page) gt::paging::unmap(gt::paging::window + page * 4096);
  const std::array events{pmu::loads, l1_hit, fill_buffer_hit, l1_miss};
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

// An overflow in the middle of blocks is not late: the PMI freezes the counter where it is (SDM 3B 17.4.7).
GT_TEST(MemoryLevels_OverflowIsExact, gt::need_hit_levels) {
  warm_up(in_l2);
  pmu::catch_pmi_by_nmi();
  gt::wrmsr(pmu::msr::IA32_DEBUGCTL, pmu::reg::debugctl::FREEZE_PERFMON_ON_PMI::mask);
  pmu::program(0, pmu::select(l1_miss, pmu::os | pmu::interrupt), pmu::minus(1000));
  chase(array, in_l2.array_bytes / line_bytes, pmu::gp_bit(0));
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_EQUAL(pmu::counter(0), 0U);
}

constexpr unsigned records_wanted = 64;
constexpr std::uint64_t sampled_loads = 4'000, period = 40;

/// Samples the chase by load latency on PMC0.
void sample(const Level& level, std::uint64_t threshold, std::uint64_t& load_at) {
  warm_up(level);
  pebs::set_up(2 * records_wanted, pebs::no_threshold);
  pebs::set_reset(0, period);
  gt::wrmsr(pmu::msr::MSR_PEBS_LD_LAT_THRESHOLD, threshold);
  pmu::program(0, pmu::select(load_latency, pmu::os), pmu::minus(period));
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, pmu::gp_bit(0) | pmu::gp_bit(32));
  chase(array, sampled_loads, pmu::gp_bit(0), load_at);
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 0);
}

void check_records(const Level& level) {
  std::uint64_t load_at = 0;
  sample(level, 3, load_at);
  const std::uint64_t n = pebs::records_written();
  GT_REQUIRE(n >= records_wanted);
  unsigned in_chase = 0, in_level = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const PebsRecord r = pebs::record(i);
    if (r[Slot::eventing_ip] != load_at) continue;
    ++in_chase;
    GT_CHECK(r[Slot::data_address] >= array && r[Slot::data_address] < array + level.array_bytes);
    GT_EQUAL(r[Slot::data_address] % line_bytes, 0U);
    GT_CHECK(r[Slot::latency] > 3);
    const bool right = (r[Slot::data_source] & 0xF) == level.code;
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

// Rule L2: only what took longer than the threshold. The L1 takes 4 cycles.
GT_TEST(LoadLatency_ThresholdHoldsOffFasterLoads, gt::need_hit_levels) {
  constexpr std::uint64_t threshold = 20;
  std::uint64_t load_at = 0;
  for (const Level* const level : {&in_l1, &in_l2}) {
    sample(*level, threshold, load_at);
    GT_EQUAL_AT(level->name, pebs::records_written(), 0U);
    GT_CHECK(pmu::counter(0) >= pmu::minus(period));
  }
  sample(in_l3, threshold, load_at);
  GT_CHECK(pebs::records_written() >= records_wanted);
  for (std::uint64_t i = 0; i < pebs::records_written(); ++i) GT_CHECK(pebs::record(i)[Slot::latency] > threshold);
}

// Tells the host, which knows what its model said, of every record of every level.
GT_TEST(LoadLatency_SaysWhatItRecorded, gt::need_hit_levels) {
  std::array<char, 96> buffer{};
  for (const Level* const level : {&in_l1, &in_l2, &in_l3, &in_memory}) {
    std::uint64_t load_at = 0;
    sample(*level, 3, load_at);
    GT_CHECK(pebs::records_written() >= records_wanted);
    for (std::uint64_t i = 0; i < pebs::records_written(); ++i) {
      const PebsRecord r = pebs::record(i);
      gt::Text line{buffer};
      line << "record " << r[Slot::data_address] << ' ' << r[Slot::latency] << ' ' << r[Slot::data_source];
      gt::log(buffer.data());
    }
  }
}

// SDM 3B table 18-33: the record of a load that missed both TLBs says so. The window's pages are of 4 KiB; MOV to CR3 drops translations.
GT_TEST(LoadLatency_RecordsTellTlbMisses, gt::need_hit_levels) {
  constexpr std::uint64_t stlb_miss_bit = 1ULL << 4, pages = 256;
  for (std::uint64_t page = 0; page < pages; ++page)
    gt::paging::map(gt::paging::window + page * 4096, array + page * 4096, gt::paging::writable);
  const auto touch_all = [](bool flush) {
    if (flush) asm volatile("mov %%cr3, %%rax\n mov %%rax, %%cr3" ::: "rax", "memory");
    for (std::uint64_t page = 0; page < pages; ++page)
      (void)*reinterpret_cast<const volatile std::uint64_t*>(gt::paging::window + page * 4096 + page % 32 * line_bytes);
  };
  std::array<std::uint64_t, 3> walks{};
  for (unsigned round = 0; round < walks.size(); ++round) {
    pmu::program(0, pmu::select(stlb_miss_loads, pmu::os), 0);
    pmu::start(pmu::gp_bit(0));
    touch_all(round != 1);
    pmu::stop();
    walks[round] = pmu::counter(0);
  }
  GT_CHECK(walks[0] >= pages && walks[0] < pages + 20);
  GT_CHECK(walks[1] < 20);
  GT_CHECK(walks[2] >= pages && walks[2] < pages + 20);

  pebs::set_up(2 * records_wanted, pebs::no_threshold);
  pebs::set_reset(0, 2);
  gt::wrmsr(pmu::msr::MSR_PEBS_LD_LAT_THRESHOLD, 3);
  for (const std::uint64_t expected : {stlb_miss_bit, std::uint64_t{0}}) {
    pebs::area().index = pebs::area().base;
    pmu::program(0, pmu::select(load_latency, pmu::os), pmu::minus(2));
    gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, pmu::gp_bit(0) | pmu::gp_bit(32));
    pmu::start(pmu::gp_bit(0));
    touch_all(expected != 0);
    pmu::stop();
    gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 0);
    unsigned in_window = 0, right = 0;
    for (std::uint64_t i = 0; i < pebs::records_written(); ++i) {
      const PebsRecord r = pebs::record(i);
      if (r[Slot::data_address] < gt::paging::window) continue;
      ++in_window;
      right += (r[Slot::data_source] & stlb_miss_bit) == expected ? 1 : 0;
    }
    GT_CHECK(in_window >= 50);
    GT_EQUAL(right, in_window);
  }
}

}  // namespace
